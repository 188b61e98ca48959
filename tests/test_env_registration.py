"""Ids, `gym.make`, specs, sets of tasks, stock wrappers and stock vector environments over the shipped tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import research_gym
from research_gym.envs.suites import shipped
from research_gym.testing.fakes import FakeSandbox

ROOT = str(Path(research_gym.__file__).resolve().parents[1])
IDS = sorted(shipped())
MADE = [task_id for task_id in IDS if task_id.startswith("Mini/")]
"""Those whose data are always here: they come from installed packages."""
PERCEPTRON = "Mini/mend-perceptron-v0"


@pytest.mark.parametrize("env_id", [*IDS, "Mini/All-v0"])
def test_spec_survives_json(env_id: str) -> None:
    spec = gym.spec(env_id)
    assert spec.nondeterministic
    again = EnvSpec.from_json(spec.to_json())
    assert again.id == env_id
    assert again.kwargs == spec.kwargs


def test_the_spec_of_a_made_environment_survives_json() -> None:
    """Limits and rewards become mappings on the way; the constructor takes them."""
    env = gym.make(PERCEPTRON, sandbox="local", limits={"max_steps": 5}, reward={"mode": "sparse"})
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    again = gym.make(EnvSpec.from_json(text))
    assert again.unwrapped.limits.max_steps == 5  # type: ignore[attr-defined]  # ours, behind Gymnasium's type
    env.close()
    again.close()


def test_limits_as_an_object_survive_json() -> None:
    from research_gym.limits import Limits
    from research_gym.reward import RewardSpec

    env = gym.make(PERCEPTRON, sandbox="local", limits=Limits(max_steps=5), reward=RewardSpec())
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.limits == env.unwrapped.limits  # type: ignore[attr-defined]  # ours, behind Gymnasium's type


def test_make_needs_no_import_line_and_works_from_anywhere(tmp_path: Path) -> None:
    code = (
        "import gymnasium as gym\n"
        "env = gym.make('research_gym:Mini/digits-v0', sandbox='local')\n"
        "print(env.unwrapped.task.id)\n"
        "env.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": ROOT},
    )  # fmt: skip
    assert done.stdout.strip() == "Mini/digits-v0", done.stderr


def test_unknown_ids_name_the_nearest() -> None:
    from research_gym.envs.research_env import ResearchEnv

    with pytest.raises(ValueError, match="Mini/digits-v0"):
        ResearchEnv("Mini/digit-v0")


def test_a_set_draws_its_task_from_the_seed() -> None:
    env = gym.make("Mini/All-v0", sandbox=FakeSandbox())
    drawn = []
    for seed in range(12):
        env.reset(seed=seed)
        drawn.append(env.get_wrapper_attr("task").id)
    assert set(drawn) <= set(MADE)
    assert len(set(drawn)) > 3
    env.reset(seed=0)
    assert env.get_wrapper_attr("task").id == drawn[0]
    for task_id in sorted(MADE)[:4]:
        observation, _ = env.reset(options={"task": task_id})
        assert env.get_wrapper_attr("task").id == task_id
        assert observation in env.observation_space
    with pytest.raises(ValueError, match="unknown task"):
        env.reset(options={"task": "Mini/nope-v0"})


@pytest.mark.slow
@pytest.mark.parametrize("env_id", MADE)
def test_gymnasiums_checker_passes_without_skipping(env_id: str) -> None:
    env = gym.make(env_id, sandbox="local", render_mode="ansi", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*isolat.*")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("env_id", MADE)
def test_stock_wrappers_work(env_id: str) -> None:
    env: gym.Env[str, str] = gym.make(env_id, sandbox=FakeSandbox(), max_episode_steps=3, render_mode="ansi_list")
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=0)
    flags = [env.step("pass")[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    frames: Any = env.render()
    assert len(frames) == 4
    assert all(isinstance(frame, str) for frame in frames)
    env.close()


def test_sync_vector_env_works() -> None:
    vector = gym.make_vec(PERCEPTRON, 2, vectorization_mode="sync", sandbox=FakeSandbox(lambda code: code))
    observations, infos = vector.reset(seed=0)
    assert isinstance(observations, tuple)
    assert len(observations) == 2
    observations, rewards, _, _, infos = vector.step(("first", "second"))
    assert observations == ("first", "second")
    assert rewards.tolist() == [0.0, 0.0]
    assert infos["score"].dtype == float
    assert infos["cell"]["execution_count"].tolist() == [1, 1]
    vector.close()


@pytest.mark.slow
def test_async_vector_env_works_with_spawned_workers() -> None:
    vector = gym.make_vec(
        f"research_gym:{PERCEPTRON}", 2, vectorization_mode="async", sandbox="local",
        vector_kwargs={"shared_memory": False, "context": "spawn"},
    )  # fmt: skip
    try:
        observations, _ = vector.reset(seed=0)
        assert all("perceptron" in text.lower() for text in observations)
        observations, _, _, _, infos = vector.step(("print('a b é')", "1 / 0"))
        assert observations[0] == "a b é"
        assert "ZeroDivisionError" in observations[1]
        assert infos["cell"]["status"].tolist() == ["ok", "error"]
    finally:
        vector.close()


def test_shared_memory_fails_with_a_sentence_not_with_stale_text() -> None:
    with pytest.raises(ValueError, match="shared_memory"):
        gym.make_vec(PERCEPTRON, 1, vectorization_mode="async", sandbox="local", vector_kwargs={"shared_memory": True})
