"""Runs a policy through episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from research_gym.training.policies import Policy


@dataclass(frozen=True)
class Turn:
    """One action and what came of it."""

    action: str
    observation: str
    reward: float
    info: dict[str, Any]


@dataclass(frozen=True)
class Episode:
    """A whole episode as a policy lived it."""

    prompt: str
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    """The last `info`."""

    @property
    def reward_total(self) -> float:
        """Sum of the rewards; NaN where a fault of ours ended the episode."""
        return float(sum(turn.reward for turn in self.turns))


def run_episode(
    env: gymnasium.Env[str, str],
    policy: Policy,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> Episode:
    """Plays one episode to its end, or until the policy gives up (`terminated` and `truncated` both false then).

    Does not close the environment: the caller opened it.
    """
    observation, info = env.reset(seed=seed, options=options)
    turns: list[Turn] = []
    prompt, terminated, truncated = observation, False, False
    while not (terminated or truncated):
        action = policy(observation, info)
        if action is None:
            break
        observation, reward, terminated, truncated, info = env.step(action)
        turn = Turn(action, observation, float(reward), info)
        turns.append(turn)
        if on_turn is not None:
            on_turn(turn)
    return Episode(prompt, turns, terminated, truncated, info)
