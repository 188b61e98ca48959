"""The grader's process from outside: what it gets, which verdicts are believed, and that nothing of it stays behind."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from research_gym.errors import GraderError
from research_gym.grading import worker
from research_gym.grading.score import Score
from research_gym.grading.worker import grade
from research_gym.kernel.frames import encode
from research_gym.sandbox.waiting import Wait, drive

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


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("id,digit\na,1\nb,2\nc,3\nd,4\n")
    return path


def file(*values: object) -> bytes:
    return ("label\n" + "".join(f"{value}\n" for value in values)).encode()


def children() -> set[str]:
    """Process ids of this process's children, zombies included."""
    found: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        found.update(task.read_text().split())
    return found


def fake(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Lets another program stand where the grader's process stands; it gets the same arguments and request."""
    head = "import json, os, sys, time\nroot, fd, limits, *paths = sys.argv[1:]\nfd = int(fd)\n"
    monkeypatch.setattr(worker, "_BOOT", head + textwrap.dedent(program))


def test_grader_sees_nothing_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("PYTHONPATH", "/canary")
    fake(
        monkeypatch,
        """
        descriptors = os.listdir("/proc/self/fd")
        sys.stderr.write(json.dumps([sorted(os.environ), os.getcwd(), sys.flags.isolated, descriptors]))
        sys.exit(1)
        """,
    )
    with pytest.raises(GraderError) as caught:
        drive(grade(ANSWER, answer=1))
    told = str(caught.value)
    assert "canary" not in told
    assert "HF_TOKEN" not in told
    environment, cwd, isolated, descriptors = json.loads(told[told.index("[") :])
    assert set(environment) <= {"LANG", "LC_CTYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH"}
    assert (cwd, isolated) == ("/", 1)
    assert len(descriptors) == 5  # 0, 1, 2, the verdict pipe, and the listing's own


def test_limits_are_set_before_the_request_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker,
        "_BOOT",
        worker._BOOT.replace(
            "main(int(fd), limits)",
            "import research_gym.grading.judge as judge, resource\n"
            "def receive(fd):\n"
            "    kinds = ('AS', 'CPU', 'NOFILE', 'CORE')\n"
            "    raise judge.GraderError(str([resource.getrlimit(getattr(resource, 'RLIMIT_' + k)) for k in kinds]))\n"
            "judge._receive = receive\n"
            "main(int(fd), limits)",
        ),
    )
    with pytest.raises(GraderError, match=r"\(2147483648, 2147483648\), \(61, 61\), \(64, 64\), \(0, 0\)"):
        drive(grade(ANSWER, answer=1))


def verdict(**change: Any) -> str:
    return f"""
        sys.stdin.buffer.read(4)
        score = {{"value": 1.0, "metric": "m", "raw": None, "lower_is_better": False, "valid": True, "reason": "",
                 "message": "", "upstream": {{}}}}
        score.update({change!r})
        header = {{"id": 0, "kernel": "", "type": "verdict", "nonce": NONCE, "score": score}}
        body = json.dumps(header).encode()
        os.write(fd, len(body).to_bytes(4, "big") + body)
    """


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param("pass", "found 0", id="no verdict"),
        pytest.param("os._exit(7)", "status 7", id="status"),
        pytest.param("os.abort()", "SIGABRT", id="signal"),
        pytest.param("os.write(2, b'out of luck'); os._exit(1)", "out of luck", id="stderr is told"),
        pytest.param("os.write(2, b'x' * 10**7 + b'the end'); os._exit(1)", "the end", id="only the tail of stderr"),
        pytest.param("os.write(fd, b'1.0')", "found 0 and 3 bytes", id="not a frame"),
        pytest.param("os.write(fd, b'\\xff' * 20)", "not a frame", id="absurd length"),
        pytest.param("NONCE = 'guess'" + verdict(), "not one of this grade", id="wrong nonce"),
        pytest.param("NONCE = 'fixed'" + verdict(value=1.5), "malformed", id="above one"),
        pytest.param("NONCE = 'fixed'" + verdict(value=-0.1), "malformed", id="below zero"),
        pytest.param("NONCE = 'fixed'; nan = math = float('nan')" + verdict(value=math.nan), "malformed", id="NaN"),
        pytest.param("NONCE = 'fixed'; inf = float('inf')" + verdict(value=math.inf), "malformed", id="infinity"),
        pytest.param("NONCE = 'fixed'; inf = float('inf')" + verdict(raw=math.inf), "malformed", id="infinite raw"),
        pytest.param("NONCE = 'fixed'" + verdict(value="1.0"), "malformed", id="text"),
        pytest.param("NONCE = 'fixed'" + verdict(value=True), "malformed", id="bool"),
        pytest.param("NONCE = 'fixed'" + verdict(extra=1), "malformed", id="unknown field"),
        pytest.param("NONCE = 'fixed'" + verdict(valid=False), "malformed", id="invalid without a reason"),
        pytest.param("NONCE = 'fixed'" + verdict() + verdict(), "found 2", id="two verdicts"),
        pytest.param("NONCE = 'fixed'" + verdict() + "\n        os.write(fd, b'x')", "1 bytes", id="verdict and more"),
        pytest.param("NONCE = 'fixed'" + verdict() + "\n        os._exit(3)", "status 3", id="verdict, then a failure"),
    ],
)
def test_anything_but_one_good_verdict_is_a_fault(program: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """integrity.md R16: a verdict that is forged, out of range or not alone is never a score."""
    first, _, rest = program.partition("\n")
    fake(monkeypatch, first + "\n" + textwrap.dedent(rest))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "fixed")
    with pytest.raises(GraderError, match=says) as caught:
        drive(grade(ANSWER, answer={"accuracy": 0.93}))
    assert len(str(caught.value)) < 6000


def test_fake_verdict_of_the_right_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the refusals above refuse for their own reason."""
    fake(monkeypatch, "NONCE = 'fixed'\n" + textwrap.dedent(verdict()))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "fixed")
    assert drive(grade(ANSWER, answer=1)) == Score(1.0, "m")


def test_verdict_alone_counts_not_what_holds_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child of the trainer, or of the grader, that keeps the pipe open does not hold up the grade."""
    program = """
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    """
    fake(monkeypatch, "NONCE = 'fixed'\n" + textwrap.dedent(verdict()) + textwrap.dedent(program))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "fixed")
    start = time.monotonic()
    assert drive(grade(ANSWER, answer=1)).value == 1.0
    assert time.monotonic() - start < 10


def test_timeout_kills_and_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    fake(monkeypatch, "os.write(2, b'thinking'); time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(GraderError, match=r"longer than 0\.5 s.*thinking"):
        drive(grade(ANSWER, answer=1, timeout_s=0.5))
    assert time.monotonic() - start < 5
    assert children() == before


def test_request_to_a_process_that_does_not_read_is_not_waited_for(
    labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, "time.sleep(60)")
    with pytest.raises(GraderError, match="longer than"):
        drive(grade(SUBMISSION, submission=b"x" * (8 << 20), labels=labels, timeout_s=0.5))
    fake(monkeypatch, "os._exit(4)")
    with pytest.raises(GraderError, match="status 4"):
        drive(grade(SUBMISSION, submission=b"x" * (8 << 20), labels=labels))


def test_closing_the_generator_kills_reaps_and_leaks_no_descriptor() -> None:
    before, open_before = children(), len(os.listdir("/proc/self/fd"))
    steps = grade(ANSWER, answer=1)
    wait = next(steps)
    assert isinstance(wait, Wait)
    assert wait.until is not None
    assert len(children()) == len(before) + 1
    steps.close()
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == open_before
    drive(grade(ANSWER, answer=1))
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_no_step_of_a_grade_blocks(labels: Path) -> None:
    steps = grade(SUBMISSION, submission=file(1, 2, 3, 4) + b"\n" * (4 << 20), labels=labels)
    longest, score = 0.0, None
    while score is None:
        start = time.process_time()
        try:
            next(steps)
        except StopIteration as stop:
            score = stop.value
        longest = max(longest, time.process_time() - start)
        time.sleep(0.005)
    assert score.value == 1.0
    assert longest < 0.5


def test_grade_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_pid_fd", lambda pid: None)
    assert drive(grade(ANSWER, answer={"epochs": 3})).value == 0.5


def test_interpreter_that_does_not_start_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for python, says in (("", "sys.executable"), (str(tmp_path / "none"), "did not start")):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(GraderError, match=says):
            drive(grade(ANSWER, answer=1))


def test_the_process_runs_neither_the_package_nor_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is what a grade costs: no Gymnasium, and numpy for files only."""
    monkeypatch.setattr(worker, "_BOOT", worker._BOOT + "\nsys.exit(' '.join(sys.modules))")
    with pytest.raises(GraderError) as caught:
        drive(grade(ANSWER, answer=1))
    modules = str(caught.value).split()
    assert "research_gym.grading.judge" in modules
    assert not {"gymnasium", "numpy", "site", "research_gym.grading.worker", "research_gym.sandbox"} & set(modules)


def test_request_frames_are_small() -> None:
    frames = list(worker._request({"nonce": "n"}, b"x" * (3 << 20)))
    assert len(frames) == 4
    assert max(map(len, frames)) < (1 << 20) + 200
    assert len(encode({"id": 0}, b"")) < 100
