"""Rows of a data set on their way to two files: order, ids, tables, and the score of doing nothing clever.

Rows are ordered by a hash of what the agent sees of them. A seeded shuffle would be the answer key for anyone who knows
the seed and the order of the source (the published defect of AIRS-Bench's code retrieval task); this order says nothing
about labels.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any


def digest(*parts: str) -> str:
    """Returns the SHA-256 of some texts, in hexadecimal."""
    return hashlib.sha256("\x1f".join(parts).encode("utf-8")).hexdigest()


def ordered(rows: Iterable[Mapping[str, Any]], *, salt: str, label: str) -> list[dict[str, Any]]:
    """Puts rows into an order that depends on everything in them but the label, and gives each a random-looking `id`.

    Rows that agree in everything but the label get different ids and stand in the order of the source.
    """
    seen: Counter[str] = Counter()
    keyed = []
    for row in rows:
        content = json.dumps({name: value for name, value in row.items() if name != label}, sort_keys=True)
        seen[content] += 1
        key = digest(salt, content, str(seen[content]))
        keyed.append((key, {"id": digest("id", key)[:10], **row}))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], *, leave_out: str = "") -> None:
    """Writes rows as CSV with the header of the first; the column `leave_out` stays away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [name for name in rows[0] if name != leave_out]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([row[name] for name in names] for row in rows)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, leave_out: str = "") -> None:
    """Writes one JSON object a line; the key `leave_out` stays away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({name: value for name, value in row.items() if name != leave_out}) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_labels(labels: Path, rows: Sequence[Mapping[str, Any]], *, label: str) -> None:
    """Writes the label file of the grader: one column, in the order of the test rows."""
    write_csv(labels / "labels.csv", [{label: row[label]} for row in rows])


def best_constant_share(labels: Sequence[Any]) -> float:
    """Returns the accuracy of the best constant answer: what every submission of one value earns at most."""
    return Counter(labels).most_common(1)[0][1] / len(labels)


def best_constant_error(*, train: Sequence[float], test: Sequence[float]) -> float:
    """Returns the mean absolute error of the better of the training mean and median."""
    return min(fmean(abs(value - guess) for value in test) for guess in (fmean(train), median(train)))
