"""Trivial models of a file task, and the submissions they make: the best of them is where the reward begins.

A task names them (`baselines: [mean, median]`): `majority` is the most frequent label, `mean`, `median` and `last` are
of the training values, and a number or text is that constant. `worst` of a task is the raw score of the best one.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from research_gym.envs.tables import Table, tables
from research_gym.errors import TaskFormatError
from research_gym.task import SubmissionGrading, Task
from research_gym.task_grading import Column

USUAL: Mapping[str, tuple[str | int, ...]] = {
    "accuracy": ("majority",),
    "mae": ("mean", "median"),
    "rmse": ("mean", "median"),
    "spearman": (0,),
}
"""Metric -> the baselines of a task that names none."""

_MAKE: Mapping[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "median": median,
    "last": lambda values: values[-1],
}
_NAMES = ("majority", *_MAKE)


def scored_column(grading: SubmissionGrading) -> Column:
    """The one column that is compared with labels."""
    return next(column for column in grading.columns if column.labels is not None)


def read_labels(task: Task, path: Path) -> list[str]:
    """The label column of a label file, as text.

    Raises:
        TaskFormatError: the file is no table with that column.
    """
    assert isinstance(task.grading, SubmissionGrading)
    name = scored_column(task.grading).labels
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise TaskFormatError(f"{task.id}: labels: expected a CSV file, found: {error}") from error
    if not rows or name not in rows[0]:
        found = list(rows[0]) if rows else []
        raise TaskFormatError(f"{task.id}: labels: expected rows with a column {name!r}, found {found}")
    return [row[name] or "" for row in rows]


def predictions(task: Task, *, labels: Sequence[str], data: Path) -> dict[str, list[str]]:
    """Baseline -> what it predicts for each test row.

    Args:
        task: a file task.
        labels: the labels of the test rows.
        data: the agent's data folder; training values come from its first table with `train` in its path.

    Raises:
        TaskFormatError: a named baseline is unknown, or there are no training values to compute it from.
    """
    assert isinstance(task.grading, SubmissionGrading)
    names = task.baselines or USUAL[task.grading.metric]
    column = scored_column(task.grading)
    history: list[list[float]] | None = None
    found: dict[str, list[str]] = {}
    for name in names:
        if name == "majority":
            found[name] = [Counter(labels).most_common(1)[0][0]] * len(labels)
        elif isinstance(name, str) and name in _MAKE:
            history = history or _histories(task, column=column, rows=len(labels), data=data)
            make = _MAKE[name]
            computed = {id(values): _number(make(values), column) for values in history}
            found[name] = [computed[id(values)] for values in history]
        elif isinstance(name, (int, float)) and not isinstance(name, bool):
            found[str(name)] = [_number(name, column)] * len(labels)
        else:
            raise TaskFormatError(
                f"{task.path}: baselines: expected one of {', '.join(_NAMES)} or a number, found {name!r}"
            )
    return found


def submission(grading: SubmissionGrading, values: Sequence[str]) -> bytes:
    """A CSV file with these values in the scored column and something allowed in the others."""
    scored = scored_column(grading)
    fillers = {column.name: _filler(column) for column in grading.columns}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in grading.columns])
    writer.writerows(
        [value if column is scored else fillers[column.name] for column in grading.columns] for value in values
    )
    return text.getvalue().encode("utf-8")


def best_raw(grading: SubmissionGrading, *, labels: Sequence[str], found: Mapping[str, Sequence[str]]) -> float:
    """The best raw score that one of the predictions gets.

    Raises:
        SubmissionInvalid: the labels or predictions are not of the declared type.
    """
    from research_gym.grading import submission as reader
    from research_gym.grading.metrics import METRICS
    from research_gym.grading.schema import Column as Declared

    scored = scored_column(grading)
    declared = [Declared(column.name, column.dtype) for column in grading.columns]  # type: ignore[arg-type]  # a Dtype
    parsed = [
        reader.read(submission(grading, values), columns=declared, rows=len(labels))[scored.name]
        for values in (labels, *found.values())
    ]
    metric = METRICS[grading.metric]
    scores = [metric.function(labels=parsed[0], predictions=values) for values in parsed[1:]]
    return min(scores) if metric.lower_is_better else max(scores)


def _histories(task: Task, *, column: Column, rows: int, data: Path) -> list[list[float]]:
    """The training values that count for each test row: of the label column, or of the column that the row names."""
    known = tables(data)
    train = _with_word(known, "train")
    test = _with_word(known, "test")
    for name in (column.labels, column.name):
        if train is not None and name in train:
            return [_numbers(train[name])] * rows
    if train is not None and test is not None and len(test.get("series", ())) == rows:
        series = {name: _numbers(train.get(name, [])) for name in set(test["series"])}
        if all(series.values()):
            return [series[name] for name in test["series"]]
    raise TaskFormatError(
        f"{task.path}: baselines: expected a training table with the column {column.labels!r} (a CSV or JSON lines "
        "file with 'train' in its path below the data folder), found none; name a number as the baseline instead"
    )


def _with_word(known: Mapping[str, Table], word: str) -> Table | None:
    return next((table for name, table in known.items() if word in name.lower()), None)


def _numbers(cells: Sequence[str]) -> list[float]:
    return [float(cell) for cell in cells if cell.strip()]


def _number(value: float, column: Column) -> str:
    return str(round(value)) if column.dtype == "int" else repr(float(value)) if column.dtype == "float" else str(value)


def _filler(column: Column) -> Any:
    if column.choices:
        return column.choices[0]
    if column.dtype in ("int", "float"):
        return next((bound for bound in (column.low, column.high) if bound is not None), 0)
    return "x" if column.dtype == "str" else "0"
