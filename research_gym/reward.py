"""Rewards of a step: what landmarks pay on the way, and what the graded submission pays at the end.

Formulas and their guarantees; t counts steps from 1, T is the last, Phi in [0, 1] is the share of landmark weight
reached (Phi_0 = 0, never falling), R in [0, 1] the terminal score (0 without a valid submission):

- `bounded`: r_t = lam * (Phi_t - Phi_{t-1}), plus R at the end. Return R + lam * Phi_T, so that landmarks change the
  best policy's expected score by at most lam, and success without landmarks (1) beats failure with all of them (lam).
- `sparse`: R at the end, nothing before.
- `gated`: R * (1 - lam + lam * Phi_T) at the end: without success no landmark is worth anything.
- `pbrs`: r_t = beta * (gamma * Phi_t - Phi_{t-1}), with Phi_T := 0 at the end, plus R. The discounted return is
  gamma^(T-1) * R exactly, so no policy's value changes (Ng, Harada, Russell 1999; Grzes 2017 for the zero at the end).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

RewardMode = Literal["bounded", "sparse", "gated", "pbrs"]

MAX_BOUNDED_LAM = 0.1
"""Above it, failing with all landmarks would begin to rival success: lam is the most that fakes could earn."""


@dataclass(frozen=True)
class RewardSpec:
    """How an episode is paid.

    Raises:
        ValueError: a field is not in its range; the message names it.
    """

    mode: RewardMode = "bounded"
    lam: float = 0.1
    """Weight of all landmarks together: at most 0.1 in `bounded`, at most 1 in `gated`."""
    gamma: float = 1.0
    """`pbrs` only: discount, in (0, 1]; it must be the learner's, or the guarantee is void."""
    beta: float = 1.0
    """`pbrs` only: scale of the shaping, finite and not negative."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(RewardMode):
            raise ValueError(f"RewardSpec.mode: {_expected(str(self.mode), get_args(RewardMode))}, found {self.mode!r}")
        most = MAX_BOUNDED_LAM if self.mode == "bounded" else 1.0
        for name, low, high in (("lam", 0.0, most), ("gamma", 0.0, 1.0), ("beta", 0.0, math.inf)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not low <= value <= high or (name == "gamma" and value == 0):
                expected = f"expected a number in [{low:g}, {high:g}] with mode {self.mode!r}"
                raise ValueError(f"RewardSpec.{name}: {expected}, found {value!r}")

    @classmethod
    def of(cls, value: RewardSpec | Mapping[str, Any] | None) -> RewardSpec:
        """Builds it from what a user passed: `None` (the default), an instance, or a mapping of its fields.

        Raises:
            ValueError: a key is not a field (the message offers the nearest), or a value is out of range.
            TypeError: it is none of the three.

        Example:
            >>> RewardSpec.of({"mode": "sparse"}).mode
            'sparse'
            >>> RewardSpec.of({"mod": "sparse"})
            Traceback (most recent call last):
            ...
            ValueError: reward: unknown key 'mod'; did you mean 'mode'?
        """
        if value is None:
            return cls()
        if isinstance(value, RewardSpec):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"reward: expected a RewardSpec, a mapping of its fields or None, found {value!r}")
        known = [item.name for item in fields(cls)]
        for key in value:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ValueError(f"reward: unknown key {key!r}; {hint}")
        return cls(**value)


def _expected(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"expected one of {', '.join(known)}" + (f" (did you mean {near[0]!r}?)" if near else "")


@dataclass(frozen=True)
class RewardTerms:
    """The parts of one step's reward; they sum to it."""

    landmark: float
    score: float
    penalty: float = 0.0

    @property
    def total(self) -> float:
        """The reward of the step."""
        return self.landmark + self.score + self.penalty

    def to_info(self) -> dict[str, float]:
        """`info["reward_terms"]`: three floats."""
        return {key: float(value) for key, value in asdict(self).items()}


def terms(
    spec: RewardSpec,
    *,
    potential_before: float,
    potential: float,
    score: float | None,
    terminated: bool,
    truncated: bool,
) -> RewardTerms:
    """Computes the reward of one step. Total for potentials and scores in [0, 1]: always finite.

    Args:
        potential_before: Phi before the step.
        potential: Phi after the step.
        score: the terminal score; used only when the episode was `terminated` by a graded submission.

    Raises:
        ValueError: a potential or the score is not in [0, 1], or the potential fell, or an episode terminated unscored.

    Example:
        >>> terms(RewardSpec(), potential_before=0.0, potential=0.5, score=None, terminated=False, truncated=False)
        RewardTerms(landmark=0.05, score=0.0, penalty=0.0)
    """
    for name, value in (("potential_before", potential_before), ("potential", potential), ("score", score or 0.0)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"reward: {name}: expected a number in [0, 1], found {value!r}")
    if potential < potential_before:
        raise ValueError(f"reward: the potential fell from {potential_before!r} to {potential!r}; landmarks never do")
    if terminated and score is None:
        raise ValueError("reward: the episode terminated: expected its score, found None")
    earned = float(score) if terminated and score is not None else 0.0
    ended = terminated or truncated
    match spec.mode:
        case "sparse":
            return RewardTerms(0.0, earned)
        case "gated":
            # Of R * (1 - lam + lam * Phi) the landmarks' part is R * lam * Phi.
            return RewardTerms(earned * spec.lam * potential, earned * (1.0 - spec.lam))
        case "pbrs":
            after = 0.0 if ended else potential
            return RewardTerms(spec.beta * (spec.gamma * after - potential_before), earned)
        case "bounded":
            return RewardTerms(spec.lam * potential - spec.lam * potential_before, earned)


def truncation_term(spec: RewardSpec, *, potential: float) -> float:
    """What a learner that bootstraps V(s_T) at truncation adds to the last reward in `pbrs`: beta * gamma * Phi_T.

    `terms` takes Phi_T as 0 there, which is right for learners that do not bootstrap (REINFORCE, GRPO). 0 in other
    modes.
    """
    return spec.beta * spec.gamma * potential if spec.mode == "pbrs" else 0.0
