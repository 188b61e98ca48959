"""The grader's process: reads one request from stdin, grades it under limits, writes one verdict to its own pipe.

Started by `worker.py` as `python -I -S`, with the package's modules reachable but its `__init__` not run. It prints
nothing that is computed from labels: a failure of its own leaves a type and a place on stderr, never the text of an
exception.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research_gym.errors import GraderError
from research_gym.grading import plan as plans
from research_gym.grading.answer import match
from research_gym.grading.schema import Column, SubmissionInvalid
from research_gym.grading.score import Score
from research_gym.kernel.frames import Decoder, encode

READ_BYTES = 1 << 18


def grade_answer(plan: plans.AnswerPlan, answer: Any) -> Score:
    """Scores a JSON answer with both scorers; the plan's mode says which one is the value."""
    scores = {
        "strict": match(submission=answer, gold=plan.gold, tolerance=plan.tolerance),
        "upstream": match(submission=answer, gold=plan.gold, mode="upstream"),
    }
    value = scores[plan.mode]
    return Score(value, plans.ANSWER_METRIC, value, upstream={plans.ANSWER_METRIC: scores["upstream"]})


def grade_submission(plan: plans.SubmissionPlan, data: bytes, *, labels: Path) -> Score:
    """Scores the bytes of a submitted file against the label file, which is read first so that its defects come out.

    Raises:
        GraderError: the label file is missing, unreadable or does not fit the plan. The message holds none of its
        content.
    """
    from research_gym.grading import metrics, submission

    metric = metrics.METRICS[plan.metric]
    right = _labels(plan, labels)
    try:
        columns = submission.read(data, columns=plan.columns, rows=len(right))
        raw = metric.function(labels=right, predictions=columns[plan.scored.name])
        if not math.isfinite(raw):
            raise SubmissionInvalid(
                "finite", f"column {plan.scored.name!r}: the numbers are so large that {plan.metric} overflows"
            )
    except SubmissionInvalid as error:
        return _refused(plan, error.code, error.message)
    except MemoryError:
        return _refused(plan, "memory", f"reading the file of {len(data)} bytes took more memory than the grader has")
    value = metrics.reward(raw, worst=plan.worst, optimal=plan.optimal)
    return Score(value, plan.metric, raw, plan.lower_is_better)


def _refused(plan: plans.SubmissionPlan, code: str, message: str) -> Score:
    return Score.refused(metric=plan.metric, reason=code, message=message, lower_is_better=plan.lower_is_better)


def _labels(plan: plans.SubmissionPlan, path: Path) -> Any:
    from research_gym.grading import submission, table

    try:
        data = path.read_bytes()
        present = table.header(submission.decode(data, max_bytes=1 << 30))
        if plan.labels not in present:
            raise GraderError(f"labels {path}: there is no column {plan.labels!r}; prepare the task's data again")
        columns = [Column(name, plan.scored.dtype if name == plan.labels else "str") for name in present]
        values = submission.read(data, columns=columns, rows=None, max_bytes=1 << 30)[plan.labels]
    except OSError as error:
        raise GraderError(f"labels {path}: {error.strerror}; prepare the task's data again") from None
    except SubmissionInvalid as error:  # its message quotes the file
        raise GraderError(f"labels {path}: not a label file ({error.code}); prepare the task's data again") from None
    except ValueError:
        raise GraderError(f"labels {path}: the header is not a label file's; prepare the task's data again") from None
    if len(values) == 0:
        raise GraderError(f"labels {path}: no rows; prepare the task's data again")
    return values


def main(verdict_fd: int, limits: str) -> None:
    """Serves one request under `limits`, a JSON object of `resource` names. Ends with status 0 after a verdict, 1
    after a failure that is told on stderr."""
    sys.excepthook = _say_where
    gc.disable()  # one request: collecting cycles only costs, on hostile JSON most of the time
    _limit(json.loads(limits))
    request, data = _receive(0)
    plan = plans.make(request["grading"])
    if isinstance(plan, plans.AnswerPlan):
        score = grade_answer(plan, json.loads(data))
    else:
        score = grade_submission(plan, data, labels=Path(request["labels"]))
    header = {"id": 0, "kernel": "", "type": "verdict", "nonce": request["nonce"], "score": score.to_json()}
    _write(verdict_fd, encode(header))


def _receive(fd: int) -> tuple[dict[str, Any], bytes]:
    """Reads the request: `part` frames with the bytes of the JSON head and of the submission, until one says `last`."""
    decoder = Decoder()
    parts: dict[str, bytearray] = {"head": bytearray(), "data": bytearray()}
    while True:
        chunk = os.read(fd, READ_BYTES)
        if not chunk:
            raise GraderError("the request ended before it was complete")
        for frame in decoder.feed(chunk):
            parts[frame.header["part"]] += frame.data
            if frame.header["last"]:
                return json.loads(parts["head"]), bytes(parts["data"])


def _limit(limits: Mapping[str, int]) -> None:
    """Sets this process's own limits, before it looks at anything the agent wrote."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (allowed, allowed))
        except (OSError, ValueError):  # macOS refuses RLIMIT_AS
            print(f"grader: this system refuses {name}={allowed}", file=sys.stderr)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _say_where(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Tells a `GraderError` in full and of all else only its type and place: its text may quote labels."""
    if isinstance(error, GraderError):
        print(f"grader: {error}", file=sys.stderr)
        return
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "an unknown place"
    print(f"grader: {kind.__name__} at {where}", file=sys.stderr)
