"""Reads the tables that a task's data hold: CSV, TSV, JSON lines and JSON, all cells as text."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, TypeAlias

Table: TypeAlias = dict[str, list[str]]
"""Column -> its cells, all columns equally long."""

MAX_TABLE_BYTES = 256 << 20
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_table(path: Path) -> Table | None:
    """Reads a file as a table; `None` if it is none: another kind, larger than 256 MiB, not UTF-8, or ragged JSON."""
    suffix = path.suffix.lower()
    if suffix not in (*_SEPARATORS, ".jsonl", ".json") or path.stat().st_size > MAX_TABLE_BYTES:
        return None
    try:
        if suffix in _SEPARATORS:
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.reader(file, delimiter=_SEPARATORS[suffix]))
            return _from_rows(rows)
        text = path.read_text("utf-8")
        values = json.loads(text) if suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
    except (ValueError, csv.Error, RecursionError):
        return None
    return _from_objects(values)


def tables(folder: Path) -> dict[str, Table]:
    """All tables below a folder, by path relative to it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        table = read_table(path) if path.is_file() else None
        if table:
            found[path.relative_to(folder).as_posix()] = table
    return found


def _from_rows(rows: list[list[str]]) -> Table | None:
    if len(rows) < 2:
        return None
    head, body = rows[0], [row for row in rows[1:] if row]
    width = len(head)
    return {name: [row[at] if at < len(row) else "" for row in body] for at, name in enumerate(head[:width])}


def _from_objects(values: Any) -> Table | None:
    if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
        return None
    names = list(dict.fromkeys(str(name) for value in values for name in value))
    return {name: [_text(value.get(name)) for value in values] for name in names}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
