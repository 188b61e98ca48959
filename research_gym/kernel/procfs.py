"""What /proc and the control groups say about the agent's processes: pid 1 looks for itself and asks nobody."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_MEMORY_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_PROCESS_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")


class Process(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    session: int
    state: str
    started_ticks: int
    """Clock ticks between boot and the start of the process; with `pid` it names a process for good."""
    cpu_s: float
    """User and system seconds, with those of the children it waited for."""
    rss_bytes: int
    threads: int

    @property
    def live(self) -> bool:
        """Not a zombie. A process whose first thread ended looks like one while its other threads run on."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        """Executes nothing until it is continued: each of its threads is stopped, traced or dead, at this moment."""
        return self.state in "TtZX" and (self.threads <= 1 or _threads_stopped(self.pid))


def _threads_stopped(pid: int) -> bool:
    try:
        threads = [_stat_fields(f"/proc/{pid}/task/{name}/stat") for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return True  # gone
    return all(fields is None or fields[0] in (b"T", b"t", b"Z", b"X") for fields in threads)


def _stat_fields(path: str) -> list[bytes] | None:
    """What follows the name in a `stat` file: the state and at least 21 numbers; `None` when the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = line[line.rfind(b")") + 2 :].split()  # the name before it may hold anything, brackets too
    return fields if len(fields) >= 22 else None


def read_process(pid: int) -> Process | None:
    """Reads one process; `None` when it is gone."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    if fields is None:
        return None
    ticks = sum(int(field) for field in fields[11:15])
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode("ascii"),
        started_ticks=int(fields[19]),
        cpu_s=ticks / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        threads=int(fields[17]),
    )


def now_ticks() -> int:
    """The present moment on the clock of `Process.started_ticks`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)


class ProcessTable:
    """The agent's processes: in a PID namespace everybody but us; without one our descendants (we are a subreaper)."""

    def __init__(self, *, isolated: bool) -> None:
        self._isolated = isolated
        self._self = os.getpid()
        self._strangers: frozenset[int] = frozenset()
        self.reaped_cpu_s = 0.0
        """CPU seconds of the processes that pid 1 itself has reaped."""

    def read(self, *, quick: bool = False) -> dict[int, Process]:
        """All agent processes at this moment, zombies included.

        Args:
            quick: Outside a namespace, skip the pids that belonged to others when last seen. An agent process that got
                such a pid again is then missed: good enough for measuring a cell, not for a kill.
        """
        strangers = self._strangers if quick else frozenset()
        found: dict[int, Process] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and (pid := int(name)) not in strangers:
                process = read_process(pid)
                if process is not None:
                    found[pid] = process
        found.pop(self._self, None)
        if self._isolated:
            found.pop(1, None)
            return found
        own = descendants(found, self._self)
        self._strangers = strangers | (found.keys() - own.keys())
        return own

    def cpu_s(self, processes: dict[int, Process]) -> float:
        """CPU seconds used by the agent so far: the living and the reaped. Only differences mean something."""
        return self.reaped_cpu_s + sum(process.cpu_s for process in processes.values())

    def oom_kills(self) -> int:
        """Processes the memory limit killed so far, by this sandbox's control group; 0 where it has none."""
        for path in _OOM_COUNTERS if self._isolated else ():
            for line in _read_text(path).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdecimal():
                    return int(value)
        return 0

    def memory_bytes(self, processes: dict[int, Process]) -> int:
        """Memory in use: the control group's figure, else the sum of resident sizes (shared pages count repeatedly)."""
        for path in _MEMORY_USED if self._isolated else ():
            text = _read_text(path).strip()
            if text.isdecimal():
                return int(text)
        return sum(process.rss_bytes for process in processes.values())


def descendants(processes: dict[int, Process], *ancestors: int) -> dict[int, Process]:
    """The processes below the given ones, by parentage; an orphan is below its new parent."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    todo = list(ancestors)
    while todo:
        for pid in children.pop(todo.pop(), ()):
            found[pid] = processes[pid]
            todo.append(pid)
    return found


def in_sessions(process: Process, sessions: Collection[int]) -> bool:
    """Whether a process belongs to one of the sessions that pid 1 started itself."""
    return process.pid in sessions or process.session in sessions


def control_group_limits_processes() -> bool:
    """Whether a control group already bounds the number of processes, so that a per-user limit is not needed."""
    return any(_read_text(path).strip().isdecimal() for path in _PROCESS_LIMITS)


def _read_text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read(65536)
    return ""
