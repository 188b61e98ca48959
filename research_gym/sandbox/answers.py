"""What the supervisor's answers mean: records for the host, read from frames that are checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from research_gym.cell import CellResult, CellStatus, Output
from research_gym.errors import FileRefused


class RequestRefused(FileRefused):
    """The supervisor refused what is not about a file.

    No cell runs (`not_running`), no such program (`exec_failed`).
    """


@dataclass(frozen=True)
class Hello:
    """What pid 1 said of itself."""

    pid: int
    python: str
    machine: str


@dataclass(frozen=True)
class KernelStarted:
    """A kernel that answers."""

    startup_s: float
    pid: int


@dataclass(frozen=True)
class FileStat:
    """What is at a path; links are not followed."""

    exists: bool
    kind: str
    """`regular`, `directory`, `link`, `fifo`, `socket`, `device` or `none`."""
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class RunResult:
    """How a command ended."""

    exit_code: int
    """Negative: minus the number of the signal that killed it."""
    stdout: bytes
    """UTF-8; bytes that were not are replaced. Head and tail where there was more than `max_output_bytes`."""
    stderr: bytes
    duration_s: float
    cpu_s: float
    timed_out: bool
    omitted_bytes: int = 0


def read_cell(done: Mapping[str, Any], outputs: tuple[Output, ...], bad: int) -> CellResult:
    """The end of a cell.

    Args:
        done: The terminal frame.
        outputs: What came before it.
        bad: Items before it that were none.

    Raises:
        KeyError, ValueError: the frame is malformed.
    """
    status: CellStatus = done["status"]
    if status not in get_args(CellStatus):
        raise ValueError(f"status {status!r:.40}")
    counts = {key: whole(done, key) for key in ("execution_count", "oom_kills", "background_processes", "malformed")}
    counts["malformed"] += bad
    return CellResult(
        status=status,
        duration_s=number(done, "duration_s"),
        cpu_s=number(done, "cpu_s"),
        omitted_chars=whole(done, "omitted_bytes"),
        running=done.get("running") is True,
        killed=done.get("killed") is True,
        outputs=outputs,
        **counts,
    )


def whole(done: Mapping[str, Any], key: str) -> int:
    """A whole number >= 0.

    Raises:
        KeyError: missing.
        ValueError: anything else.
    """
    value = done[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key}: expected a whole number >= 0, found {value!r:.40}")
    return int(value)


def number(done: Mapping[str, Any], key: str) -> float:
    """A finite number >= 0.

    Raises:
        KeyError: missing.
        ValueError: anything else.
    """
    value = done[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{key}: expected a number >= 0, found {value!r:.40}")
    return float(value)
