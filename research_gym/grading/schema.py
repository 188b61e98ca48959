"""What a file submission must look like, and the stable codes of what can be wrong with one. No labels, no numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Dtype = Literal["int", "float", "str", "json"]

MAX_SUBMISSION_BYTES = 64 << 20
"""Largest file that is read: 64 MiB, as in the OpenReward card of AIRS-Bench (largest honest files there: about 14
MB)."""

CODES: Mapping[str, str] = {
    "missing": "there is no such file, or no answer was given",
    "not_regular": "the path is not a regular file",
    "too_large": "the file is over the size limit",
    "empty": "the file holds nothing",
    "nul": "the file holds a NUL byte",
    "encoding": "the file is not UTF-8",
    "syntax": "the quoting or the line ends are not CSV",
    "columns": "the header has too many or too few columns",
    "header": "the header names other columns than declared",
    "rows": "there are too many or too few rows",
    "fields": "a row has too many or too few fields, or is blank",
    "dtype": "a cell is not of its column's type",
    "finite": "a number is NaN or infinite, or so large that the metric overflows",
    "range": "a number is outside its column's range",
    "choices": "a cell is not one of its column's values",
    "json": "a cell or an answer is not JSON",
    "memory": "reading it takes more memory than the grader has",
}
"""Every code a refusal can carry. Codes are part of the interface and stay; messages may change."""


class SubmissionInvalid(ValueError):
    """The submission breaks its declared format: the agent's to mend, and computed without looking at any label."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """One of `CODES`."""
        self.message = message
        """What was expected, what was found and in which row; at most 100 characters of the file are quoted,
        escaped."""


@dataclass(frozen=True)
class Column:
    """One declared column of the submission.

    Raises:
        ValueError: the dtype is unknown, a bound is not finite or does not fit the dtype, or the name is not a single
        line.
    """

    name: str
    """Exact header text; columns may stand in any order in the file."""
    dtype: Dtype
    """`int`: integral text (`4`, `-4`, `4.0`, never `3.99` or `4e0`), at most 18 digits. `float`: a finite decimal
    number. `str`: any text, kept as it is (`NA`, `None` and `007` too). `json`: one JSON value a cell, all numbers in
    it finite."""
    low: float | None = None
    """Smallest allowed number, inclusive."""
    high: float | None = None
    """Largest allowed number, inclusive."""
    choices: tuple[int | str, ...] | None = None
    """The allowed values of an `int` or `str` column."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or any(sign in self.name for sign in "\r\n\0"):
            raise ValueError(f"column name: expected one line of text, found {self.name!r}")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"column {self.name!r}: dtype {self.dtype!r} is none of {', '.join(get_args(Dtype))}")
        for bound in (self.low, self.high):
            if bound is not None and (
                self.dtype not in ("int", "float")
                or isinstance(bound, bool)
                or not isinstance(bound, (int, float))
                or not math.isfinite(bound)
            ):
                raise ValueError(
                    f"column {self.name!r}: low and high are finite numbers of an int or float column, found {bound!r}"
                )
        if self.choices is not None:
            kind = {"int": int, "str": str}.get(self.dtype)
            if kind is None or not self.choices or any(type(choice) is not kind for choice in self.choices):
                raise ValueError(
                    f"column {self.name!r}: choices are values of an int or str column, found {self.choices!r}"
                )

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Column:
        """Builds it from a task file's entry; keys that are not fields (`labels`) are left to the caller.

        Raises:
            ValueError: as the class, or `name` or `dtype` is missing.
        """
        if "name" not in value or "dtype" not in value:
            raise ValueError(f"column: expected the keys name and dtype, found {sorted(map(str, value))}")
        choices = value.get("choices")
        if choices is not None and not isinstance(choices, (list, tuple)):
            raise ValueError(f"column {value['name']!r}: choices: expected a list, found {type(choices).__name__}")
        return cls(
            name=value["name"],
            dtype=value["dtype"],
            low=value.get("low"),
            high=value.get("high"),
            choices=None if choices is None else tuple(choices),
        )


def quote(text: str) -> str:
    """Shows a piece of the agent's file in a message: at most 100 characters, control characters escaped."""
    shown = repr(text[:100])
    return shown if len(text) <= 100 and len(shown) <= 100 else shown[:90] + "... (cut)"
