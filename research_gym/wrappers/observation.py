"""Observations for policies with a short memory: cut to length, joined over the last actions, with what is left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from research_gym.envs.spaces import Unicode
from research_gym.limits import Limits
from research_gym.text import clean, clip
from research_gym.wrappers.limits import StepBudget, WallBudget

MIN_CHARS = 64
"""Shortest cut: the line that says how much is missing must fit."""
_MAX_LINE_CHARS = 120


class TruncateObservation(gymnasium.ObservationWrapper[str, str, str], RecordConstructorArgs):
    """Cuts observations to `max_chars` characters: head and tail stay, a line between them says how much is missing.

    The prompt that `reset` returns is cut like any other observation. What landmarks and grader look at is not touched.

    Args:
        env: an environment whose observations are a `Unicode` space.
        max_chars: longest observation, the line included; at least 64.

    Raises:
        ValueError: `max_chars` is no integer of at least 64.
        TypeError: the observations are of another space.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, max_chars: int) -> None:
        RecordConstructorArgs.__init__(self, max_chars=max_chars)
        gymnasium.ObservationWrapper.__init__(self, env)
        inner = _unicode(self, env)
        self.max_chars = _whole("TruncateObservation.max_chars", max_chars, least=MIN_CHARS)
        self.observation_space = Unicode(min(inner.max_length, self.max_chars), clean=inner.clean)

    def observation(self, observation: str) -> str:
        """The observation, cut."""
        return clip(observation, max_chars=self.max_chars)


class WindowObservation(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Shows the last `pairs` actions with their observations as one text, for policies that keep no history.

    The text is the prompt (where `prompt` is true), then every pair as `>>> ` and the action, and its observation
    below. An action is shown cleaned and cut to `max_action_chars`; the inner observations stand as they are. `reset`
    returns the prompt.

    Args:
        env: an environment whose observations are a `Unicode` space.
        pairs: how many pairs are shown, at least 1.
        prompt: whether the prompt stays in front of them.
        max_action_chars: longest action in the text, at least 64. The action that is executed is never cut.

    Raises:
        ValueError: a number is out of its range.
        TypeError: the observations are of another space.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], *, pairs: int, prompt: bool = True, max_action_chars: int = 4000
    ) -> None:
        RecordConstructorArgs.__init__(self, pairs=pairs, prompt=prompt, max_action_chars=max_action_chars)
        gymnasium.Wrapper.__init__(self, env)
        inner = _unicode(self, env)
        self.pairs = _whole("WindowObservation.pairs", pairs, least=1)
        self.max_action_chars = _whole("WindowObservation.max_action_chars", max_action_chars, least=MIN_CHARS)
        self._keep_prompt = bool(prompt)
        self._prompt = ""
        self._window: deque[str] = deque(maxlen=self.pairs)
        longest_pair = len(_pair("", "")) + self.max_action_chars + inner.max_length
        self.observation_space = Unicode(inner.max_length + self.pairs * (longest_pair + 2), clean=inner.clean)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets and forgets every pair."""
        self._window.clear()
        self._prompt, info = self.env.reset(seed=seed, options=options)
        return self._prompt, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps and returns the window with the new pair at its end."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._window.append(_pair(clip(clean(action), max_chars=self.max_action_chars), observation))
        parts = [self._prompt, *self._window] if self._keep_prompt else list(self._window)
        return "\n\n".join(parts), reward, terminated, truncated, info


class TimeAwareObservation(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Appends a line with what the episode may still use: `[left: 97 actions, 3541 s, 1790 s of cell time]`.

    The numbers are the least of the environment's `limits` and of every `StepBudget`, `WallBudget` and stock
    `TimeLimit` inside this wrapper; put it outside of them. Seconds count from the return of `reset` by this process's
    clock and include the policy's own time; the supervisor's clock, which decides, may differ by a second. The last
    observation of an episode has no such line.

    Args:
        env: a research environment, wrapped or not.
        steps: whether the actions left are shown.
        seconds: whether the seconds left are shown, of the clock and of cell time.

    Raises:
        ValueError: neither is to be shown.
        TypeError: the observations are of another space than `Unicode`.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, steps: bool = True, seconds: bool = True) -> None:
        RecordConstructorArgs.__init__(self, steps=steps, seconds=seconds)
        gymnasium.Wrapper.__init__(self, env)
        if not (steps or seconds):
            raise ValueError("TimeAwareObservation: expected steps or seconds to be shown, found both False")
        self._show_steps, self._show_seconds = bool(steps), bool(seconds)
        self._steps = 0
        self._compute_s = 0.0
        self._began = time.monotonic()
        inner = _unicode(self, env)
        self.observation_space = Unicode(inner.max_length + _MAX_LINE_CHARS, clean=inner.clean)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets, with everything left."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps, self._compute_s, self._began = 0, 0.0, time.monotonic()
        return self._with_line(observation, elapsed_s=0.0), info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps and counts."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        self._compute_s += float(info["cell"]["duration_s"])
        if not (terminated or truncated):
            observation = self._with_line(observation, elapsed_s=time.monotonic() - self._began)
        return observation, reward, terminated, truncated, info

    def _with_line(self, observation: str, *, elapsed_s: float) -> str:
        limits: Limits = self.get_wrapper_attr("limits")
        inside = list(_wrappers(self.env))
        parts = []
        if self._show_steps:
            most = [limits.max_steps, *(layer.max_steps for layer in inside if isinstance(layer, StepBudget))]
            if self.env.spec is not None and self.env.spec.max_episode_steps is not None:
                most.append(self.env.spec.max_episode_steps)
            parts.append(f"{max(0, min(most) - self._steps)} actions")
        if self._show_seconds:
            wall_s = min([limits.life_s, *(layer.wall_s for layer in inside if isinstance(layer, WallBudget))])
            parts.append(f"{max(0, math.ceil(wall_s - elapsed_s))} s")
            parts.append(f"{max(0, math.ceil(limits.compute_s - self._compute_s))} s of cell time")
        line = clip(f"[left: {', '.join(parts)}]", max_chars=_MAX_LINE_CHARS - 1)
        return f"{observation}\n{line}" if observation else line


def _pair(action: str, observation: str) -> str:
    return f">>> {action}\n{observation}"


def _wrappers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _unicode(wrapper: object, env: gymnasium.Env[Any, Any]) -> Unicode:
    space = env.observation_space
    if not isinstance(space, Unicode):
        raise TypeError(f"{type(wrapper).__name__}: expected observations of a Unicode space, found {space}")
    return space


def _whole(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, found {value!r}")
    return value
