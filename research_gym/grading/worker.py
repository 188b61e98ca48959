"""Grades one submission in a fresh, limited process that gets nothing of the agent's but bytes.

Isolates: the agent's bytes are parsed and scored under limits on memory, CPU time and open files, in an interpreter
started with `-I -S` in `/`, with an environment of a few fixed variables; the labels are read there only. The verdict
comes back on a pipe that nothing else holds, with a nonce of this grade, and is believed only if it is one well-formed
frame and the process ended well. Does not isolate: the grader is this package's own code with this user's rights and
the network; it runs no code of the agent's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from research_gym.errors import GraderError
from research_gym.grading import plan as plans
from research_gym.grading.schema import MAX_SUBMISSION_BYTES
from research_gym.grading.score import Score
from research_gym.kernel.frames import Decoder, Frame, FrameError, encode
from research_gym.sandbox.waiting import Steps, Wait

MEMORY_BYTES = 2 << 30
STDERR_TAIL_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_POLL_S = 0.005
_REAP_S = 5.0

# Makes the package importable without running its __init__, which registers every environment with Gymnasium.
_BOOT = """
import sys, types
root, fd, limits, *paths = sys.argv[1:]
sys.path += paths
for name in ("", ".grading", ".kernel"):
    package = types.ModuleType("research_gym" + name)
    package.__path__ = [root + name.replace(".", "/")]
    sys.modules[package.__name__] = package
from research_gym.grading.judge import main
main(int(fd), limits)
"""


def grade(
    task_grading: Mapping[str, Any],
    *,
    submission: bytes | None = None,
    answer: Any = None,
    labels: Path | None = None,
    timeout_s: float = 60.0,
    memory_bytes: int = MEMORY_BYTES,
) -> Steps[Score]:
    """Grades a file submission (`submission`, `labels`) or a JSON answer (`answer`), as the task's `kind` asks.

    A generator of `Wait`s (see `sandbox.waiting`): it never blocks but for the start of the process (milliseconds).
    Closing it early kills and reaps the process. The same submission always gets the same score.

    Args:
        task_grading: the `grading` mapping of the task file.
        submission: bytes of the submitted file; `None` if there is none.
        answer: the submitted JSON value; `None` if there is none.
        labels: the label file of a file task, on the host.
        timeout_s: wall-clock limit of the grade.
        memory_bytes: limit on the address space of the process.

    Returns:
        The score. A submission that breaks its format gives `valid=False` with a stable code, worth 0.0.

    Raises:
        GraderError: the grader broke: a plan or label file that is wrong or missing, a crash, the time limit, or a
            verdict that is not one well-formed frame with a finite value in [0, 1]. Never the agent's fault, never a
            reward of 0.
    """
    plan = plans.make(task_grading)
    if isinstance(plan, plans.AnswerPlan):
        if answer is None:
            return _refused(plan, "missing", "no answer: submit a JSON value")
        try:
            data = json.dumps(answer).encode("ascii")
        except (ValueError, TypeError, RecursionError):
            return _refused(plan, "json", "the answer is not a JSON value of reasonable size and depth")
    else:
        if submission is None:
            return _refused(
                plan, "missing", f"there is no submission file; write {task_grading.get('file', 'it')} first"
            )
        if len(submission) > MAX_SUBMISSION_BYTES:
            message = f"expected at most {MAX_SUBMISSION_BYTES} bytes, found {len(submission)}"
            return _refused(plan, "too_large", message)
        if labels is None:
            raise GraderError("grading a file submission: expected the path of its label file, found none")
        data = submission
    nonce = secrets.token_hex(16)
    head = {
        "nonce": nonce,
        "grading": _plain(task_grading),
        "labels": None if labels is None else os.path.abspath(labels),
    }
    cpu_s = max(1, int(timeout_s) + 1)
    limits = {"RLIMIT_AS": memory_bytes, "RLIMIT_CPU": cpu_s, "RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}
    reply, ended = yield from _exchange(_request(head, data), limits=limits, timeout_s=timeout_s)
    return _verdict(reply, nonce=nonce, ended=ended)


def _refused(plan: plans.SubmissionPlan | plans.AnswerPlan, code: str, message: str) -> Score:
    if isinstance(plan, plans.AnswerPlan):
        return Score.refused(metric=plans.ANSWER_METRIC, reason=code, message=message)
    return Score.refused(metric=plan.metric, reason=code, message=message, lower_is_better=plan.lower_is_better)


def _plain(grading: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(dict(grading), default=_mapping))
    except (ValueError, TypeError) as error:
        raise GraderError(f"grading of the task file: expected JSON values, found {error}") from error


def _mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__}: {value!r}")


def _request(head: Mapping[str, Any], data: bytes) -> Iterator[bytes]:
    """Yields the frames of a request one by one: never a second copy of a large submission."""
    blocks = [("head", json.dumps(head).encode("ascii")), ("data", data)]
    for part, block in blocks:
        for start in range(0, len(block), _CHUNK_BYTES) or range(1):
            last = part == "data" and start + _CHUNK_BYTES >= len(block)
            header = {"id": 0, "kernel": "", "type": "request", "part": part, "last": last}
            yield encode(header, block[start : start + _CHUNK_BYTES])


def _exchange(request: Iterator[bytes], *, limits: Mapping[str, int], timeout_s: float) -> Steps[tuple[bytes, str]]:
    """Runs one grader process; returns what it wrote on the verdict pipe, and how it ended if not well."""
    deadline = time.monotonic() + timeout_s
    verdict, verdict_out = os.pipe()
    pid_fd: int | None = None
    owner = os.getpid()
    process: subprocess.Popen[bytes] | None = None
    reply, errors = bytearray(), bytearray()
    try:
        try:
            process = _start(verdict_out, limits)
        finally:
            os.close(verdict_out)
        assert process.stdin is not None
        assert process.stderr is not None
        pid_fd = _pid_fd(process.pid)
        sources = {verdict: reply, process.stderr.fileno(): errors}
        for fd in (*sources, process.stdin.fileno()):
            os.set_blocking(fd, False)
        unsent: memoryview | None = memoryview(next(request))
        while True:
            unsent = _send(process.stdin, unsent, request)
            ended = process.poll() is not None
            for fd, buffer in list(sources.items()):
                if not _drain(fd, buffer):
                    del sources[fd]
            if ended:
                break
            if time.monotonic() >= deadline:
                raise GraderError(f"the grader took longer than {timeout_s:g} s; its last words: {_tail(errors)}")
            reads = tuple(sources) + (() if pid_fd is None else (pid_fd,))
            writes = () if unsent is None else (process.stdin.fileno(),)
            until = deadline if pid_fd is not None else min(deadline, time.monotonic() + _POLL_S)
            yield Wait(reads=reads, writes=writes, until=until)
        return bytes(reply), _ending(process.returncode, errors)
    finally:
        os.close(verdict)
        if pid_fd is not None:
            os.close(pid_fd)
        if process is not None:
            _end(process, ours=os.getpid() == owner)


def _start(verdict_out: int, limits: Mapping[str, int]) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise GraderError("the grader needs a Python interpreter, and sys.executable is empty")
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-I", "-S", "-c", _BOOT, root, str(verdict_out)]
    command += [json.dumps(dict(limits)), *_numpy_path()]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env=_environment(),
            pass_fds=(verdict_out,),
            start_new_session=True,
        )
    except OSError as error:
        raise GraderError(f"the grader's process did not start: {error}") from error


@cache
def _numpy_path() -> tuple[str, ...]:
    """Returns the folder that numpy is imported from: without `site`, the process must be told."""
    spec = importlib.util.find_spec("numpy")
    return () if spec is None or spec.origin is None else (str(Path(spec.origin).parent.parent),)


def _environment() -> dict[str, str]:
    """Keeps of the trainer's environment the path of shared libraries only: some interpreters do not start without."""
    keep = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **keep}


def _pid_fd(pid: int) -> int | None:
    """Returns a descriptor that is readable once the process has ended, or `None` where the system has none (macOS)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _send(pipe: IO[bytes], unsent: memoryview | None, request: Iterator[bytes]) -> memoryview | None:
    """Writes what there is room for; returns what is left of the current frame, `None` at the end."""
    while unsent is not None:
        try:
            unsent = unsent[os.write(pipe.fileno(), unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:  # the process ended early; its status says why
            return None
        if not unsent:
            following = next(request, None)
            unsent = None if following is None else memoryview(following)
    return None


def _drain(fd: int, buffer: bytearray) -> bool:
    """Reads what is there, keeping a bounded tail; false at end of stream."""
    try:
        while chunk := os.read(fd, _READ_BYTES):
            buffer += chunk
            del buffer[: -16 * STDERR_TAIL_BYTES]
    except BlockingIOError:
        return True
    return False


def _end(process: subprocess.Popen[bytes], *, ours: bool) -> None:
    """Closes the pipes, kills and reaps; in a forked child of the trainer (`ours` false) the process is left alone."""
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            pipe.close()
    if ours and process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel of the host: it dies when it can
            process.wait(timeout=_REAP_S)


def _ending(status: int, errors: bytearray) -> str:
    if status == 0:
        return ""
    name = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"{name}; its last words: {_tail(errors)}"


def _tail(errors: bytearray) -> str:
    return bytes(errors[-STDERR_TAIL_BYTES:]).decode("utf-8", "backslashreplace").strip() or "none"


def _verdict(reply: bytes, *, nonce: str, ended: str) -> Score:
    """Believes one complete frame with this grade's nonce and a well-formed score, from a process that ended well."""
    if ended:
        raise GraderError(f"the grader gave no verdict and ended with {ended}")
    decoder = Decoder()
    try:
        frames: list[Frame] = decoder.feed(reply)
    except FrameError as error:
        raise GraderError(f"the grader's verdict is not a frame: {error}") from error
    if len(frames) != 1 or decoder.pending or frames[0].data:
        raise GraderError(f"expected one verdict from the grader, found {len(frames)} and {decoder.pending} bytes")
    header = frames[0].header
    if header.get("type") != "verdict" or header.get("nonce") != nonce or not isinstance(header.get("score"), dict):
        raise GraderError("the grader's verdict is not one of this grade (type, nonce or score is wrong)")
    try:
        return Score.from_json(header["score"])
    except ValueError as error:
        raise GraderError(f"the grader's verdict is malformed: {error}") from error
