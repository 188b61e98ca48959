"""Reads a submitted CSV file into typed columns, or says with a stable code which rule it breaks. Never sees a label.

Row order is the join key, so nothing may be guessed: a reader that skips blank lines, takes an index column for labels
or turns `NA` into NaN (as `pandas.read_csv` does) scores a right file wrong or a wrong one silently. Such files are
refused with the row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from research_gym.grading import table
from research_gym.grading.schema import CODES, MAX_SUBMISSION_BYTES, Column, SubmissionInvalid, quote

__all__ = ["CODES", "MAX_SUBMISSION_BYTES", "Column", "SubmissionInvalid", "decode", "read"]

Cells: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64] | list[Any]

_FLOAT = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?", re.ASCII)
_INT = re.compile(r"[+-]?\d++(?:\.0*+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_INT_DIGITS = 18


def read(
    data: bytes, *, columns: Sequence[Column], rows: int | None, max_bytes: int = MAX_SUBMISSION_BYTES
) -> dict[str, Cells]:
    """Returns each declared column: an int64 or float64 array of shape `(rows,)`, or a list of str or JSON values.

    Accepted: UTF-8 with or without BOM, `\\n` or `\\r\\n`, newlines at the end, quoted cells, columns in any order.
    All else that differs from the declaration is refused; `CODES` lists how. Linear in the size of the file.

    Args:
        data: the bytes of the file, as the host read them.
        columns: what the header must hold.
        rows: how many rows must follow it; `None` accepts any number (for label files).
        max_bytes: size limit.

    Raises:
        SubmissionInvalid: the file breaks a rule. The only exception that any bytes can cause.
        ValueError: `columns` is empty or names a column twice.

    Example:
        >>> read(b"label\\n7\\n3\\n", columns=[Column("label", "int")], rows=2)["label"].tolist()
        [7, 3]
    """
    names = [column.name for column in columns]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"columns: expected at least one name and each once, found {names}")
    cells = table.split(decode(data, max_bytes=max_bytes), names=names, rows=rows)
    result: dict[str, Cells] = {}
    for column, values in zip(columns, cells, strict=True):
        result[column.name] = _READERS[column.dtype](column, values)
        values.clear()
    return result


def decode(data: bytes, *, max_bytes: int = MAX_SUBMISSION_BYTES) -> str:
    """Returns the text of a file without its BOM.

    Raises:
        SubmissionInvalid: too_large, encoding, nul, empty.
    """
    if len(data) > max_bytes:
        raise SubmissionInvalid("too_large", f"expected at most {max_bytes} bytes, found {len(data)}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SubmissionInvalid("encoding", "expected UTF-8 text, found the byte order mark of UTF-16")
    if b"\0" in data:
        raise SubmissionInvalid("nul", f"expected text without NUL, found one at byte {data.index(0)}")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise SubmissionInvalid("encoding", f"expected UTF-8 text, found {found} ({error.reason})") from None
    if not text.strip(" \t\r\n"):
        raise SubmissionInvalid("empty", f"expected a header and rows, found a file of {len(data)} bytes without text")
    return text


def _ints(column: Column, cells: list[str]) -> Cells:
    _each(column, cells, _INT, "an integer")
    if max(map(len, cells), default=0) > _INT_DIGITS:
        for row, cell in enumerate(cells, 1):
            if len(cell.partition(".")[0].lstrip("+-").lstrip("0")) > _INT_DIGITS:
                raise _cell_error("range", column, row, f"an integer of at most {_INT_DIGITS} digits", cell)
        cells = [_short(cell) for cell in cells]
    values = np.array([int(cell.partition(".")[0]) for cell in cells], dtype=np.int64)
    _check_range(column, values)
    if column.choices is not None:
        wrong = np.flatnonzero(~np.isin(values, np.array(column.choices, dtype=np.int64)))
        if len(wrong):
            raise _not_a_choice(column, int(wrong[0]) + 1, str(values[wrong[0]]))
    return values


def _short(cell: str) -> str:
    """Drops leading zeros, which count against Python's limit on the digits of an int."""
    whole = cell.partition(".")[0]
    return ("-" if whole.startswith("-") else "") + (whole.lstrip("+-").lstrip("0") or "0")


def _floats(column: Column, cells: list[str]) -> Cells:
    _each(column, cells, _FLOAT, "a finite number")
    values = np.array([float(cell) for cell in cells], dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise _cell_error("finite", column, int(wrong[0]) + 1, "a finite number", cells[wrong[0]])
    _check_range(column, values)
    return values


def _texts(column: Column, cells: list[str]) -> Cells:
    if column.choices is not None:
        allowed = set(column.choices)
        for row, cell in enumerate(cells, 1):
            if cell not in allowed:
                raise _not_a_choice(column, row, cell)
    return list(cells)


def _jsons(column: Column, cells: list[str]) -> Cells:
    values: list[Any] = []
    for row, cell in enumerate(cells, 1):
        try:
            values.append(json.loads(cell, parse_constant=_refuse, parse_float=_finite))
        except _NotFinite:
            raise _cell_error("finite", column, row, "JSON with finite numbers", cell) from None
        except (ValueError, RecursionError):
            raise _cell_error("json", column, row, "one JSON value", cell) from None
    return values


_READERS = {"int": _ints, "float": _floats, "str": _texts, "json": _jsons}


class _NotFinite(Exception):
    """A JSON cell holds NaN, an infinity, or a number that overflows to one."""


def _refuse(constant: str) -> float:
    raise _NotFinite(constant)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFinite(text)
    return value


def _each(column: Column, cells: list[str], pattern: re.Pattern[str], expected: str) -> None:
    """Checks the spelling of every cell of a number column."""
    fits = pattern.fullmatch
    for row, cell in enumerate(cells, 1):
        if fits(cell) is None:
            code = "finite" if _NOT_FINITE.fullmatch(cell) else "dtype"
            raise _cell_error(code, column, row, expected, cell)


def _check_range(column: Column, values: npt.NDArray[Any]) -> None:
    low = -math.inf if column.low is None else column.low
    high = math.inf if column.high is None else column.high
    wrong = np.flatnonzero((values < low) | (values > high))
    if len(wrong):
        expected = f"a number from {low} to {high}"
        raise _cell_error("range", column, int(wrong[0]) + 1, expected, str(values[wrong[0]]))


def _not_a_choice(column: Column, row: int, cell: str) -> SubmissionInvalid:
    choices = column.choices or ()
    shown = ", ".join(map(repr, choices[:20])) + (", ..." if len(choices) > 20 else "")
    return _cell_error("choices", column, row, f"one of {shown}", cell)


def _cell_error(code: str, column: Column, row: int, expected: str, cell: str) -> SubmissionInvalid:
    found = quote(cell) if cell else "an empty cell"
    return SubmissionInvalid(code, f"row {row}, column {column.name!r}: expected {expected}, found {found}")
