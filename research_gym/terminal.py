"""A terminal's screen without the terminal: escape sequences, carriage returns and backspaces applied to a whole text.

A loop over ten million characters takes ten seconds, and an agent chooses the characters. So every rule here is a few
numpy operations over all characters at once: time and memory are linear whatever the text.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Codes: TypeAlias = npt.NDArray[np.uint32]
Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]

SIMILAR_LINES = 20
"""Longer runs of lines that a program drew over each other, equal but for digits, are collapsed."""

_LF, _BS, _CR, _BEL, _ESC, _ST, _CSI = 0x0A, 0x08, 0x0D, 0x07, 0x1B, 0x9C, 0x9B
# Commands that change what is shown, as codes that are no characters.
_ERASE_END, _ERASE_ALL, _MOVE = 0x110000, 0x110001, 0x110002


def _table(*codes: int) -> Mask:
    """Which of the codes 0 to 255 are in a class; 255 stands for all above it."""
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


# The classes of ECMA-48. After ESC the string introducers are OSC, DCS, SOS, PM and APC; C1 has them as one character.
_SHOWN = _table(0x09, _LF, *range(0x20, 0x7F), *range(0xA0, 0x100))
_DRAWING = _SHOWN | _table(_BS, _CR)
_STRING_AFTER_ESC = _table(*b"]PX^_")
_STRING_C1 = _table(0x90, 0x98, 0x9D, 0x9E, 0x9F)
_STARTS = _table(_ESC, _CSI) | _STRING_C1
_PART = _DRAWING | _STARTS | _table(_BEL, _ST)
_PARAMETER = _table(*range(0x30, 0x40))
_INTERMEDIATE = _table(*range(0x20, 0x30))
_CSI_FINAL = _table(*range(0x40, 0x7F))
_ESC_FINAL = _table(*range(0x30, 0x7F))
_STRING_STOP = _table(0, _BEL, _ESC, _ST, _LF)
_TO_COLUMN, _ERASE, _MOVE_FINAL = _table(*b"G`"), _table(*b"KJ"), _table(*b"ABEFHf")


def screen(text: str) -> str:
    """Applies every control character but newline and tab, and removes it. `text` holds no lone surrogate.

    See `research_gym.text.clean`, which calls it, for what is applied and what is not.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    short = np.minimum(codes, 0xFF).astype(np.uint8)
    if _STARTS[short].any():
        kept = _PART[short]
        codes, short = _without_sequences(codes[kept], short[kept])
    return _draw(codes[_DRAWING[short]])


def _without_sequences(codes: Codes, short: Bytes) -> tuple[Codes, Bytes]:
    """Removes escape sequences; those that draw become their command.

    Every sequence is found from its introducer alone, so it takes no loop: none can hold the introducer of another, but
    for the strings, and what looks like a sequence in a string ends where the string ends or before.
    A string without its terminator stops at the end of its line, at the next ESC or at the end of the text.
    """
    starts_here = _STARTS[short]
    kept = ~_empty(short, starts_here)
    if not kept.all():
        codes, short, starts_here = codes[kept], short[kept], starts_here[kept]
    padded = np.concatenate((short, np.zeros(2, np.uint8)))  # NUL ends everything, and the text holds none
    starts = np.flatnonzero(starts_here)
    first, second = padded[starts], padded[starts + 1]
    escape = first == _ESC
    csi = (escape & (second == ord("["))) | (first == _CSI)
    string = (escape & _STRING_AFTER_ESC[second]) | _STRING_C1[first]
    body = starts + 1
    body += escape & (csi | string)

    at = np.where(csi, _next(~_PARAMETER[padded], body), body)
    digits = at - body
    at = _next(~_INTERMEDIATE[padded], at)
    final = padded[at]
    end = at + np.where(csi, _CSI_FINAL[final], _ESC_FINAL[final])
    if string.any():
        stop = _next(_STRING_STOP[padded], body)
        by = padded[stop]
        stop += (by == _BEL) | (by == _ST)
        stop += 2 * ((by == _ESC) & (padded[stop + 1] == ord("\\")))
        end = np.where(string, stop, end)

    reach = np.zeros(len(codes), np.int64)
    reach[starts] = end
    np.maximum.accumulate(reach, out=reach)
    kept = reach <= np.arange(len(codes), dtype=np.int64)

    digit = padded[body]
    plain = csi & (at == body + digits)
    none_or_0 = (digits == 0) | ((digits == 1) & (digit == ord("0")))
    command = np.zeros(len(starts), np.uint32)
    command[plain & _TO_COLUMN[final] & (none_or_0 | ((digits == 1) & (digit == ord("1"))))] = _CR
    command[plain & _ERASE[final] & none_or_0] = _ERASE_END
    command[plain & (final == ord("K")) & (digits == 1) & (digit == ord("2"))] = _ERASE_ALL
    command[(plain & _MOVE_FINAL[final]) | (escape & ~csi & ~string & (at == body) & (final == ord("M")))] = _MOVE
    if string.any():
        command[(starts > 0) & (reach[starts - 1] > starts)] = 0  # within a string
    drawing = starts[command != 0]
    codes[drawing] = command[command != 0]
    short[drawing] = np.minimum(codes[drawing], 0xFF)
    kept[drawing] = True
    return codes[kept], short[kept]


def _empty(short: Bytes, starts: Mask) -> Mask:
    """Introducers with nothing behind them but the next introducer: dropped at once, as an agent may print millions."""
    escape = short == _ESC
    empty: Mask = escape | (short == _CSI)
    empty[:-1] &= starts[1:]
    empty[-1] = False
    bracket = np.zeros(len(short), np.bool_)
    bracket[1:-1] = escape[:-2] & (short[1:-1] == ord("[")) & starts[2:]
    empty[:-1] |= bracket[1:]
    empty |= bracket
    return empty


def _next(wanted: Mask, places: Indices) -> Indices:
    """For each of the places the first one at or behind it where `wanted` holds; the last place always holds."""
    before = np.cumsum(wanted, dtype=np.int64)
    before -= wanted
    return np.flatnonzero(wanted)[before[places]]


def _draw(codes: Codes) -> str:
    """Gives each character its line and column; of those written to one cell the last stays, unless it was erased."""
    newline = codes == _LF
    back, home = codes == _BS, codes == _CR
    erase_all, move = codes == _ERASE_ALL, codes == _MOVE
    erase = erase_all | (codes == _ERASE_END)
    commands = back | home | erase | move
    if not commands.any():
        return _text(codes)
    write = ~(commands | newline)
    column = _columns(write, back, newline | home)
    line = np.cumsum(newline) - newline
    starts = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(newline) + 1))
    if erase.any():
        write &= column < _erased_from(np.where(erase_all, 0, column), erase, newline)
    cells = np.zeros(len(codes), np.uint32)
    cells[newline] = _LF
    cells[(starts[line] + column)[write]] = codes[write]  # of equal indices the last one counts
    shown = _text(cells[cells != 0])
    if not move.any():
        return shown
    drawn_over = np.zeros(len(starts), np.bool_)
    drawn_over[line[move]] = True
    return _collapse(shown, drawn_over)


def _columns(write: Mask, back: Mask, reset: Mask) -> Indices:
    """The cell in which each character finds the cursor: writes since the last reset less steps back, never below 0."""
    steps = write.astype(np.int64)
    steps -= back
    column = np.cumsum(steps) - steps
    piece: Indices = np.cumsum(reset, dtype=np.int64)
    piece -= reset
    column -= np.concatenate((np.zeros(1, np.int64), column[reset]))[piece]
    if back.any():
        piece *= len(write) + 1  # lowers each piece below all before it, so that one accumulation serves all
        column -= np.minimum.accumulate(column - piece) + piece
    return column


def _erased_from(column: Indices, erase: Mask, newline: Mask) -> Indices:
    """For each character the lowest column from which an erase behind it, in its line, cleared."""
    far = len(column) + 1
    line = np.cumsum(newline[::-1]) * far
    lowest: Indices = np.minimum.accumulate(np.where(erase, column, far)[::-1] - line)
    return (lowest + line)[::-1]


def _text(codes: Codes) -> str:
    return codes.tobytes().decode("utf-32-le")


_DIGITS = re.compile(r"[0-9]+")


def _collapse(text: str, drawn_over: Mask) -> str:
    if np.count_nonzero(drawn_over) <= SIMILAR_LINES:
        return text
    lines = text.split("\n")
    form: list[str | None] = list(_DIGITS.sub("0", text).split("\n"))
    for number in np.flatnonzero(~drawn_over).tolist():
        form[number] = None
    kept: list[str] = []
    at = 0
    for key, group in groupby(form):
        until = at + sum(1 for _ in group)
        if key is not None and until - at > SIMILAR_LINES:
            kept += (lines[at], f"… {until - at - 2} similar lines", lines[until - 1])
        else:
            kept += lines[at:until]
        at = until
    return "\n".join(kept)
