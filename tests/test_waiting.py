"""Waiting without blocking: the loop that drives one piece of work, and calls that block in threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from research_gym.sandbox.engine_threads import MAX_THREADS, call
from research_gym.sandbox.waiting import Steps, Wait, drive


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        os.close(fd)


def test_drive_resumes_when_a_descriptor_is_ready(pipe: tuple[int, int]) -> None:
    def work() -> Steps[bytes]:
        yield Wait(reads=(pipe[0],), until=time.monotonic() + 10)
        return os.read(pipe[0], 10)

    threading.Timer(0.05, os.write, (pipe[1], b"now")).start()
    assert drive(work()) == b"now"


def test_drive_resumes_at_the_deadline(pipe: tuple[int, int]) -> None:
    def work() -> Steps[float]:
        yield Wait(reads=(pipe[0],), until=time.monotonic() + 0.1)
        return time.monotonic()

    began = time.monotonic()
    assert 0.09 <= drive(work()) - began < 5


def test_drive_passes_errors_on_and_closes_the_work() -> None:
    closed = []

    def work() -> Steps[None]:
        try:
            yield Wait(until=0.0)
            raise LookupError("mine")
        finally:
            closed.append(True)

    with pytest.raises(LookupError, match="mine"):
        drive(work())
    assert closed == [True]


def test_a_blocking_call_gives_its_result_and_its_error() -> None:
    assert drive(call(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        drive(call(divmod, 7, 0))


def test_blocking_calls_share_a_few_threads() -> None:
    seen: set[int] = set()

    def block() -> None:
        seen.add(threading.get_ident())
        time.sleep(0.05)

    works = [call(block) for _ in range(12)]
    waits = [next(work) for work in works]
    assert all(wait.reads for wait in waits)
    for work in works:
        drive(work)
    assert len(seen) <= MAX_THREADS


def test_a_call_that_is_given_up_leaves_no_descriptor() -> None:
    release = threading.Event()
    before = len(os.listdir("/proc/self/fd"))
    work = call(release.wait, 10)
    next(work)
    work.close()
    release.set()
    until = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_gets_threads_of_its_own() -> None:
    assert drive(call(len, "abc")) == 3
    pid = os.fork()
    if pid == 0:
        os._exit(drive(call(len, "abcd")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
