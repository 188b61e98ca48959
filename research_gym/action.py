"""What an agent may do in one step: run a cell, edit a file, wait, interrupt, submit. Reads the text of an action."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

Shape = Literal["submission", "answer"]

MAX_ACTION_BYTES = 1 << 20
"""Longest action, in UTF-8."""
MAX_ANSWER_BYTES = 64 << 10
"""Longest JSON answer."""
MAX_ANSWER_DEPTH = 16

BEFORE, AFTER = "<<<BEFORE_EDIT>>>", "<<<AFTER_EDIT>>>"


@dataclass(frozen=True)
class Execute:
    """Run a cell: Python, `!shell`, `%magic`, `%%cellmagic`, top-level await."""

    code: str


@dataclass(frozen=True)
class Submit:
    """Hand in the answer, or the declared file: the episode ends if it is valid."""

    answer: Any = None
    """The JSON value; `None` for a file."""
    from_file: bool = False


@dataclass(frozen=True)
class Block:
    """One replacement: the lines `before`, found under the lines `context`, become the lines `after`."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    context: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edit:
    """Replace lines of a file."""

    path: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Interrupt:
    """Stop the cell that is running."""


@dataclass(frozen=True)
class Wait:
    """Wait for the cell that is running and see what is new."""


@dataclass(frozen=True)
class Invalid:
    """It is none of these; nothing is run."""

    reason: str
    """What was expected and what was found, for the agent: clean text of a few lines."""


Action: TypeAlias = Execute | Submit | Edit | Interrupt | Wait | Invalid


def parse(action: str, *, shape: Shape) -> Action:
    """Reads an action. Never raises, whatever the string.

    The first line that is not blank decides:

    - `%submit {...}` or `%%submit` with the JSON below it: submit an answer (tasks of shape `answer`). The JSON is read
      strictly: no key twice, no NaN or infinity, at most 16 deep and 64 KiB.
    - `%submit` alone: submit the declared file (tasks of shape `submission`).
    - `%%edit PATH`, then blocks of `<<<BEFORE_EDIT>>>`, the exact lines to replace, `<<<AFTER_EDIT>>>`, the new lines.
      Lines between the path and the first marker are context that stands directly above and stays.
    - `%interrupt` and `%wait`, alone.
    - Everything else is a cell and is run as it stands.

    Example:
        >>> parse("x = 1", shape="answer")
        Execute(code='x = 1')
        >>> parse('%submit {"accuracy": 0.93}', shape="answer")
        Submit(answer={'accuracy': 0.93}, from_file=False)
        >>> parse('%submit {"a": 1, "a": 2}', shape="answer").reason
        "The answer is not valid JSON: the key 'a' stands twice. Nothing was submitted."
    """
    if len(action) > MAX_ACTION_BYTES or len(action.encode("utf-8", "surrogatepass")) > MAX_ACTION_BYTES:
        return Invalid(f"The action is longer than {MAX_ACTION_BYTES} bytes. Nothing was run: write it in parts.")
    text = action.lstrip("\r\n")
    if text[:1] not in ("%", " ", "\t"):
        return Execute(action)
    first, _, rest = text.lstrip().partition("\n")
    word, *words = first.split(maxsplit=1) or [""]
    argument = words[0].rstrip() if words else ""
    match word:
        case "%submit":
            return _submit(f"{argument}\n{rest}".strip(), shape)
        case "%%submit":
            if argument:
                return Invalid("`%%submit` stands alone on its line, with the JSON below it. Nothing was submitted.")
            return _submit(rest.strip(), shape)
        case "%%edit":
            return _edit(argument, rest)
        case "%interrupt" | "%wait":
            if argument or rest.strip():
                return Invalid(f"`{word}` stands alone: it takes no argument and no further lines. Nothing was run.")
            return Interrupt() if word == "%interrupt" else Wait()
        case _:
            return Execute(action)


def _submit(body: str, shape: Shape) -> Action:
    if shape == "submission":
        if body:
            return Invalid(
                "This task is graded on its submission file: write the file, then `%submit` alone. "
                "Nothing was submitted."
            )
        return Submit(from_file=True)
    if not body:
        return Invalid(
            "This task is graded on a JSON answer: `%submit {...}`, or `%%submit` with the JSON below it. "
            "Nothing was submitted."
        )
    try:
        answer = read_answer(body)
    except ValueError as error:
        return Invalid(f"The answer is not valid JSON: {error}. Nothing was submitted.")
    if answer is None:
        return Invalid("The answer is `null`: expected a JSON value. Nothing was submitted.")
    return Submit(answer)


def read_answer(text: str) -> Any:
    """Reads one JSON value strictly: no duplicate keys, only finite numbers, bounded size and depth.

    Raises:
        ValueError: it is anything else; the message says what, in clean text.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_ANSWER_BYTES:
        raise ValueError(f"expected at most {MAX_ANSWER_BYTES} bytes, found {size}")
    if _deeper_than(text, MAX_ANSWER_DEPTH):
        raise ValueError(f"expected at most {MAX_ANSWER_DEPTH} levels of nesting, found more")
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise ValueError(f"{error.msg} at line {error.lineno} column {error.colno}, near {near!r}") from None


def _deeper_than(text: str, depth: int) -> bool:
    """Whether brackets outside of strings go deeper; linear, and without the recursion of a parser."""
    level, inside, escaped = 0, False, False
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "[{":
            level += 1
            if level > depth:
                return True
        elif char in "]}":
            level -= 1
    return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 400:
        raise ValueError(f"an integer of {len(text)} digits is too large")
    return int(text)


def _edit(path: str, body: str) -> Edit | Invalid:
    usage = (
        f"Expected `%%edit PATH`, then a line `{BEFORE}`, the exact lines to replace, a line `{AFTER}` and the new "
        "lines. Nothing was changed."
    )
    if not path or "\0" in path:
        return Invalid(f"`%%edit` needs the path of a file on its first line. {usage}")
    lines = [line.removesuffix("\r") for line in body.removesuffix("\n").split("\n")]
    marks = [(number, line.strip()) for number, line in enumerate(lines) if line.strip() in (BEFORE, AFTER)]
    if not marks or [mark for _, mark in marks] != [BEFORE, AFTER] * (len(marks) // 2):
        found = ", ".join(f"line {number + 2}: {mark}" for number, mark in marks[:6]) or "no marker"
        return Invalid(f"The markers of this edit do not pair up ({found}). {usage}")
    blocks = []
    for at in range(0, len(marks), 2):
        before, after = marks[at][0], marks[at + 1][0]
        end = marks[at + 2][0] if at + 2 < len(marks) else len(lines)
        context = tuple(lines[:before]) if at == 0 else ()
        block = Block(tuple(lines[before + 1 : after]), tuple(lines[after + 1 : end]), context)
        if not block.before and not block.context:
            return Invalid(f"There is nothing between {BEFORE} and {AFTER}: which lines are to be replaced? {usage}")
        blocks.append(block)
    return Edit(path, tuple(blocks))
