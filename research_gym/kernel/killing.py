"""Ending and stopping agent processes for certain: signals, a look at /proc, again, until a deadline. Never blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from research_gym.kernel.loop import Loop
from research_gym.kernel.procfs import Process, ProcessTable

_PERIOD_S = 0.003
_DEADLINE_S = 5.0

Chosen = Callable[[], list[Process]]


def kill_chosen(loop: Loop, chosen: Chosen, on_gone: Callable[[], None], *, deadline_s: float = _DEADLINE_S) -> None:
    """SIGKILLs what `chosen` returns, again and again, until it returns no live process; then calls `on_gone` once.

    A fork bomb is stopped before it is killed: otherwise each round meets children born during it. `on_gone` is called
    at the deadline too, with processes left that even SIGKILL does not end (uninterruptible sleep).
    """
    end = time.monotonic() + deadline_s

    def turn() -> None:
        live = [process for process in chosen() if process.live]
        if len(live) > 8:
            _signal(live, signal.SIGSTOP)
        _signal(live, signal.SIGKILL)
        if live and time.monotonic() < end:
            loop.after(_PERIOD_S, turn)
        else:
            on_gone()

    turn()


def stop_chosen(loop: Loop, chosen: Chosen, on_stopped: Callable[[list[Process], bool], None]) -> None:
    """SIGSTOPs what `chosen` returns until all of it is stopped; calls back with it, and False after 2 s."""
    end = time.monotonic() + 2.0

    def turn() -> None:
        found = [process for process in chosen() if process.live]
        moving = [process for process in found if not process.stopped]
        _signal(moving, signal.SIGSTOP)
        if moving and time.monotonic() < end:
            loop.after(_PERIOD_S, turn)
        else:
            on_stopped(found, not moving)

    turn()


def continue_all(table: ProcessTable) -> None:
    """SIGCONT to every agent process."""
    _signal([process for process in table.read().values() if process.live], signal.SIGCONT)


def kill_everything(table: ProcessTable, *, isolated: bool, deadline_s: float = 3.0) -> None:
    """The last act of pid 1: kills all agent processes and waits for them, blocking for at most the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if isolated and os.getpid() == 1:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        live = [process for process in table.read().values() if process.live]
        _signal(live, signal.SIGSTOP)
        _signal(live, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not live:
            return
        time.sleep(_PERIOD_S)


def _signal(processes: list[Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)
