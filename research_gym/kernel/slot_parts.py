"""What a kernel slot is made of: its host, a cell under way, how a step ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from research_gym.kernel.kernel_link import KernelLink
from research_gym.kernel.loop import Timer


class Host(Protocol):
    """What a slot needs from the supervisor."""

    def send(self, header: dict[str, Any]) -> None:
        """Sends a frame to the host."""

    def run_sessions(self) -> frozenset[int]:
        """Sessions of `run` commands, which a kernel kill spares."""


Launch = Callable[[str, Callable[[dict[str, Any]], None], Callable[[str], None]], KernelLink]


@dataclass
class Cell:
    """A cell between its `execute` and its end."""

    number: int
    on_timeout: str
    started_ticks: int
    seen_bytes: int
    reason: str = ""
    """Why pid 1 ends it (`timeout`, `interrupted`, `died`); the kernel's own word counts only while this is empty."""
    timers: list[Timer] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """How a cell stands at the end of a step."""

    status: str
    running: bool = False
    killed: bool = False
