"""Gymnasium's own wrappers and vector environments around ours, over a sandbox that runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers as stock
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from research_gym.envs import ResearchEnv, Unicode
from research_gym.testing.fakes import FakeSandbox
from research_gym.testing.tasks import write_answer_task

RIGHT = '%submit {"value": 42.0, "name": "done"}'
MakeEnv = Callable[..., tuple[ResearchEnv, FakeSandbox]]
Env = gym.Env[str, str]


def echo(code: str) -> str:
    return f"ran {code}"


def test_record_episode_statistics(make: MakeEnv) -> None:
    env: Env = stock.RecordEpisodeStatistics(make()[0])
    env.reset(seed=0)
    env.step("x")
    info = env.step(RIGHT)[4]
    assert info["episode"]["r"] == 1.0
    assert info["episode"]["l"] == 2
    assert info["episode"]["t"] >= 0.0
    assert info["result"].reward_total == 1.0


def test_time_limit_truncates(make: MakeEnv) -> None:
    env: Env = stock.TimeLimit(make()[0], max_episode_steps=2)
    env.reset(seed=0)
    assert env.step("x")[2:4] == (False, False)
    assert env.step("x")[2:4] == (False, True)


def test_time_limit_by_make_is_in_the_spec() -> None:
    env: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox=FakeSandbox(), max_episode_steps=1)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 1
    env.reset(seed=0)
    assert env.step("x")[3]
    env.close()


def test_a_graded_submission_in_the_last_step_of_a_time_limit_keeps_its_reward(make: MakeEnv) -> None:
    env: Env = stock.TimeLimit(make()[0], max_episode_steps=1)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(RIGHT)
    assert (reward, terminated) == (1.0, True)
    assert info["grade"].value == 1.0


def test_transform_reward(make: MakeEnv) -> None:
    env: Env = stock.TransformReward(make()[0], lambda reward: 2.0 * float(reward) - 1.0)
    env.reset(seed=0)
    assert env.step("x")[1] == -1.0
    assert env.step(RIGHT)[1] == 1.0


def test_clip_and_normalize_reward(make: MakeEnv) -> None:
    clipped: Env = stock.ClipReward(make()[0], max_reward=0.5)
    clipped.reset(seed=0)
    assert clipped.step(RIGHT)[1] == 0.5
    normalized: Env = stock.NormalizeReward(make()[0])
    normalized.reset(seed=0)
    assert math.isfinite(float(normalized.step(RIGHT)[1]))


def test_transform_observation(make: MakeEnv) -> None:
    env: Env = stock.TransformObservation(make(echo)[0], str.upper, observation_space=Unicode(1 << 20))
    observation, _ = env.reset(seed=0)
    assert observation == observation.upper()
    assert env.step("x")[0] == "RAN X"


def test_transform_action(make: MakeEnv) -> None:
    inner, fake = make()
    env: Env = stock.TransformAction(inner, lambda text: text.removeprefix("```\n"), action_space=Unicode(1 << 20))
    env.reset(seed=0)
    env.step("```\nprint(1)")
    assert fake.session.cells == ["print(1)"]


def test_order_enforcing_of_make() -> None:
    """The passive checker stays out: see the next test. That it has nothing to say is tested below."""
    env: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox=FakeSandbox())
    layers = [type(layer).__name__ for layer in _layers(env)]
    assert layers == ["OrderEnforcing", "ResearchEnv"]
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    env.step("x")
    env.close()


def test_a_reset_that_raised_does_not_break_the_steps_after_the_next_one() -> None:
    """With Gymnasium's passive checker in between, every later step raises a TypeError of its own."""
    env: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox=FakeSandbox(echo))
    with pytest.raises(ValueError, match="mapping"):
        env.reset(options=5)  # type: ignore[arg-type]
    env.reset(seed=0)
    assert env.step("x")[0] == "ran x"
    env.close()


@pytest.mark.filterwarnings("error::UserWarning")
def test_passive_checker_has_nothing_to_say(make: MakeEnv) -> None:
    env: Env = stock.PassiveEnvChecker(make(echo)[0])
    env.reset(seed=0)
    env.step("x")
    env.step("y")
    env.close()


def test_autoreset_starts_the_next_episode(make: MakeEnv) -> None:
    inner, fake = make()
    env: Env = stock.Autoreset(inner)
    prompt, _ = env.reset(seed=0)
    assert env.step(RIGHT)[2]
    assert env.step("ignored")[0] == prompt
    assert len(fake.sessions) == 2


def test_render_collection_gives_the_transcripts(make: MakeEnv) -> None:
    env: Env = stock.RenderCollection(make(echo, render_mode="ansi")[0])
    env.reset(seed=0)
    env.step("x")
    frames: Any = env.render()
    assert len(frames) == 2
    assert "ran x" in frames[-1]


def test_video_of_text_is_refused_by_gymnasium(make: MakeEnv, tmp_path: Path) -> None:
    with pytest.raises((ValueError, gym.error.DependencyNotInstalled)):
        stock.RecordVideo(make(render_mode="ansi")[0], str(tmp_path))


def test_a_stack_of_stock_wrappers_closes_the_sandbox(make: MakeEnv) -> None:
    inner, fake = make()
    env: Env = stock.RecordEpisodeStatistics(stock.TimeLimit(stock.OrderEnforcing(inner), max_episode_steps=9))
    env.reset(seed=0)
    env.close()
    env.close()
    assert fake.session.was_closed


# Vector environments.


def _maker(folder: Path) -> Callable[[], Env]:
    return lambda: ResearchEnv(write_answer_task(folder), sandbox=FakeSandbox(echo))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sync_vector_env_in_all_autoreset_modes(tmp_path: Path, mode: AutoresetMode) -> None:
    envs: Any = SyncVectorEnv([_maker(tmp_path)] * 2, autoreset_mode=mode)
    observations, infos = envs.reset(seed=[1, 2])
    assert len(observations) == 2
    assert isinstance(observations[0], str)
    observations, rewards, terminations, _, infos = envs.step(("x", RIGHT))
    assert observations[0] == "ran x"
    assert rewards.tolist() == [0.0, 1.0]
    assert terminations.tolist() == [False, True]
    final = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert final["score"][1] == 1.0
    assert final["score"].dtype == np.float64
    envs.close()


def test_vector_statistics(tmp_path: Path) -> None:
    envs: Any = stock.vector.RecordEpisodeStatistics(SyncVectorEnv([_maker(tmp_path)] * 2))
    envs.reset(seed=0)
    infos = envs.step((RIGHT, "x"))[4]
    assert infos["episode"]["r"].tolist() == [1.0, 0.0]
    envs.close()


@pytest.mark.slow
def test_async_vector_env_without_shared_memory(tmp_path: Path) -> None:
    makers = [_maker(tmp_path)] * 2
    with pytest.raises(ValueError, match="shared_memory"):
        AsyncVectorEnv(makers, shared_memory=True)
    envs: Any = AsyncVectorEnv(makers, shared_memory=False)
    try:
        envs.reset(seed=0)
        observations, rewards, *_ = envs.step(("x", RIGHT))
        assert observations[0] == "ran x"
        assert rewards.tolist() == [0.0, 1.0]
    finally:
        envs.close()


def _layers(env: Any) -> list[Any]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found
