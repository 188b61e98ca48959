"""Grading through the process: scores, refusals that are the agent's, faults that are ours, and no label in either."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from research_gym.errors import GraderError
from research_gym.grading import judge
from research_gym.grading.plan import AnswerPlan, SubmissionPlan, make
from research_gym.grading.score import Score
from research_gym.grading.worker import grade
from research_gym.sandbox.waiting import drive

SUBMISSION: Mapping[str, Any] = {
    "kind": "submission",
    "file": "submission.csv",
    "columns": [{"name": "label", "dtype": "int", "labels": "digit"}],
    "metric": "accuracy",
    "lower_is_better": False,
    "worst": 0.5,
    "optimal": 1.0,
}
ANSWER: Mapping[str, Any] = {"kind": "answer", "gold": {"accuracy": 0.93, "epochs": 3}, "tolerance": {"default": 0.01}}
CANARY = "7340219"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("id,digit\na,1\nb,2\nc,3\nd,4\n")
    return path


def file(*values: object) -> bytes:
    return ("label\n" + "".join(f"{value}\n" for value in values)).encode()


def test_submission_is_scored(labels: Path) -> None:
    score = drive(grade(SUBMISSION, submission=file(1, 2, 3, 0), labels=labels))
    assert score == Score(0.5, "accuracy", 0.75)
    assert drive(grade(SUBMISSION, submission=file(1, 2, 3, 4), labels=labels)).value == 1.0
    assert drive(grade(SUBMISSION, submission=file(0, 0, 0, 0), labels=labels)) == Score(0.0, "accuracy", 0.0)


def test_order_of_rows_counts(labels: Path) -> None:
    assert drive(grade(SUBMISSION, submission=file(2, 1, 4, 3), labels=labels)).value == 0.0


def test_lower_is_better(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("y\n1.0\n2.0\n")
    columns = [{"name": "y", "dtype": "float", "labels": "y"}]
    task = {"kind": "submission", "columns": columns, "metric": "mae", "worst": 2.0}
    assert drive(grade(task, submission=b"y\n1.5\n2.5\n", labels=path)) == Score(0.75, "mae", 0.5, True)
    constant = drive(grade(dict(task, metric="rmse"), submission=b"y\n9\n9\n", labels=path))
    assert constant.value == 0.0
    assert constant.raw == pytest.approx(math.sqrt((64 + 49) / 2))
    overflow = drive(grade(task, submission=b"y\n1.7e308\n1.7e308\n", labels=path))
    assert (overflow.valid, overflow.reason) == (False, "finite")


def test_text_labels_and_relative_label_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "labels.csv").write_text('answer\nNA\n"a, b"\n')
    columns = [{"name": "answer", "dtype": "str", "labels": "answer"}, {"name": "why", "dtype": "json"}]
    task = {"kind": "submission", "columns": columns, "metric": "accuracy", "worst": 0.0}
    monkeypatch.chdir(tmp_path)
    score = drive(grade(task, submission=b'why,answer\n[],NA\n{},"a, b"\n', labels=Path("labels.csv")))
    assert score.value == 1.0


def test_answer_is_scored_by_both_scorers() -> None:
    score = drive(grade(ANSWER, answer={"epochs": 3}))
    assert score == Score(0.5, "output_match", 0.5, upstream={"output_match": 1.0})
    upstream = drive(grade(dict(ANSWER, mode="upstream"), answer={"epochs": 3}))
    assert upstream == Score(1.0, "output_match", 1.0, upstream={"output_match": 1.0})


@pytest.mark.parametrize("answer", [{}, [], 0, "", False, {"accuracy": math.nan}, "\ud800", [[[]]]])
def test_any_json_answer_is_scored(answer: Any) -> None:
    assert drive(grade(ANSWER, answer=answer)).value == 0.0


def test_refusals_carry_code_and_message_and_are_no_faults(labels: Path) -> None:
    score = drive(grade(SUBMISSION, submission=file(1, 2), labels=labels))
    assert score == Score.refused(metric="accuracy", reason="rows", message=score.message)
    assert "expected 4 rows" in score.message
    assert drive(grade(SUBMISSION, submission=None, labels=labels)).reason == "missing"
    assert drive(grade(SUBMISSION, submission=b"x" * ((64 << 20) + 1), labels=labels)).reason == "too_large"
    assert drive(grade(ANSWER, answer=None)).reason == "missing"
    assert drive(grade(ANSWER, answer={1, 2})).reason == "json"
    assert drive(grade(ANSWER, answer=10**5000)).reason == "json"


def test_refusals_are_equal_whatever_the_labels(tmp_path: Path) -> None:
    """integrity.md R05: validation is no oracle."""
    seen = set()
    for number in range(3):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"digit\n{number}\n{number + 1}\n")
        seen.add(drive(grade(SUBMISSION, submission=file(1, "x"), labels=path)).message)
    assert len(seen) == 1


def test_submission_of_many_frames(labels: Path) -> None:
    padded = file(1, 2, 3, 4) + b"\n" * (5 << 20)
    assert drive(grade(SUBMISSION, submission=padded, labels=labels)).value == 1.0
    assert drive(grade(SUBMISSION, submission=b"", labels=labels)).reason == "empty"


def test_submission_that_takes_too_much_memory_is_the_agents_fault(labels: Path) -> None:
    columns = [*SUBMISSION["columns"], {"name": "j", "dtype": "json"}]
    cell = b'"[' + b"[]," * 3_000_000 + b'[]]"'
    data = b"label,j\n1," + cell + b"\n2,1\n3,1\n4,1\n"
    score = drive(grade(dict(SUBMISSION, columns=columns), submission=data, labels=labels, memory_bytes=300 << 20))
    assert (score.valid, score.reason) == (False, "memory")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"id,digit\n", "no rows", id="no rows"),
        pytest.param(b"id,other\na,7340219\n", "no column 'digit'", id="no such column"),
        pytest.param(b"id,digit\na,7340219x\n", "dtype", id="not a number"),
        pytest.param(b"id,digit\na,7340219,\n", "fields", id="wrong fields"),
        pytest.param(b"digit,digit\n7340219,1\n", "header", id="column twice"),
        pytest.param(b"digit\n7340219\n\xff\n", "encoding", id="not text"),
    ],
)
def test_broken_labels_are_a_fault_that_shows_no_label(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "labels.csv"
    if content is not None:
        path.write_bytes(content)
    for submission in (file(1), file("x")):  # never "mend your file", whether it is right or wrong
        with pytest.raises(GraderError, match=says) as caught:
            drive(grade(SUBMISSION, submission=submission, labels=path))
        assert CANARY not in str(caught.value)
        assert str(path) in str(caught.value)


def test_label_file_is_needed() -> None:
    with pytest.raises(GraderError, match="label file"):
        drive(grade(SUBMISSION, submission=file(1)))


def test_unexpected_failures_tell_their_place_but_not_their_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        int(CANARY + "x")
    except ValueError as error:
        judge._say_where(ValueError, error, error.__traceback__)
    told = capsys.readouterr().err
    assert CANARY not in told
    assert told.startswith("grader: ValueError at test_grading_worker.py:")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "essay"}, "kind"),
        ({"columns": None}, "columns"),
        ({"columns": [{"name": "x", "dtype": "int"}]}, "exactly one column"),
        ({"columns": [{"name": "x", "dtype": "int", "labels": "a"}] * 2}, "twice"),
        ({"columns": [{"name": "x", "dtype": "float", "labels": "a"}]}, "needs a column of dtype int or str"),
        ({"columns": [{"name": "x", "dtype": "double", "labels": "a"}]}, "double"),
        ({"columns": 3}, "grading of the task file"),
        ({"columns": [3]}, "grading of the task file"),
        ({"metric": "f1"}, "expected one of accuracy"),
        ({"lower_is_better": True}, "lower_is_better"),
        ({"worst": None}, "worst"),
        ({"worst": math.nan}, "worst"),
        ({"worst": 1.5}, "better than"),
    ],
)
def test_broken_plan_of_a_file_task(change: dict[str, Any], says: str, labels: Path) -> None:
    with pytest.raises(GraderError, match=says):
        drive(grade({**SUBMISSION, **change}, submission=file(1), labels=labels))


def test_broken_plan_of_an_answer_task() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for task, says in (
        ({"kind": "answer"}, "gold"),
        ({"kind": "answer", "gold": deep}, "nesting"),
        ({"kind": "answer", "gold": {"a": 1}, "tolerance": {"keys": {"b": 0.1}}}, "name nothing"),
        ({"kind": "answer", "gold": {"a": 1}, "tolerance": {"x": 0.1}}, "unknown keys"),
        ({"kind": "answer", "gold": {"a": 1}, "mode": "lenient"}, "mode"),
        ({"kind": "answer", "gold": {"a": {1, 2}}}, "JSON values"),
    ):
        with pytest.raises(GraderError, match=says):
            drive(grade(task, answer={"a": 1}))


def test_plan_defaults() -> None:
    plan = make({"kind": "answer", "gold": 1, "tolerance": None, "mode": None})
    assert isinstance(plan, AnswerPlan)
    assert plan.mode == "strict"
    file_plan = make(dict(SUBMISSION, optimal=None, lower_is_better=None))
    assert isinstance(file_plan, SubmissionPlan)
    assert (file_plan.optimal, file_plan.lower_is_better) == (1.0, False)


def test_task_mapping_may_be_a_read_only_view() -> None:
    task = MappingProxyType({**ANSWER, "tolerance": MappingProxyType({"default": 0.5})})
    assert drive(grade(task, answer={"accuracy": 0.5, "epochs": 3})).value == 1.0


def test_twenty_grades_give_one_verdict(labels: Path) -> None:
    """integrity.md S15."""
    verdicts = {
        json.dumps(drive(grade(SUBMISSION, submission=file(1, 2, 3, 9), labels=labels)).to_json()) for _ in range(20)
    }
    assert len(verdicts) == 1


def test_score_survives_json_and_checks_itself() -> None:
    score = Score(0.5, "mae", 0.25, True, upstream={"output_match": 1.0})
    assert Score.from_json(json.loads(json.dumps(score.to_json()))) == score
    changes: tuple[dict[str, Any], ...] = (
        {"value": math.nan},
        {"value": 1.1},
        {"raw": math.inf},
        {"valid": False},
        {"reason": "rows"},
        {"valid": False, "reason": "rows"},
    )
    for wrong in changes:
        with pytest.raises(ValueError, match="Score"):
            Score(**{"value": 0.5, "metric": "m", **wrong})
    with pytest.raises(ValueError, match="upstream"):
        Score.from_json({**score.to_json(), "upstream": {"x": "1"}})
