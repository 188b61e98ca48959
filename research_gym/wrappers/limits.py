"""Budgets from outside the environment: steps, tokens and wall seconds of an episode."""

from __future__ import annotations

import abc
import importlib
import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs

TRUNCATED_BY = "truncated_by"
"""Key of `info`: the budget that ended the episode, empty before and where none did."""
CountTokens: TypeAlias = Callable[[str], int]
"""How many tokens a text has."""


def quarter_of_chars(text: str) -> int:
    """Counts a token for every four characters begun: a rule of thumb that needs no tokenizer.

    Example:
        >>> quarter_of_chars("print(6 * 7)"), quarter_of_chars("")
        (3, 0)
    """
    return math.ceil(len(text) / 4)


class Budget(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs, abc.ABC):
    """What the budgets share: they count, and truncate the episode with the step that used up the rest.

    The action that passes the budget is still executed, and a submission in it is still graded: `terminated` wins. A
    truncation sets `info["truncated_by"]` to the budget's `name` and, without a fault, `info["score"]` to 0.0, as the
    environment's own limits do. The sandbox lives until the next `reset` or `close`.

    The environment's own `limits` end an episode more sharply: they interrupt the running cell, add `grade` and
    `result` to `info`, and settle the potential of `pbrs` rewards. Use `limits={"max_steps": 20}` where that will do,
    and budgets for what the environment cannot count, or for an environment that another made.

    Raises:
        ResetNeeded: `step` after the budget ended the episode.
    """

    name: str
    """The word in `info["truncated_by"]`."""
    key: str
    """The key of `info` that says how much is left, at reset and at every step."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self._ended = False

    @abc.abstractmethod
    def begin(self, prompt: str) -> None:
        """Starts to count at the prompt of a new episode."""

    @abc.abstractmethod
    def spend(self, action: str, observation: str) -> None:
        """Counts one step."""

    @abc.abstractmethod
    def left(self) -> int | float:
        """What is left, always of the same type; the episode ends at 0."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets environment and budget."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._ended = False
        self.begin(observation)
        return observation, {TRUNCATED_BY: ""} | info | {self.key: self.left()}

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps and counts."""
        if self._ended:
            raise ResetNeeded(f"the {self.name} of this episode is used up: call reset() first")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.spend(action, observation)
        info = {TRUNCATED_BY: ""} | info | {self.key: self.left()}
        if self.left() <= 0 and not (terminated or truncated):
            truncated = self._ended = True
            info[TRUNCATED_BY] = self.name
            if not info.get("fault"):
                info["score"] = 0.0
        return observation, reward, terminated, truncated, info


class StepBudget(Budget):
    """Truncates after `max_steps` steps; `info["steps_left"]` is an int.

    Args:
        env: a research environment, wrapped or not.
        max_steps: at least 1.

    Raises:
        ValueError: `max_steps` is no integer of at least 1.
    """

    name = "step_budget"
    key = "steps_left"

    def __init__(self, env: gymnasium.Env[str, str], *, max_steps: int) -> None:
        RecordConstructorArgs.__init__(self, max_steps=max_steps)
        super().__init__(env)
        self.max_steps = int(_positive("StepBudget.max_steps", max_steps, whole=True))
        self._steps = 0

    def begin(self, prompt: str) -> None:
        """Starts at 0."""
        self._steps = 0

    def spend(self, action: str, observation: str) -> None:
        """Counts one."""
        self._steps += 1

    def left(self) -> int:
        """Steps left."""
        return max(0, self.max_steps - self._steps)


class TokenBudget(Budget):
    """Truncates when prompt, actions and observations together reach `max_tokens`; `info["tokens_left"]` is an int.

    Every text is counted once, as a policy that keeps its history sees it; text that a policy thinks but does not play
    is unknown here.

    Args:
        env: a research environment, wrapped or not.
        max_tokens: at least 1.
        count: how many tokens a text has: a function, or its name as `"module:function"`, which `env.spec.to_json()`
            can write down where it cannot write a function. `None` counts four characters as a token.

    Raises:
        ValueError: `max_tokens` is no integer of at least 1, or `count` names nothing that can be called.
    """

    name = "token_budget"
    key = "tokens_left"

    def __init__(
        self, env: gymnasium.Env[str, str], *, max_tokens: int, count: CountTokens | str | None = None
    ) -> None:
        RecordConstructorArgs.__init__(self, max_tokens=max_tokens, count=count)
        super().__init__(env)
        self.max_tokens = int(_positive("TokenBudget.max_tokens", max_tokens, whole=True))
        self._count = _counter(count)
        self._tokens = 0

    def begin(self, prompt: str) -> None:
        """Starts with the prompt's tokens."""
        self._tokens = self._count(prompt)

    def spend(self, action: str, observation: str) -> None:
        """Counts both texts."""
        self._tokens += self._count(action) + self._count(observation)

    def left(self) -> int:
        """Tokens left."""
        return max(0, self.max_tokens - int(self._tokens))


class WallBudget(Budget):
    """Truncates with the first step that ends `wall_s` seconds after `reset`; `info["wall_left_s"]` is a float.

    The clock is this process's, starts when `reset` returns and counts the policy's own time. A running cell is
    not cut short: that is `limits={"cell_timeout_s": ...}`.

    Args:
        env: a research environment, wrapped or not.
        wall_s: seconds, above 0.

    Raises:
        ValueError: `wall_s` is no finite number above 0.
    """

    name = "wall_budget"
    key = "wall_left_s"

    def __init__(self, env: gymnasium.Env[str, str], *, wall_s: float) -> None:
        RecordConstructorArgs.__init__(self, wall_s=wall_s)
        super().__init__(env)
        self.wall_s = _positive("WallBudget.wall_s", wall_s)
        self._began = 0.0
        self._left_s = self.wall_s

    def begin(self, prompt: str) -> None:
        """Starts the clock."""
        self._began, self._left_s = time.monotonic(), self.wall_s

    def spend(self, action: str, observation: str) -> None:
        """Reads the clock."""
        self._left_s = max(0.0, self.wall_s - (time.monotonic() - self._began))

    def left(self) -> float:
        """Seconds left when the last step ended."""
        return self._left_s


def _positive(name: str, value: Any, *, whole: bool = False) -> float:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}: expected {'an integer' if whole else 'a finite number'} above 0, found {value!r}")
    return float(value)


def _counter(count: CountTokens | str | None) -> CountTokens:
    if count is None:
        return quarter_of_chars
    found: Any = count
    if isinstance(count, str):
        module, _, function = count.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"TokenBudget.count: expected 'module:function', found {count!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"TokenBudget.count: expected a function of a text, found {count!r}")
    return found  # type: ignore[no-any-return]  # what it returns is the caller's promise
