"""Registers every shipped task and set with Gymnasium: from an id list, without opening a task file."""

from __future__ import annotations

import gymnasium

from research_gym.envs.suites import shipped, suite_of

ENTRY_POINT = "research_gym.envs.research_env:ResearchEnv"


def register_all() -> None:
    """Registers `<Suite>/<name>-v0` for every shipped task and `<Suite>/All-v0` for every suite. Safe to call twice.

    Specs hold strings only, so that `EnvSpec.to_json` works; `nondeterministic` is true: cells read clocks and
    processes. Gymnasium's passive checker stays out (`check_env` passes, and tests run it): after a `reset` that
    raised, as one does where no sandbox can be had, it would let every later `step` fail.
    """
    for task_id in shipped():
        _register(task_id, task_id)
    for suite in sorted({suite_of(task_id) for task_id in shipped()}):
        _register(f"{suite}/All-v0", f"{suite}/All")


def _register(env_id: str, task: str) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(
            id=env_id, entry_point=ENTRY_POINT, nondeterministic=True, disable_env_checker=True, kwargs={"task": task}
        )
