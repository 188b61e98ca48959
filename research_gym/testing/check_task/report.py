"""What a check of one task found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskReport:
    """One task, checked. A number is `None` where the check did not get that far."""

    task: str
    """Id of the task."""
    metric: str
    lower_is_better: bool
    optimal: float | None = None
    """Raw score that earns 1."""
    worst: float | None = None
    """Raw score that earns 0; `None` for answers."""
    gold: float | None = None
    """Reward of the labels themselves, or of the gold answer: 1.0."""
    trivial: float | None = None
    """Largest reward of a trivial model, or of an answer of the right form without content: 0.0."""
    noop: float | None = None
    """Score of an episode that does nothing and submits: 0.0."""
    failures: tuple[str, ...] = ()
    """`part: reason` for everything that is not as it must be. Parts: data, gold, trivial, defects, unreachable, noop,
    reference, stable, sandbox, grader."""
    searched: str = ""
    """What the search for labels inside the sandbox looked at."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def to_row(self) -> dict[str, Any]:
        """The row of `research-gym check`."""
        return {
            "task": self.task,
            "metric": self.metric,
            "lower_is_better": self.lower_is_better,
            "optimal": self.optimal,
            "worst": self.worst,
            "gold": self.gold,
            "trivial": self.trivial,
            "noop": self.noop,
            "ok": self.ok,
            "failures": list(self.failures),
        }
