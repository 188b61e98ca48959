"""Calls that block (the docker SDK is synchronous), made from work that must not: threads that wake it by a pipe."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from research_gym.sandbox.waiting import Steps, Wait

T = TypeVar("T")

MAX_THREADS = 4


class _Call:
    """One call: its result or its error, and the pipe whose end of file says that it is over."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.wake_fd, self._end_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:  # carried to the caller, whoever raised what
            self.error = error
        self.done = True
        self.end()

    def end(self) -> None:
        end_fd, self._end_fd = self._end_fd, -1
        if end_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(end_fd)


class _Pool:
    """At most `MAX_THREADS` daemon threads, started when they are needed. The lock protects the three counts."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0
        self.waiting = 0

    def submit(self, call: _Call) -> None:
        with self.lock:
            self.waiting += 1
            grow = self.threads < MAX_THREADS and self.waiting > self.idle
            if grow:
                self.threads += 1
        self.calls.put(call)
        if grow:
            threading.Thread(target=self._work, name="research-gym-engine", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self.lock:
                self.idle += 1
            call = self.calls.get()
            with self.lock:
                self.idle -= 1
                self.waiting -= 1
            call.run()
            del call  # else an idle thread keeps the last result alive


_pool = _Pool()


def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> Steps[T]:
    """Runs a blocking function in the pool; its result is returned and its exception raised where the work waits.

    The function cannot be stopped: work that is closed while it waits leaves it running and its result unseen, so a
    function that makes something must clean up after itself when nobody took it.

    Example:
        >>> from research_gym.sandbox.waiting import drive
        >>> drive(call(pow, 2, 10))
        1024
    """
    pending = _Call(lambda: function(*args, **kwargs))
    try:
        _pool.submit(pending)
        while not pending.done:
            yield Wait(reads=(pending.wake_fd,))
        if pending.error is not None:
            raise pending.error
        result: T = pending.result
        return result
    finally:
        os.close(pending.wake_fd)


def _renew() -> None:
    global _pool  # threads do not survive a fork, and the lock may have been held
    _pool = _Pool()


os.register_at_fork(after_in_child=_renew)
