"""The result of an episode, as it is logged, compared and published."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class EpisodeResult:
    """What came of one episode.

    Example:
        >>> result = EpisodeResult(task="Mini/digits-v0", reason="submitted", steps=3, reward_total=1.0, score=0.9)
        >>> EpisodeResult.from_json(result.to_json()) == result
        True
    """

    task: str
    """Id of the task."""
    reason: str
    """Why it ended: `submitted`, or what truncated it."""
    steps: int
    reward_total: float
    """Sum of the rewards of its steps, not discounted."""
    score: float
    """Terminal score in [0, 1]; 0.0 without a graded submission, NaN where a fault of ours ended it."""
    metric: str = ""
    raw: float | None = None
    """The metric in its own units; `None` where nothing was measured."""
    landmarks: Mapping[str, int] = field(default_factory=dict)
    """Id -> step at which it was reached, -1 if never."""
    landmark_evidence: Mapping[str, str] = field(default_factory=dict)
    wall_s: float = 0.0
    compute_s: float = 0.0
    """Wall seconds of its cells."""

    def to_json(self) -> str:
        """Returns one line of strict JSON (ASCII, no NaN: an absent number is `null`)."""
        plain: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            plain[item.name] = dict(value) if isinstance(value, Mapping) else value
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_json(cls, value: str | Mapping[str, Any]) -> EpisodeResult:
        """Rebuilds a result from `to_json`, or from its parsed form.

        Raises:
            ValueError: it is not JSON, or a field is missing, unknown or of another type; the message names it.
        """
        data = json.loads(value) if isinstance(value, str) else value
        if not isinstance(data, Mapping):
            raise ValueError(f"EpisodeResult: expected a JSON object, found {type(data).__name__}")
        known = {item.name for item in fields(cls)}
        if set(data) != known:
            odd = sorted(map(str, known ^ set(data)))
            raise ValueError(f"EpisodeResult: expected the fields {sorted(known)}; missing or unknown: {odd}")
        for name, kinds in _KINDS.items():
            if not isinstance(data[name], kinds) or isinstance(data[name], bool):
                raise ValueError(f"EpisodeResult.{name}: unexpected type {type(data[name]).__name__}")
        numbers = {name: _number(data[name]) for name in ("reward_total", "score", "wall_s", "compute_s")}
        raw = data["raw"]
        return cls(**{**data, **numbers, "raw": None if raw is None else float(raw)})


_KINDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "reason": (str,),
    "steps": (int,),
    "reward_total": (int, float, type(None)),
    "score": (int, float, type(None)),
    "metric": (str,),
    "raw": (int, float, type(None)),
    "landmarks": (Mapping,),
    "landmark_evidence": (Mapping,),
    "wall_s": (int, float, type(None)),
    "compute_s": (int, float, type(None)),
}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
