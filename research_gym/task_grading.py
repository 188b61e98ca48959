"""The `grading` part of a task: a submission file against labels, or a JSON answer against the gold one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from research_gym.task_file import Node

Shape = Literal["submission", "answer"]

METRICS = {"accuracy": False, "mae": True, "rmse": True, "spearman": False}
"""Metric -> whether lower is better; `research_gym.grading.metrics` computes them."""


@dataclass(frozen=True)
class Column:
    """One column of a submission file."""

    name: str
    dtype: str
    """`int`, `float`, `str` or `json`."""
    labels: str | None = None
    """The column of the label file that it is compared with; exactly one column of a task has it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[int | str, ...] | None = None

    def to_request(self) -> dict[str, Any]:
        """The entry of the grader's request."""
        found: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "labels": self.labels}
        found |= {"low": self.low, "high": self.high, "choices": self.choices and list(self.choices)}
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class SubmissionGrading:
    """A CSV file graded against labels."""

    file: str
    """Relative to the work directory."""
    columns: tuple[Column, ...]
    metric: str
    lower_is_better: bool
    worst: float | None
    """Raw score that earns 0; `None`: the preparer found it out."""
    optimal: float | None = None
    """Raw score that earns 1; `None`: the metric's best."""

    def to_request(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What the grader's process is given; `facts` of the prepared data fill what the task file leaves open."""
        worst = facts.get("worst") if self.worst is None else self.worst
        optimal = facts.get("optimal") if self.optimal is None else self.optimal
        request = {
            "kind": "submission",
            "file": self.file,
            "columns": [column.to_request() for column in self.columns],
            "metric": self.metric,
            "lower_is_better": self.lower_is_better,
            "worst": worst,
            "optimal": optimal,
        }
        return {key: value for key, value in request.items() if value is not None}


@dataclass(frozen=True)
class AnswerGrading:
    """A JSON answer compared with the gold one."""

    gold: Any = None
    """The right answer; `None`: the preparer found it out."""
    tolerance: Mapping[str, Any] = field(default_factory=dict)
    """`{default, relative, keys: {dotted path: absolute tolerance}}`."""
    mode: Literal["strict", "upstream"] = "strict"

    def to_request(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What the grader's process is given; `facts` of the prepared data fill what the task file leaves open."""
        gold = facts.get("gold") if self.gold is None else self.gold
        return {"kind": "answer", "gold": gold, "tolerance": dict(self.tolerance), "mode": self.mode}


Grading: TypeAlias = SubmissionGrading | AnswerGrading


def read_grading(node: Node, shape: Shape) -> Grading:
    """Reads and checks the `grading` mapping of a task file.

    Raises:
        TaskFormatError: a key is missing, unknown or wrong.
    """
    kind = node.entries().get("kind")
    if kind is None:
        node.fail("the key 'kind'", found="none")
    if kind.choice("submission", "answer") != shape:
        kind.fail(f"{shape!r}, the task's shape")
    return _answer(node) if shape == "answer" else _submission(node)


def _answer(node: Node) -> AnswerGrading:
    part = node.mapping(required=("kind",), optional=("gold", "tolerance", "mode"))
    tolerance: dict[str, Any] = {}
    if "tolerance" in part:
        fields = part["tolerance"].mapping(optional=("default", "relative", "keys"))
        tolerance = {key: _positive(fields[key]) for key in ("default", "relative") if key in fields}
        if "keys" in fields:
            tolerance["keys"] = {key: _positive(item) for key, item in fields["keys"].entries().items()}
    mode = part["mode"].choice("strict", "upstream") if "mode" in part else "strict"
    return AnswerGrading(
        part["gold"].json() if "gold" in part else None, tolerance, "upstream" if mode == "upstream" else "strict"
    )


def _positive(node: Node) -> float:
    number = node.number()
    if number < 0:
        node.fail("a number >= 0")
    return number


def _submission(node: Node) -> SubmissionGrading:
    part = node.mapping(
        required=("kind", "file", "columns", "metric"), optional=("lower_is_better", "worst", "optimal")
    )
    columns = tuple(_column(item) for item in part["columns"].items())
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        part["columns"].fail("columns of different names", found=str(names))
    scored = [column for column in columns if column.labels is not None]
    if len(scored) != 1:
        part["columns"].fail("exactly one column with 'labels'", found=str(len(scored)))
    metric = part["metric"].choice(*METRICS)
    lower = part["lower_is_better"].flag() if "lower_is_better" in part else METRICS[metric]
    if lower is not METRICS[metric]:
        part["lower_is_better"].fail(f"{str(METRICS[metric]).lower()} for {metric}")
    worst, optimal = (part[key].number() if key in part else None for key in ("worst", "optimal"))
    if worst is not None and optimal is not None and (worst <= optimal if lower else worst >= optimal):
        part["worst"].fail(f"a score that is worse than optimal, {optimal:g}")
    return SubmissionGrading(part["file"].relative_path(), columns, metric, lower, worst, optimal)


def _column(node: Node) -> Column:
    part = node.mapping(required=("name", "dtype"), optional=("labels", "low", "high", "choices"))
    dtype = part["dtype"].choice("int", "float", "str", "json")
    choices: tuple[int | str, ...] | None = None
    if "choices" in part:
        kind = {"int": int, "str": str}.get(dtype)
        choices = tuple(item.value for item in part["choices"].items())
        if kind is None or not choices or any(type(choice) is not kind for choice in choices):
            part["choices"].fail("values of an int or str column")
    if dtype not in ("int", "float") and ("low" in part or "high" in part):
        node.fail("low and high on int and float columns only", found=f"dtype {dtype}")
    return Column(
        name=part["name"].line(),
        dtype=dtype,
        labels=part["labels"].line() if "labels" in part else None,
        low=part["low"].number() if "low" in part else None,
        high=part["high"].number() if "high" in part else None,
        choices=choices,
    )
