"""May this kernel be forked now? Ends helper threads that libraries leave behind, names what a fork would lose.

The answer helps honest code. It is this process's word: pid 1 looks at the processes of the episode itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_LOKY = ("joblib.externals.loky", "loky")
_TRACKERS = ("multiprocessing.resource_tracker", *(f"{package}.backend.resource_tracker" for package in _LOKY))

_FOLD_S = 1.0
"""How long an ended pool may take to end its last thread."""


@dataclass(frozen=True)
class Refusal:
    """Why a fork is refused."""

    what: str
    """Stable word: `cell`, `threads`, `subprocesses`, `sockets`, `cuda`, `processes` (no process could be made)."""
    message: str
    """One sentence that names the thing."""


def fold_helpers(shell: Any) -> None:
    """Ends helpers that hold no state of the agent: tqdm's monitor, the loop of `%%bash`, joblib's idle workers."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if tqdm is not None:
        tqdm.monitor_interval = 0
        if tqdm.monitor is not None:
            tqdm.monitor.exit()
            tqdm.monitor = None
    scripts = shell.magics_manager.registry.get("ScriptMagics")
    if scripts is not None and not any(process.returncode is None for process in scripts.bg_processes):
        scripts.stop_event_loop()
    for package in _LOKY:
        executor = getattr(sys.modules.get(f"{package}.reusable_executor"), "_executor", None)
        if executor is not None and not executor._pending_work_items:
            executor.shutdown(wait=True, kill_workers=True)
            for thread in threading.enumerate():
                if thread.name == "QueueFeederThread":
                    thread.join(_FOLD_S)


def find_refusal(*, own_sockets: Collection[int]) -> Refusal | None:
    """Looks at threads, child processes and descriptors of this process.

    Args:
        own_sockets: Descriptors of the kernel itself (link, self-pipe of its loop): each child gets its own.
    """
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return Refusal("threads", f"user threads are running: {', '.join(sorted(threads)[:8])}")
    trackers = {_tracker_pid(name) for name in _TRACKERS}
    children = [pid for pid in child_pids() if pid not in trackers and not _is_zombie(pid)]
    if children:
        named = ", ".join(f"{pid} ({_command(pid)})" for pid in children[:8])
        return Refusal("subprocesses", f"subprocesses of the kernel are alive: {named}")
    return _descriptor_refusal(own_sockets)


def child_pids() -> list[int]:
    """Direct children of this process, whichever thread started them."""
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            pids += map(int, file.read().split())
    return pids


def _descriptor_refusal(own_sockets: Collection[int]) -> Refusal | None:
    sockets: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
            is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith("/dev/nvidia"):
            return Refusal(
                "cuda", f"CUDA is initialised ({target} is open as descriptor {fd}); a GPU context cannot be forked"
            )
        if is_socket and fd not in own_sockets:
            sockets.append(fd)
    if sockets:
        return Refusal(
            "sockets", f"sockets are open: descriptors {', '.join(map(str, sorted(sockets)[:8]))}; close them first"
        )
    return None


def _tracker_pid(module: str) -> int | None:
    tracker = getattr(sys.modules.get(module), "_resource_tracker", None)
    pid = getattr(tracker, "_pid", None)
    return pid if isinstance(pid, int) else None


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200).rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    return re.sub(r"[^ -~]", "?", b" ".join(words).decode("utf-8", "replace"))[:60] or "?"
