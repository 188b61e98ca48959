"""The contract of `ResearchEnv`, over a sandbox that runs nothing: returns, ends, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence

from research_gym.cell import CellResult
from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import FileRefused
from research_gym.limits import Limits
from research_gym.reward import RewardSpec
from research_gym.sandbox.waiting import Steps
from research_gym.testing.fakes import FakeSandbox, printed

RIGHT = '%submit {"value": 42.0, "name": "done"}'
HALF = '%submit {"value": 42.0, "name": "other"}'
SCHEMA: dict[str, Any] = {
    "cell": {
        "status": str, "execution_count": int, "duration_s": float, "cpu_s": float, "omitted_chars": int,
        "oom_kills": int, "background_processes": int,
    },
    "landmarks": {"wrote-report": int, "said-done": int},
    "landmark_evidence": {"wrote-report": str, "said-done": str},
    "reward_terms": {"landmark": float, "score": float, "penalty": float},
    "score": float,
    "fault": str,
    "reset": {"how": str, "wall_s": float, "cached": bool},
}  # fmt: skip

MakeEnv = Callable[..., tuple[ResearchEnv, FakeSandbox]]


def shape_of(value: Any) -> Any:
    return {key: shape_of(item) for key, item in value.items()} if isinstance(value, dict) else type(value)


# What the five-tuple looks like.


def test_constructor_starts_nothing(make: MakeEnv) -> None:
    env, fake = make()
    assert fake.sessions == []
    env.close()
    assert fake.sessions == []


def test_first_observation_is_the_tasks_prompt_and_the_same_every_time(make: MakeEnv) -> None:
    env, _ = make()
    first, _ = env.reset(seed=1)
    second, _ = env.reset(seed=2)
    assert first == second
    assert 'Submit {"value": 42.0, "name": "done"}.' in first
    assert first in env.observation_space


def test_info_has_the_same_keys_and_types_at_every_step(make: MakeEnv) -> None:
    env, fake = make(lambda code: "training done\n" if "train" in code else "")
    _, info = env.reset(seed=0)
    assert shape_of(info) == SCHEMA
    for action in ("train()", "", "%wait", "%interrupt", "%submit not json", "%%edit nowhere", "%submit", HALF):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
        assert shape_of(info) == SCHEMA, action
    assert terminated
    assert shape_of({key: value for key, value in info.items() if key not in ("grade", "result")}) == SCHEMA
    assert set(info) - set(SCHEMA) == {"grade", "result"}
    assert fake.session.was_closed


def test_info_never_uses_the_key_of_the_stock_statistics_wrapper(make: MakeEnv) -> None:
    env, _ = make()
    wrapped = gym.wrappers.RecordEpisodeStatistics(env)
    wrapped.reset(seed=0)
    _, reward, terminated, _, info = wrapped.step(RIGHT)
    assert terminated
    assert info["episode"]["r"] == pytest.approx(reward)
    assert info["episode"]["l"] == 1


def test_info_shares_no_object_with_an_earlier_one(make: MakeEnv) -> None:
    env, _ = make()
    infos = [env.reset(seed=0)[1], env.step("a")[4], env.step("b")[4]]
    objects = [id(item) for info in infos for item in (info, *(v for v in info.values() if isinstance(v, dict)))]
    assert len(set(objects)) == len(objects)


def test_reward_terms_sum_to_the_reward(make: MakeEnv) -> None:
    env, fake = make()
    env.reset(seed=0)
    fake.session.files["/content/report.txt"] = b"x"
    total = 0.0
    for action in ("a", "b", RIGHT):
        _, reward, _, _, info = env.step(action)
        assert isinstance(reward, float)
        assert sum(info["reward_terms"].values()) == pytest.approx(reward)
        total += reward
    assert total == pytest.approx(0.05 + 1.0), "half the landmark weight at lambda 0.1, and the full score"
    assert info["result"].reward_total == pytest.approx(total)


def test_a_landmark_pays_once_and_text_of_the_kernel_never_pays(make: MakeEnv) -> None:
    env, fake = make(lambda code: "training done\n")
    _, info = env.reset(seed=0)
    assert info["landmarks"] == {"wrote-report": -1, "said-done": -1}
    _, reward, _, _, info = env.step("print('training done')")
    assert reward == 0.0
    assert info["landmarks"]["said-done"] == -1
    assert info["landmark_evidence"]["said-done"] != info["landmark_evidence"]["wrote-report"]
    fake.session.files["/content/report.txt"] = b"x"
    _, reward, _, _, info = env.step("a")
    assert reward == pytest.approx(0.05)
    assert info["landmarks"] == {"wrote-report": 2, "said-done": -1}
    fake.session.files["/content/report.txt"] = b"changed"
    _, reward, _, _, info = env.step("b")
    assert reward == 0.0
    assert info["landmarks"]["wrote-report"] == 2


def test_nothing_but_a_regular_file_is_an_artefact(make: MakeEnv) -> None:
    env, fake = make()
    env.reset(seed=0)
    for kind in ("link", "directory", "fifo"):
        fake.session.kinds["/content/report.txt"] = kind
        assert env.step("a")[4]["landmarks"]["wrote-report"] == -1


# The ends of an episode.


def test_a_valid_submission_terminates_and_is_graded_once(make: MakeEnv) -> None:
    env, fake = make()
    _, info = env.reset(seed=0)
    assert math.isnan(info["score"])
    _, reward, terminated, truncated, info = env.step(HALF)
    assert (terminated, truncated) == (True, False)
    assert reward == info["score"] == info["grade"].value == 0.5
    assert info["grade"].valid
    result = json.loads(info["result"].to_json())
    assert result["score"] == 0.5
    assert result["task"] == "Test/smallest-v0"
    with pytest.raises(ResetNeeded):
        env.step(RIGHT)
    assert fake.session.was_closed, "the sandbox does not outlive the episode"
    env.reset(seed=0)
    assert env.step(RIGHT)[1] == 1.0


def test_the_score_is_not_told_to_the_agent(make: MakeEnv) -> None:
    env, _ = make()
    env.reset(seed=0)
    observation = env.step(HALF)[0]
    assert "0.5" not in observation
    assert "accepted" in observation


def test_an_invalid_submission_may_be_mended(make: MakeEnv) -> None:
    env, _ = make()
    env.reset(seed=0)
    for action in ("%submit", "%submit {", '%submit {"a": NaN}', '%submit {"a": 1, "a": 2}', "%%submit\n"):
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False), action
        assert observation, "the reason is the observation"
        assert math.isnan(info["score"])
    assert env.step(RIGHT)[2]


def test_the_step_limit_truncates_and_counts_every_action(make: MakeEnv) -> None:
    env, _ = make(limits={"max_steps": 3})
    env.reset(seed=0)
    assert env.step("1")[2:4] == (False, False)
    assert env.step("%submit not json")[2:4] == (False, False)
    observation, reward, terminated, truncated, info = env.step("3")
    assert (terminated, truncated) == (False, True)
    assert reward == 0.0
    assert info["score"] == 0.0
    assert (info["grade"].valid, info["grade"].reason) == (False, "no_submission")
    assert "3 actions" in observation
    with pytest.raises(ResetNeeded):
        env.step("4")


def test_a_submission_at_the_last_step_terminates(make: MakeEnv) -> None:
    env, _ = make(limits={"max_steps": 1})
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(RIGHT)
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_cell_time_is_a_budget_of_the_episode(make: MakeEnv) -> None:
    env, fake = make(lambda code: printed("", duration_s=40.0), limits={"compute_s": 100.0, "cell_timeout_s": 60.0})
    env.reset(seed=0)
    asked: list[float] = []
    real = fake.session.execute

    def noting(code: str, *, timeout_s: float, **rest: Any) -> Steps[CellResult]:
        asked.append(timeout_s)
        return real(code, timeout_s=timeout_s, **rest)

    fake.session.execute = noting  # type: ignore[method-assign]  # the fake tells what it was asked
    assert [env.step("x")[3] for _ in range(3)] == [False, False, True]
    assert asked == pytest.approx([60.0, 60.0, 20.0])


def test_the_life_of_the_sandbox_is_the_longest_an_episode_lasts(make: MakeEnv) -> None:
    env, _ = make(limits={"life_s": 0.05})
    env.reset(seed=0)
    import time

    time.sleep(0.06)
    _, _, terminated, truncated, info = env.step("x")
    assert (terminated, truncated) == (False, True)
    assert info["score"] == 0.0


@pytest.mark.parametrize(
    "how", [{"status": "died"}, {"status": "timeout", "killed": True}, {"status": "interrupted", "killed": True}]
)
def test_a_dead_kernel_is_replaced_three_times_then_the_episode_ends(make: MakeEnv, how: dict[str, Any]) -> None:
    env, fake = make(lambda code: printed("", **how))
    env.reset(seed=0)
    for count in (1, 2, 3):
        observation, reward, terminated, truncated, info = env.step("die()")
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert f"restart {count} of 3" in observation
        assert "variables are lost" in observation
        assert info["cell"]["status"] == how["status"]
    _, _, terminated, truncated, info = env.step("die()")
    assert (terminated, truncated) == (False, True)
    assert fake.session.log.count("start_kernel") == 4, "the first kernel and three more"
    assert info["fault"] == ""


def test_running_out_of_memory_is_said(make: MakeEnv) -> None:
    env, _ = make(lambda code: printed("", status="died", oom_kills=1))
    env.reset(seed=0)
    observation, _, _, _, info = env.step("x = bytearray(1 << 40)")
    assert "memory" in observation
    assert info["cell"]["oom_kills"] == 1


def test_a_kept_cell_is_waited_for_and_interrupted(make: MakeEnv) -> None:
    script = {
        "long()": printed("first\n", status="timeout", running=True),
        "%wait": printed("second\n"),
        "%interrupt": printed("", status="interrupted"),
    }
    env, fake = make(script, limits={"on_timeout": "keep"})
    env.reset(seed=0)
    observation = env.step("long()")[0]
    assert observation.startswith("first\n")
    assert "%wait" in observation
    assert env.step("%wait")[0] == "second"
    assert "interrupted" in env.step("%interrupt")[0]
    assert fake.session.log.count("execute") == 1


def test_waiting_for_nothing_is_said_not_raised(make: MakeEnv) -> None:
    env, _ = make({"%wait": FileRefused("not_running", "no cell is running")})
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step("%wait")
    assert "no cell is running" in observation
    assert not terminated
    assert not truncated


# Construction and reset.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limits": {"cell_timeout": 3}}, "cell_timeout_s"),
        ({"limits": {"max_steps": 0}}, "max_steps"),
        ({"reward": {"mode": "dense"}}, "mode"),
        ({"kernel": "xeus"}, "kernel"),
        ({"network": "bridge"}, "network"),
        ({"isolation": "none"}, "isolation"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_name(make: MakeEnv, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make(**arguments)


def test_limits_and_reward_take_objects_and_mappings(make: MakeEnv) -> None:
    env, fake = make(limits={"max_steps": 7}, reward={"mode": "sparse"})
    assert env.limits.max_steps == 7
    env.reset(seed=0)
    assert fake.session.spec.limits.max_steps == 7
    fake.session.files["/content/report.txt"] = b"x"
    assert env.step("a")[1] == 0.0, "sparse: a landmark pays nothing"
    env, _ = make(limits=Limits(max_steps=9), reward=RewardSpec())
    assert env.limits.max_steps == 9


def test_reset_ends_the_last_session_and_takes_seed_and_options(make: MakeEnv) -> None:
    env, fake = make()
    env.reset(seed=0)
    env.reset(seed=1)
    assert [session.was_closed for session in fake.sessions] == [True, False]
    with pytest.raises(ValueError, match="unknown option"):
        env.reset(options={"tsk": "x"})
    with pytest.raises(ValueError, match="unknown task"):
        env.reset(options={"task": "Mini/nope-v0"})


def test_rendering_gives_the_transcript(make: MakeEnv) -> None:
    env, _ = make(lambda code: "shown\n", render_mode="ansi")
    assert env.render() == ""
    prompt, _ = env.reset(seed=0)
    env.step("first cell")
    text = env.render()
    assert text is not None
    assert prompt in text
    assert text.index("first cell") < text.index("shown")
    env.close()
    plain, _ = make()
    assert plain.render() is None


def test_gymnasiums_checker_passes_over_a_fake(make: MakeEnv) -> None:
    env, _ = make(render_mode="ansi")
    # As every id of ours is registered; times are in info, so that no two of them are equal.
    env.spec = EnvSpec(
        "Test/smallest-v0",
        entry_point="research_gym.envs.research_env:ResearchEnv",
        nondeterministic=True,
        kwargs={"task": str(env.task.path)},
    )
    check_env(env, skip_render_check=True)


def test_steps_are_equal_for_equal_replies(make: MakeEnv) -> None:
    def play() -> list[Any]:
        env, _ = make(lambda code: CellResult("ok", 1))
        env.reset(seed=0)
        rows = [env.step(cell)[:4] for cell in ("a", "%submit x", RIGHT)]
        return rows

    assert data_equivalence(tuple(play()), tuple(play()))
