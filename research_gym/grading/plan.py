"""The `grading` part of a task, checked: what the grader needs to know, as plain data that travels to its process.

A broken plan is the task's fault, so it raises `GraderError`; the agent cannot cause it and cannot mend it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from research_gym.errors import GraderError
from research_gym.grading.answer import MAX_DEPTH, Mode, Tolerance, too_deep
from research_gym.grading.schema import Column

ANSWER_METRIC = "output_match"
"""SUPER's name for the share of an answer that matches."""


@dataclass(frozen=True)
class SubmissionPlan:
    """How to grade a file submission: its columns, the one that is scored, the metric and the two ends of the
    reward."""

    columns: tuple[Column, ...]
    scored: Column
    """The column that is compared with labels."""
    labels: str
    """Name of its column in the label file."""
    metric: str
    lower_is_better: bool
    worst: float
    """Raw score of the best trivial model: earns 0."""
    optimal: float
    """Raw score that earns 1."""


@dataclass(frozen=True)
class AnswerPlan:
    """How to grade a JSON answer."""

    gold: Any
    tolerance: Tolerance
    mode: Mode
    """Which of the two scorers gives the value; both are reported."""


def make(grading: Mapping[str, Any]) -> SubmissionPlan | AnswerPlan:
    """Checks the `grading` mapping of a task file and returns the plan. Keys it does not need (`file`) are ignored.

    Raises:
        GraderError: a key is missing or wrong; the message names it and says what is expected.
    """
    kind = grading.get("kind")
    try:
        if kind == "submission":
            return _submission(grading)
        if kind == "answer":
            return _answer(grading)
    except GraderError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise GraderError(f"grading of the task file: {error}") from error
    raise GraderError(f"grading.kind of the task file: expected 'submission' or 'answer', found {kind!r}")


def _submission(grading: Mapping[str, Any]) -> SubmissionPlan:
    from research_gym.grading.metrics import (
        METRICS,
    )  # numpy: not for answers, whose grade takes a fraction of its import

    entries = _need(grading, "columns")
    columns = tuple(Column.of(entry) for entry in entries)
    if len({column.name for column in columns}) != len(columns):
        raise GraderError(f"grading.columns: a name stands twice: {[column.name for column in columns]}")
    scored = [(column, entry["labels"]) for column, entry in zip(columns, entries, strict=True) if entry.get("labels")]
    if len(scored) != 1:
        raise GraderError(f"grading.columns: expected exactly one column with `labels`, found {len(scored)}")
    column, labels = scored[0]
    name = _need(grading, "metric")
    if name not in METRICS:
        raise GraderError(f"grading.metric: expected one of {', '.join(METRICS)}, found {name!r}")
    metric = METRICS[name]
    if column.dtype not in metric.dtypes:
        expected = " or ".join(sorted(metric.dtypes))
        raise GraderError(
            f"grading.metric {name!r} needs a column of dtype {expected}; {column.name!r} is {column.dtype}"
        )
    lower = grading.get("lower_is_better")
    if lower is not None and lower is not metric.lower_is_better:
        raise GraderError(f"grading.lower_is_better: {name} has {metric.lower_is_better}, found {lower!r}")
    worst = _number(grading, "worst", None)
    optimal = _number(grading, "optimal", metric.optimal)
    if (worst < optimal) if metric.lower_is_better else (worst > optimal):
        raise GraderError(f"grading.worst: {worst} is better than grading.optimal, {optimal}, for {name}")
    return SubmissionPlan(columns, column, str(labels), name, metric.lower_is_better, worst, optimal)


def _answer(grading: Mapping[str, Any]) -> AnswerPlan:
    if "gold" not in grading:
        raise GraderError("grading.gold of the task file is missing")
    gold = grading["gold"]
    if too_deep(gold):
        raise GraderError(f"grading.gold: expected nesting of at most {MAX_DEPTH}, found more")
    tolerance = Tolerance.of(grading.get("tolerance"))
    unknown = tolerance.unknown_paths(gold)
    if unknown:
        raise GraderError(f"grading.tolerance.keys: {unknown} name nothing in grading.gold")
    mode = grading.get("mode") or "strict"
    if mode not in ("strict", "upstream"):
        raise GraderError(f"grading.mode: expected 'strict' or 'upstream', found {mode!r}")
    return AnswerPlan(gold, tolerance, "upstream" if mode == "upstream" else "strict")


def _need(grading: Mapping[str, Any], key: str) -> Any:
    if grading.get(key) is None:
        raise GraderError(f"grading.{key} of the task file is missing")
    return grading[key]


def _number(grading: Mapping[str, Any], key: str, default: float | None) -> float:
    value = grading.get(key)
    value = default if value is None else value
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise GraderError(f"grading.{key}: expected a finite number, found {value!r}")
    return float(value)
