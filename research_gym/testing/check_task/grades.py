"""What the grader says on the host: to the labels themselves, to trivial models, and to files that break the format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from research_gym.datastore import agent_dir, label_file, read_facts
from research_gym.envs import baselines
from research_gym.envs.judge import Judge
from research_gym.grading.metrics import METRICS
from research_gym.grading.score import Score
from research_gym.sandbox.waiting import drive
from research_gym.task import AnswerGrading, SubmissionGrading, Task

WORST_RELATIVE = 1e-5
"""How near `worst` must be to the best trivial model (the published bounds of AIRS-Bench are rounded so)."""
_NONSENSE = "not-a-value"


@dataclass(frozen=True)
class Bounds:
    """The ends of the reward."""

    worst: float | None
    optimal: float | None


def bounds(task: Task) -> Bounds:
    """The raw scores that earn 0 and 1; an answer has none but its own share."""
    if isinstance(task.grading, AnswerGrading):
        return Bounds(None, 1.0)
    request = task.grading.to_request(read_facts(task.id))
    return Bounds(request.get("worst"), request.get("optimal", METRICS[task.grading.metric].optimal))


def grade(task: Task, *, data: bytes | None = None, answer: Any = None) -> Score:
    """Grades as an episode does, in the grader's own process.

    Raises:
        GraderError: the grader or its labels are broken.
    """
    return drive(Judge(task).grade(answer=answer, data=data))


def gold(task: Task) -> Score:
    """The grade of the labels, or of the gold answer."""
    if isinstance(task.grading, AnswerGrading):
        return grade(task, answer=gold_answer(task))
    return grade(task, data=baselines.submission(task.grading, labels(task)))


def labels(task: Task) -> list[str]:
    """The label column of a prepared file task."""
    return baselines.read_labels(task, label_file(task.id))


def gold_answer(task: Task) -> Any:
    """The gold answer of an answer task."""
    assert isinstance(task.grading, AnswerGrading)
    return task.grading.to_request(read_facts(task.id))["gold"]


def trivial(task: Task) -> dict[str, Score]:
    """Trivial model -> its grade. For an answer: its form with zeros and empty text."""
    if isinstance(task.grading, AnswerGrading):
        return {"empty form": grade(task, answer=_emptied(gold_answer(task)))}
    found = baselines.predictions(task, labels=labels(task), data=agent_dir(task.id))
    return {name: grade(task, data=baselines.submission(task.grading, values)) for name, values in found.items()}


def trivial_failures(task: Task, scores: Mapping[str, Score]) -> Iterator[str]:
    """What is wrong with the reward of trivial models, and with `worst`."""
    for name, score in scores.items():
        if not score.valid:
            yield f"trivial: {name}: the grader refuses it ({score.reason}): {score.message}"
        elif score.value > WORST_RELATIVE:
            yield f"trivial: {name}: expected reward 0, found {score.value:.6g} (raw {score.raw:.6g})"
    if isinstance(task.grading, SubmissionGrading):
        raws = [score.raw for score in scores.values() if score.raw is not None]
        worst = bounds(task).worst
        if raws and worst is not None:
            best = min(raws) if task.grading.lower_is_better else max(raws)
            if not math.isclose(best, worst, rel_tol=WORST_RELATIVE, abs_tol=1e-12):
                names = ", ".join(scores)
                yield f"trivial: worst: expected {best:.8g}, the score of the best of {names}, found {worst:.8g}"


def defect_failures(task: Task) -> Iterator[str]:
    """Submissions that break the format, each of which must be refused with its code."""
    if isinstance(task.grading, AnswerGrading):
        score = grade(task, answer=None)
        if score.reason != "missing":
            yield f"defects: no answer: expected the code missing, found {score.reason or 'a grade'}"
        empties: tuple[Any, ...] = ([], {}, "", _NONSENSE, 0)
        for answer in empties:
            score = grade(task, answer=answer)
            if score.value != 0.0:
                yield f"defects: the answer {answer!r}: expected 0, found {score.value:.6g}"
        return
    for name, data, codes in _defects(task, task.grading):
        score = grade(task, data=data)
        if score.reason not in codes:
            expected = " or ".join(codes)
            yield f"defects: {name}: expected the code {expected}, found {score.reason or f'the grade {score.value:g}'}"


def _defects(task: Task, grading: SubmissionGrading) -> Iterator[tuple[str, bytes | None, tuple[str, ...]]]:
    values = labels(task)
    whole = baselines.submission(grading, values)
    head, _, body = whole.partition(b"\n")
    first = baselines.submission(grading, values[:1]).partition(b"\n")[2]
    yield "no file", None, ("missing",)
    yield "an empty file", b"", ("empty",)
    yield "no header", body, ("header", "columns")
    yield "a row missing", baselines.submission(grading, values[:-1]), ("rows",)
    yield "a row too many", whole + first, ("rows",)
    yield "a field too many", head + b"\n" + first.rstrip(b"\n") + b",0\n" + body[len(first) :], ("fields",)
    yield "bytes that are not UTF-8", whole + b"\xff", ("encoding",)
    dtype = baselines.scored_column(grading).dtype
    if dtype in ("int", "float"):
        yield "nan", baselines.submission(grading, ["nan", *values[1:]]), ("finite",)
        yield "text", baselines.submission(grading, [_NONSENSE, *values[1:]]), ("dtype",)
    if dtype == "int":
        yield "a fraction", baselines.submission(grading, ["0.5", *values[1:]]), ("dtype",)
    if dtype == "json":
        yield "no JSON", baselines.submission(grading, ["{", *values[1:]]), ("json",)


def _emptied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _emptied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_emptied(item) for item in value]
    return "" if isinstance(value, str) else 0 if isinstance(value, (int, float)) else None
