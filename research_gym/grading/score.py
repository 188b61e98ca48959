"""The verdict of one grade: what the episode earned, in which metric, and if it counted at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Score:
    """A graded (or refused) submission.

    A refused submission has `valid=False`, `value` 0.0, a stable code in `reason` and, in `message`, what to mend;
    neither holds anything computed from labels. A broken grader is never a `Score`: it is a `GraderError`.

    Raises:
        ValueError: `value` is not a finite number in [0, 1], `raw` is not finite, or `valid`, `value` and `reason`
        disagree.

    Example:
        >>> Score(value=0.5, metric="accuracy", raw=0.55).to_json()["value"]
        0.5
        >>> Score.refused(metric="accuracy", reason="rows", message="expected 3 rows, found 2").valid
        False
    """

    value: float
    """What the episode earns, in [0, 1]."""
    metric: str
    """Name of the metric behind `raw`: a key of `metrics.METRICS`, or `output_match` for answers."""
    raw: float | None = None
    """The metric itself, in its own units; `None` when nothing was measured."""
    lower_is_better: bool = False
    valid: bool = True
    reason: str = ""
    """Stable code of the refusal (`schema.CODES`); empty when valid."""
    message: str = ""
    """For the agent: what was expected, what was found, where. Free of labels."""
    upstream: Mapping[str, float] = field(default_factory=dict)
    """The same submission under the published scorer, bug for bug, for comparison with published numbers."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ValueError(f"Score.value: expected a number in [0, 1], found {self.value!r}")
        if self.raw is not None and not math.isfinite(self.raw):
            raise ValueError(f"Score.raw: expected a finite number or None, found {self.raw!r}")
        if self.valid == bool(self.reason) or (not self.valid and self.value != 0.0):
            raise ValueError(f"Score: valid={self.valid} with reason {self.reason!r} and value {self.value!r}")

    @classmethod
    def refused(cls, *, metric: str, reason: str, message: str, lower_is_better: bool = False) -> Score:
        """Builds the score of a submission that breaks the declared format: worth 0.0, to be mended and resubmitted."""
        return cls(0.0, metric, None, lower_is_better, valid=False, reason=reason, message=message)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        return {
            "value": self.value,
            "metric": self.metric,
            "raw": self.raw,
            "lower_is_better": self.lower_is_better,
            "valid": self.valid,
            "reason": self.reason,
            "message": self.message,
            "upstream": dict(self.upstream),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Score:
        """Rebuilds a score from `to_json`, checking every field.

        Raises:
            ValueError: a field is missing, unknown, of the wrong type, or out of range.
        """
        if set(value) != set(_TYPES):
            raise ValueError(f"Score: expected the fields {sorted(_TYPES)}, found {sorted(map(str, value))}")
        for name, kinds in _TYPES.items():
            if not isinstance(value[name], kinds) or (isinstance(value[name], bool) and bool not in kinds):
                raise ValueError(f"Score.{name}: unexpected type {type(value[name]).__name__}")
        upstream = value["upstream"]
        for number in upstream.values():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                raise ValueError("Score.upstream: expected finite numbers")
        raw = value["raw"]
        return cls(
            value=float(value["value"]),
            metric=value["metric"],
            raw=None if raw is None else float(raw),
            lower_is_better=value["lower_is_better"],
            valid=value["valid"],
            reason=value["reason"],
            message=value["message"],
            upstream={str(name): float(number) for name, number in upstream.items()},
        )


_TYPES: dict[str, tuple[type, ...]] = {
    "value": (int, float),
    "metric": (str,),
    "raw": (int, float, type(None)),
    "lower_is_better": (bool,),
    "valid": (bool,),
    "reason": (str,),
    "message": (str,),
    "upstream": (dict,),
}
