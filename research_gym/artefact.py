"""Checks of files an agent made: there, of the right form, with a value in range. Looked at by the host, never run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from research_gym.errors import TaskFormatError
from research_gym.pattern import compile_pattern

Format = Literal["json", "csv", "text"]

MAX_JSON_BYTES = 1 << 20
"""Largest JSON artefact: parsed, a file of brackets takes thirty times its size."""
MAX_TABLE_BYTES = 16 << 20
"""Largest CSV or text artefact."""

_KEYS_OF: dict[str | None, frozenset[str]] = {
    None: frozenset(),
    "json": frozenset({"key", "min", "max"}),
    "csv": frozenset({"rows", "columns"}),
    "text": frozenset({"contains"}),
}


@dataclass(frozen=True)
class ArtefactCheck:
    """What a file must be for its landmark. Without a format it only has to be there, as a regular file.

    Raises:
        TaskFormatError: a condition does not belong to the format, or has the wrong type; the message names it.
    """

    path: str
    """Relative to the work directory."""
    format: Format | None = None
    key: str | None = None
    """json: a key that must be there; dots go down, a number picks an element of a list."""
    min: float | None = None
    """json: smallest number under `key`, inclusive."""
    max: float | None = None
    """json: largest number under `key`, inclusive."""
    rows: int | None = None
    """csv: exact number of rows below the header."""
    columns: tuple[str, ...] | None = None
    """csv: names that the header must hold."""
    contains: str | None = None
    """text: an RE2 pattern that one line must match."""

    def __post_init__(self) -> None:
        where = f"artefact {self.path!r}"
        if self.format not in _KEYS_OF:
            raise TaskFormatError(f"{where}: format: expected json, csv or text, found {self.format!r}")
        for name in ("key", "min", "max", "rows", "columns", "contains"):
            if getattr(self, name) is not None and name not in _KEYS_OF[self.format]:
                owner = next(form for form, names in _KEYS_OF.items() if name in names)
                raise TaskFormatError(f"{where}: {name}: belongs to format {owner!r}, found format {self.format!r}")
        for name in ("min", "max"):
            bound = getattr(self, name)
            if bound is not None and not _is_number(bound):
                raise TaskFormatError(f"{where}: {name}: expected a finite number, found {bound!r}")
        if self.key is None and (self.min is not None or self.max is not None):
            raise TaskFormatError(f"{where}: min and max need a key to look at")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise TaskFormatError(f"{where}: min {self.min} is above max {self.max}: nothing could pass")
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 0):
            raise TaskFormatError(f"{where}: rows: expected an integer >= 0, found {self.rows!r}")
        if self.contains is not None:
            compile_pattern(self.contains)

    @property
    def needs_content(self) -> bool:
        """Whether the file has to be read; else it is enough that it is there."""
        return self.format is not None


def check_artefact(check: ArtefactCheck, data: bytes | None) -> bool:
    """Whether a file passes. Total: any bytes give an answer, in time and memory bounded by the size limits.

    Args:
        data: the file's content; `None` where it was not read, which passes only a check that needs no content.

    Example:
        >>> check = ArtefactCheck("metrics.json", format="json", key="test.accuracy", min=0.8)
        >>> check_artefact(check, b'{"test": {"accuracy": 0.91}}'), check_artefact(check, b'{"test": 0.9')
        (True, False)
    """
    if check.format is None:
        return True
    if data is None:
        return False
    if len(data) > (MAX_JSON_BYTES if check.format == "json" else MAX_TABLE_BYTES):
        return False
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    if check.format == "json":
        return _json_passes(check, text)
    if check.format == "csv":
        return _csv_passes(check, text)
    return check.contains is None or compile_pattern(check.contains).found_in(text.encode("utf-8"))


def _json_passes(check: ArtefactCheck, text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if check.key is None:
        return True
    found = list(_at(value, check.key))
    if not found:
        return False
    if check.min is None and check.max is None:
        return True
    number = found[0]
    if not _is_number(number):
        return False
    return (check.min is None or number >= check.min) and (check.max is None or number <= check.max)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _at(value: Any, key: str) -> Iterator[Any]:
    """Yields what stands under a dotted key; a key that itself holds dots is found too."""
    if isinstance(value, dict) and key in value:
        yield value[key]
        return
    for part in key.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 9 and int(part) < len(value):
            value = value[int(part)]
        else:
            return
    yield value


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _csv_passes(check: ArtefactCheck, text: str) -> bool:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, None)
        if not header or (check.columns is not None and not set(check.columns) <= set(header)):
            return False
        count = 0
        for row in reader:
            count += 1
            if len(row) != len(header) or (check.rows is not None and count > check.rows):
                return False
    except csv.Error:
        return False
    return check.rows is None or count == check.rows
