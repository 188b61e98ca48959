"""Turns faults of ours into a truncated step that a trainer can mask, instead of an exception that ends its batch."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import ResearchGymError, SandboxError, SandboxUnavailable

MAX_FAILED_STARTS = 3


class FaultsToTruncation(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Catches what research_gym raises when *its own* parts fail: a lost sandbox, a broken grader.

    `step` then returns an empty observation, reward NaN, `terminated=False`, `truncated=True`, and `info` with its
    usual keys and `info["fault"] = "kind: message"`: drop such an episode from the loss, its NaN is not a score. The
    next `reset` starts a fresh sandbox. A `reset` whose sandbox does not start is tried three times in all.

    Guarantees nothing about errors that are the caller's (a wrong type, a step after the end): those still raise.

    Raises:
        SandboxUnavailable: three starts in a row failed; the message carries the last one's words.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets, trying again where the sandbox did not start."""
        for attempt in range(1, MAX_FAILED_STARTS + 1):
            try:
                return self.env.reset(seed=seed, options=options)
            except SandboxError as error:
                if attempt == MAX_FAILED_STARTS:
                    raise SandboxUnavailable(
                        f"{MAX_FAILED_STARTS} sandbox starts in a row failed, the last with: {error}. "
                        "`research-gym doctor` shows what is missing."
                    ) from error
        raise AssertionError("unreachable: the loop returns or raises")

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps; a fault becomes a truncated step with reward NaN."""
        try:
            return self.env.step(action)
        except ResearchGymError as error:
            inner = self.unwrapped
            assert isinstance(inner, ResearchEnv)
            return "", float("nan"), False, True, inner.fault_info(error)
