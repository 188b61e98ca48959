"""What a step used, measured by pid 1 from its own clocks, /proc and the control group."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from research_gym.kernel.procfs import ProcessTable, in_sessions


@dataclass(frozen=True)
class Usage:
    """What was used between two marks."""

    duration_s: float
    cpu_s: float
    """All agent processes, the reaped ones included; counted in clock ticks of 10 ms."""
    oom_kills: int
    background_processes: int
    """Live processes at the end besides the kernel and what pid 1 itself was asked to run."""


class StepMeter:
    """Measures one step after the other; steps add up, also when a cell runs through several of them."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._began = time.monotonic()
        self._cpu_s = 0.0
        self._oom_kills = 0
        self.total_s = 0.0
        """Sum of the durations measured so far."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the last mark."""
        return time.monotonic() - self._began

    def mark(self) -> None:
        """Begins a step."""
        self._began = time.monotonic()
        self._cpu_s = self._table.cpu_s(self._table.read(quick=True))
        self._oom_kills = self._table.oom_kills()

    def measure(self, *, kernel_pids: Collection[int], spared_sessions: Collection[int]) -> Usage:
        """Ends a step and begins the next."""
        processes = self._table.read(quick=True)
        began, cpu_before, oom_before = self._began, self._cpu_s, self._oom_kills
        self._began = time.monotonic()
        self._cpu_s = self._table.cpu_s(processes)
        self._oom_kills = self._table.oom_kills()
        self.total_s += self._began - began
        return Usage(
            duration_s=self._began - began,
            cpu_s=max(0.0, self._cpu_s - cpu_before),
            oom_kills=max(0, self._oom_kills - oom_before),
            background_processes=sum(
                process.live and process.pid not in kernel_pids and not in_sessions(process, spared_sessions)
                for process in processes.values()
            ),
        )
