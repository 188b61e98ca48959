"""Applies an edit to the text of a file: exact lines, found once, replaced; or a refusal that helps to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from research_gym.action import Block, Edit
from research_gym.text import clean

SHOWN_LINES = 40
"""Lines of the file shown in one feedback."""
_AROUND_LINES = 3
_LINE_CHARS = 200
_NEAREST_LINES = 2000


class EditRefused(ValueError):
    """The edit does not fit the file, which stays as it is. The message is for the agent: clean text."""


@dataclass(frozen=True)
class Edited:
    """A file after an edit."""

    text: str
    feedback: str
    """The changed places with their line numbers, for the agent: clean text."""


def apply_edit(text: str, edit: Edit) -> Edited:
    r"""Replaces lines of a text.

    Each block's lines (`context`, then `before`) must stand in the file exactly once, one after the other; blank lines
    match blank lines whatever spaces they hold. Blocks are applied in order, each to the result of the one before: all
    or none. Line ends of the file (`\n` or `\r\n`) and a missing newline at its end are kept.

    Pure; time linear in the text for each block.

    Raises:
        EditRefused: a block is not there, or more than once; the message shows where the nearest lines are.

    Example:
        >>> from research_gym.action import parse
        >>> edit = parse("%%edit a.py\n<<<BEFORE_EDIT>>>\nx = 1\n<<<AFTER_EDIT>>>\nx = 2", shape="answer")
        >>> apply_edit("import os\nx = 1\n", edit).text
        'import os\nx = 2\n'
    """
    windows = "\r\n" in text and text.count("\r\n") * 2 > text.count("\n")
    lines = text.split("\n")
    ends_with_newline = len(lines) > 1 and not lines[-1]
    if ends_with_newline:
        lines.pop()
    places: list[tuple[int, int]] = []
    for number, block in enumerate(edit.blocks, 1):
        name = f"block {number} of {len(edit.blocks)}" if len(edit.blocks) > 1 else "the block"
        at = _find(lines, block, name) + len(block.context)
        new = [f"{line}\r" for line in block.after] if windows else list(block.after)
        if windows and not ends_with_newline and new and at + len(block.before) == len(lines):
            new[-1] = new[-1].removesuffix("\r")
        lines[at : at + len(block.before)] = new
        shift = len(block.after) - len(block.before)
        places = [(start + shift if start > at else start, count) for start, count in places]
        places.append((at, len(new)))
    if ends_with_newline and lines:
        lines.append("")
    return Edited("\n".join(lines), _feedback(edit.path, lines, places))


def _normal(line: str) -> str:
    return line.removesuffix("\r") if line.strip() else ""


def _find(lines: list[str], block: Block, name: str) -> int:
    wanted = [_normal(line) for line in (*block.context, *block.before)]
    found = _occurrences([_normal(line) for line in lines], wanted)
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(str(at + 1) for at in found)
        more = " and perhaps further" if len(found) == _MOST_OCCURRENCES else ""
        raise EditRefused(
            f"{name} stands in the file more than once, at lines {numbers}{more}: add lines above or below until it is "
            "unique. Nothing was changed."
        )
    raise EditRefused(f"{name} is not in the file. {_nearest(lines, wanted)} Nothing was changed.")


_MOST_OCCURRENCES = 5


def _occurrences(lines: list[str], wanted: list[str]) -> list[int]:
    """Where the lines stand, in order, at most five places: `str.find` is linear, comparing slices of lists is not."""
    text = "\n" + "\n".join(lines) + "\n"
    needle = "\n" + "\n".join(wanted) + "\n"
    found: list[int] = []
    at, line = text.find(needle), 0
    counted = 0
    while at >= 0 and len(found) < _MOST_OCCURRENCES:
        line += text.count("\n", counted, at)
        counted = at
        found.append(line)
        at = text.find(needle, at + 1)
    return found


def _nearest(lines: list[str], wanted: list[str]) -> str:
    """What is in the file instead: the same lines spaced otherwise, the place where they part, or a similar line."""
    loose = _occurrences([" ".join(line.split()) for line in lines], [" ".join(line.split()) for line in wanted])
    if loose:
        start = loose[0]
        shown = _numbered(lines, start, start + len(wanted))
        return f"Lines {start + 1}-{start + len(wanted)} differ from it in white space only:\n{shown}\n"
    first = next((line for line in wanted if line), "")
    if not first:
        return "It holds blank lines only."
    same = [number for number, line in enumerate(lines) if line.removesuffix("\r") == first]
    if same:
        skip = wanted.index(first)
        start, length = max(
            ((at, _common(lines, at, wanted, skip)) for at in same[:50]), key=lambda candidate: candidate[1]
        )
        there = lines[start + length] if start + length < len(lines) else None
        expected = wanted[skip + length] if skip + length < len(wanted) else ""
        found = "the file ends" if there is None else f"found {_quote(there)}"
        parts = f"at line {start + length + 1} expected {_quote(expected)}, {found}"
        return f"Line {start + 1} is {_quote(first)}, but {parts}."
    if len(lines) <= _NEAREST_LINES:
        near = get_close_matches(first[:_LINE_CHARS], [line[:_LINE_CHARS] for line in lines], n=1)
        if near:
            number = next(n for n, line in enumerate(lines) if line[:_LINE_CHARS] == near[0])
            nearest = f"the nearest in the file is line {number + 1}, {_quote(near[0])}"
            return f"Its first line is {_quote(first)}; {nearest}."
    return f"No line of it is {_quote(first)}."


def _common(lines: list[str], at: int, wanted: list[str], skip: int) -> int:
    length = 0
    while at + length < len(lines) and skip + length < len(wanted):
        if _normal(lines[at + length]) != wanted[skip + length]:
            break
        length += 1
    return length


def _quote(line: str) -> str:
    return repr(line[:_LINE_CHARS].removesuffix("\r"))


def _feedback(path: str, lines: list[str], places: list[tuple[int, int]]) -> str:
    parts = [f"Edited {clean(path)[:_LINE_CHARS]}."]
    left = SHOWN_LINES
    for start, count in places:
        first, last = max(0, start - _AROUND_LINES), min(len(lines), start + count + _AROUND_LINES)
        if last == len(lines) and lines and not lines[-1]:
            last -= 1
        shown = min(last, first + left)
        if shown > first:
            parts.append(_numbered(lines, first, shown))
            left -= shown - first
        if shown < last:
            parts.append(f"… {last - shown} more lines")
            left = 0
    return "\n".join(parts)


def _numbered(lines: list[str], start: int, end: int) -> str:
    end = min(end, start + SHOWN_LINES, len(lines))
    return "\n".join(
        f"{number + 1:6}  {clean(lines[number][:_LINE_CHARS].removesuffix(chr(13)))}" for number in range(start, end)
    )
