"""Rewards on a learner's scale."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs


class ScaleReward(gymnasium.RewardWrapper[str, str], RecordConstructorArgs):
    """Returns `scale * reward + shift` at every step.

    NaN, the reward of a step that a fault of ours ended, stays NaN. `info["reward_terms"]`, `info["score"]` and
    `info["result"]` keep the unscaled numbers, so that what is logged compares.

    Args:
        env: any environment of text.
        scale: finite and not 0.
        shift: finite; added at every step, so a negative one is a price per step.

    Raises:
        ValueError: a number is out of its range.

    Example:
        >>> from research_gym.testing.fakes import FakeSandbox
        >>> import gymnasium, tempfile, pathlib
        >>> from research_gym.testing.tasks import write_answer_task
        >>> from research_gym.envs import ResearchEnv
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     env = ResearchEnv(write_answer_task(pathlib.Path(folder)), sandbox=FakeSandbox())
        >>> env = ScaleReward(env, scale=10.0, shift=-0.5)
        >>> _ = env.reset(seed=0)
        >>> env.step('%submit {"value": 42.0, "name": "done"}')[1]
        9.5
    """

    def __init__(self, env: gymnasium.Env[str, str], *, scale: float = 1.0, shift: float = 0.0) -> None:
        RecordConstructorArgs.__init__(self, scale=scale, shift=shift)
        gymnasium.RewardWrapper.__init__(self, env)
        self.scale = _finite("ScaleReward.scale", scale)
        self.shift = _finite("ScaleReward.shift", shift)
        if self.scale == 0.0:
            raise ValueError("ScaleReward.scale: expected a number other than 0, found 0: it would hide faults")

    def reward(self, reward: SupportsFloat) -> float:
        """The reward on the new scale."""
        return self.scale * float(reward) + self.shift


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, found {value!r}")
    return float(value)
