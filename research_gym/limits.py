"""What one episode may use: time, memory, processes, disk and output; enforced outside the agent's kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

MIB = 1 << 20
GIB = 1 << 30

_LEAST = {
    "memory_bytes": 64 * MIB,
    "disk_bytes": MIB,
    "shm_bytes": MIB,
    "processes": 16,
    "open_files": 64,
    "observation_chars": 2000,
}
"""Below these no kernel starts, or no observation has room for its notices."""
_MOST = 1 << 62

OnTimeout = Literal["interrupt", "keep"]


@dataclass(frozen=True)
class Limits:
    """Budgets of one episode.

    Times are wall-clock seconds unless the name says otherwise; sizes are bytes. The supervisor in the sandbox enforces
    all of them with its own clocks, so that they hold even when the host stops reading.

    Raises:
        ValueError: a limit is not positive, or `on_timeout` is not one of its two words.
    """

    cell_timeout_s: float = 300.0
    """Ends the *step* (cell status `timeout`); what happens to the cell is `on_timeout`."""
    on_timeout: OnTimeout = "interrupt"
    """`interrupt`: interrupt the cell, wait `grace_s`, then kill the kernel. `keep`: the cell runs on and `%wait` shows
    what is new."""
    grace_s: float = 2.0
    """Seconds between an interrupt and the kill."""
    start_timeout_s: float = 60.0
    """Deadline for a sandbox and its kernel to come up."""
    compute_s: float = 1800.0
    """Sum of the wall seconds of all cells; reaching it kills the kernel and truncates the episode."""
    life_s: float = 3600.0
    """Lifetime of the sandbox: its pid 1 exits at this age whatever the host does."""
    max_steps: int = 100
    """Steps before the episode is truncated."""
    memory_bytes: int = 2 * GIB
    cpus: float = 1.0
    processes: int = 256
    disk_bytes: int = 1 * GIB
    """Size of the writable work area, a tmpfs: it counts as memory while it is used."""
    shm_bytes: int = 512 * MIB
    open_files: int = 4096
    output_bytes: int = 1 * MIB
    """Kernel output kept per step; more is counted as omitted."""
    output_kill_bytes: int = 64 * MIB
    """Kernel output per step after which the cell is interrupted, then killed."""
    output_messages: int = 2000
    """Display messages kept per step; more are counted as omitted."""
    observation_chars: int = 20_000
    """Longest observation; head and tail are kept and the text says what was dropped."""
    kernel_restarts: int = 3
    """Fresh kernels after a death, per episode; one more death truncates."""

    def __post_init__(self) -> None:
        if self.on_timeout not in ("interrupt", "keep"):
            raise ValueError(f"Limits.on_timeout: expected 'interrupt' or 'keep', found {self.on_timeout!r}")
        for field in fields(self):
            if field.name == "on_timeout":
                continue
            value, least = getattr(self, field.name), _LEAST.get(field.name, 0)
            kinds = (int,) if field.type == "int" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
                expected = "an integer" if kinds == (int,) else "a finite number"
                raise ValueError(f"Limits.{field.name}: expected {expected}, found {value!r}")
            if value < least or (value == 0 and field.name != "kernel_restarts") or value > _MOST:
                raise ValueError(f"Limits.{field.name}: expected at least {least or 'more than 0'}, found {value!r}")

    @classmethod
    def of(cls, value: Limits | Mapping[str, Any] | None, *, base: Limits | None = None) -> Limits:
        """Builds limits from what a user passed: `None` (the base), an instance, or a mapping of changes to the base.

        Raises:
            ValueError: a key is not a limit; the message offers the nearest one.
        """
        if isinstance(value, Limits):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"limits: expected Limits or a mapping of its fields, found {value!r}")
        base = base or cls()
        known = {field.name: getattr(base, field.name) for field in fields(cls)}
        for key, item in (value or {}).items():
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
                raise ValueError(f"limits: unknown key {key!r}{hint}")
            known[key] = item
        return cls(**known)
