"""The wrappers of observation, reward and budgets, over a sandbox that runs nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from research_gym import wrappers
from research_gym.envs import ResearchEnv, Unicode
from research_gym.errors import SandboxLost
from research_gym.testing.fakes import FakeSandbox, printed

RIGHT = '%submit {"value": 42.0, "name": "done"}'
MakeEnv = Callable[..., tuple[ResearchEnv, FakeSandbox]]
Env = gym.Env[str, str]

ALL: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "truncate": (wrappers.TruncateObservation, {"max_chars": 200}),
    "window": (wrappers.WindowObservation, {"pairs": 2}),
    "window-without-prompt": (wrappers.WindowObservation, {"pairs": 1, "prompt": False, "max_action_chars": 64}),
    "time-aware": (wrappers.TimeAwareObservation, {"steps": True, "seconds": True}),
    "scale": (wrappers.ScaleReward, {"scale": 2.0, "shift": -0.25}),
    "steps": (wrappers.StepBudget, {"max_steps": 5}),
    "tokens": (wrappers.TokenBudget, {"max_tokens": 100_000}),
    "wall": (wrappers.WallBudget, {"wall_s": 600.0}),
}
each_wrapper = pytest.mark.parametrize(("wrapper", "arguments"), ALL.values(), ids=list(ALL))


@each_wrapper
@pytest.mark.filterwarnings("error::UserWarning", "ignore:.*is different from the unwrapped version:UserWarning")
def test_gymnasiums_checker_accepts_every_wrapper(
    make: MakeEnv, wrapper: Callable[..., Env], arguments: dict[str, Any]
) -> None:
    inner, _ = make(lambda code: "é" * 500, render_mode="ansi")
    # As every id of ours is registered; times are in info, so that no two of them are equal.
    inner.spec = EnvSpec(
        "Test/smallest-v0",
        entry_point="research_gym.envs.research_env:ResearchEnv",
        nondeterministic=True,
        kwargs={"task": str(inner.task.path)},
    )
    env = wrapper(inner, **arguments)
    check_env(env, skip_render_check=True, skip_close_check=True)


@each_wrapper
def test_every_observation_is_in_the_space(
    make: MakeEnv, wrapper: Callable[..., Env], arguments: dict[str, Any]
) -> None:
    env = wrapper(make(lambda code: "x" * 30_000)[0], **arguments)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    for action in ("x = '\ud800\x1b[31m'", "y" * 30_000, "%wait"):
        observation = env.step(action)[0]
        assert observation in env.observation_space, action


@each_wrapper
def test_spec_survives_json_and_make(wrapper: Callable[..., Env], arguments: dict[str, Any]) -> None:
    inner: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox="local")
    env = wrapper(inner, **arguments)
    assert env.spec is not None
    again = EnvSpec.from_json(env.spec.to_json())
    for spec in (env.spec, again):
        made: Any = gym.make(spec)
        assert type(made) is type(env)
        assert made.spec is not None
        assert made.spec.additional_wrappers == env.spec.additional_wrappers
        assert made.observation_space == env.observation_space
        made.close()
    assert (again.additional_wrappers[-1].kwargs or {}).items() >= arguments.items()
    env.close()


@each_wrapper
def test_the_inner_env_is_reached_through_every_wrapper(
    make: MakeEnv, wrapper: Callable[..., Env], arguments: dict[str, Any]
) -> None:
    inner, _ = make()
    env = wrapper(inner, **arguments)
    assert env.get_wrapper_attr("task") is inner.task
    assert env.unwrapped is inner


# Observations.


def test_truncation_keeps_head_and_tail_and_says_what_is_missing(make: MakeEnv) -> None:
    env = wrappers.TruncateObservation(make(["a" * 500 + "b" * 500, "short"])[0], max_chars=100)
    prompt, _ = env.reset(seed=0)
    assert len(prompt) <= 100
    observation = env.step("x")[0]
    assert len(observation) <= 100
    assert observation.startswith("aaa")
    assert observation.endswith("bbb")
    assert "characters omitted" in observation
    assert env.step("x")[0] == "short"
    assert env.observation_space == Unicode(100, clean=True)


def test_a_short_inner_space_is_not_widened(make: MakeEnv) -> None:
    inner, _ = make()
    env = wrappers.TruncateObservation(inner, max_chars=10_000_000)
    assert env.observation_space == inner.observation_space


def test_window_shows_the_last_pairs_and_forgets_at_reset(make: MakeEnv) -> None:
    env = wrappers.WindowObservation(make(["one", "two", "three", "four"])[0], pairs=2)
    prompt, _ = env.reset(seed=0)
    assert env.step("first")[0] == f"{prompt}\n\n>>> first\none"
    env.step("second")
    assert env.step("third")[0] == f"{prompt}\n\n>>> second\ntwo\n\n>>> third\nthree"
    env.reset(seed=0)
    assert env.step("again")[0] == f"{prompt}\n\n>>> again\nfour"


def test_window_cuts_a_long_action_in_the_text_and_executes_it_whole(make: MakeEnv) -> None:
    inner, fake = make()
    env = wrappers.WindowObservation(inner, pairs=1, prompt=False, max_action_chars=64)
    env.reset(seed=0)
    action = "x = 1  # " + "y" * 1000
    observation = env.step(action)[0]
    assert len(observation) < 100
    assert "characters omitted" in observation
    assert fake.session.cells == [action]


def test_time_aware_counts_down_steps_and_cell_time(make: MakeEnv) -> None:
    inner, _ = make([printed("a", duration_s=9.5), printed("b"), ""], limits={"max_steps": 3, "compute_s": 60.0})
    env = wrappers.TimeAwareObservation(inner)
    prompt, _ = env.reset(seed=0)
    assert prompt.endswith("\n[left: 3 actions, 3600 s, 60 s of cell time]")
    assert env.step("x")[0].splitlines()[-1].startswith("[left: 2 actions, ")
    assert env.step("x")[0].endswith(" s, 51 s of cell time]")
    last, _, _, truncated, _ = env.step("%wait")
    assert truncated
    assert "[left:" not in last


def test_time_aware_knows_budgets_and_the_stock_time_limit_inside_it(make: MakeEnv) -> None:
    env: Env = wrappers.WallBudget(wrappers.StepBudget(make()[0], max_steps=7), wall_s=50.0)
    assert wrappers.TimeAwareObservation(env).reset(seed=0)[0].endswith("[left: 7 actions, 50 s, 1800 s of cell time]")
    limited: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox=FakeSandbox(), max_episode_steps=4)
    shown = wrappers.TimeAwareObservation(limited, seconds=False).reset(seed=0)[0]
    assert shown.endswith("\n[left: 4 actions]")


# Rewards.


def test_scaled_reward_is_affine_and_leaves_the_terms(make: MakeEnv) -> None:
    env = wrappers.ScaleReward(make()[0], scale=10.0, shift=-1.0)
    env.reset(seed=0)
    assert env.step("x")[1] == -1.0
    _, reward, _, _, info = env.step(RIGHT)
    assert reward == 9.0
    assert sum(info["reward_terms"].values()) == 1.0
    assert info["result"].reward_total == 1.0


def test_nan_of_a_fault_passes_the_scale_and_no_budget_claims_it(make: MakeEnv) -> None:
    inner, _ = make([SandboxLost("the stream ended")])
    env: Env = wrappers.ScaleReward(wrappers.FaultsToTruncation(inner), scale=5.0, shift=1.0)
    env = wrappers.StepBudget(env, max_steps=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("x")
    assert math.isnan(float(reward))
    assert (terminated, truncated) == (False, True)
    assert info["fault"].startswith("sandbox_lost")
    assert math.isnan(info["score"])
    assert info["truncated_by"] == ""


# Budgets.


@pytest.mark.parametrize(
    ("wrapper", "arguments", "key", "kind", "name"),
    [
        (wrappers.StepBudget, {"max_steps": 2}, "steps_left", int, "step_budget"),
        (wrappers.TokenBudget, {"max_tokens": 2, "count": lambda text: int(text in ("x", ""))}, "tokens_left", int,
         "token_budget"),
    ],
)  # fmt: skip
def test_a_budget_truncates_with_its_name_and_fixed_types(
    make: MakeEnv, wrapper: Callable[..., Env], arguments: dict[str, Any], key: str, kind: type, name: str
) -> None:
    env = wrapper(make(["y", "y", "y"])[0], **arguments)
    _, info = env.reset(seed=0)
    seen = [(info["truncated_by"], info[key])]
    for _ in range(2):
        _, reward, terminated, truncated, info = env.step("x")
        seen.append((info["truncated_by"], info[key]))
    assert seen == [("", 2), ("", 1), (name, 0)]
    assert all(type(left) is kind for _, left in seen)
    assert (reward, terminated, truncated, info["score"]) == (0.0, False, True, 0.0)
    with pytest.raises(ResetNeeded, match=name):
        env.step("x")
    _, info = env.reset(seed=0)
    assert (info["truncated_by"], info[key]) == ("", 2)
    assert math.isnan(info["score"])


def test_wall_budget_counts_the_time_since_reset(make: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    env = wrappers.WallBudget(make()[0], wall_s=10.0)
    _, info = env.reset(seed=0)
    assert info["wall_left_s"] == 10.0
    monkeypatch.setattr("research_gym.wrappers.limits.time.monotonic", lambda: clock[0])
    env.begin("")
    clock[0] = 4.0
    _, _, _, truncated, info = env.step("x")
    assert (truncated, info["wall_left_s"], info["truncated_by"]) == (False, 6.0, "")
    clock[0] = 11.0
    _, _, _, truncated, info = env.step("x")
    assert (truncated, info["wall_left_s"], info["truncated_by"]) == (True, 0.0, "wall_budget")


def test_a_submission_in_the_last_step_is_graded(make: MakeEnv) -> None:
    env = wrappers.StepBudget(make()[0], max_steps=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated, info["truncated_by"]) == (1.0, True, False, "")


def test_default_token_count_is_a_quarter_of_the_characters(make: MakeEnv) -> None:
    env = wrappers.TokenBudget(make(["b" * 40])[0], max_tokens=100_000)
    prompt, info = env.reset(seed=0)
    assert info["tokens_left"] == 100_000 - math.ceil(len(prompt) / 4)
    before = info["tokens_left"]
    assert env.step("a" * 41)[4]["tokens_left"] == before - 11 - 10


def test_a_named_counter_survives_json_and_a_function_does_not() -> None:
    inner: Env = gym.make("research_gym:Mini/mend-perceptron-v0", sandbox="local")
    named = wrappers.TokenBudget(inner, max_tokens=9, count="research_gym.wrappers.limits:quarter_of_chars")
    assert named.spec is not None
    assert json.loads(named.spec.to_json())["additional_wrappers"][-1]["kwargs"]["count"].endswith(":quarter_of_chars")
    unnamed = wrappers.TokenBudget(inner, max_tokens=9, count=len)
    assert unnamed.spec is not None
    with pytest.raises(TypeError, match="not JSON serializable"):
        unnamed.spec.to_json()


def test_budgets_nest_and_the_inner_word_stays(make: MakeEnv) -> None:
    env: Env = wrappers.TokenBudget(wrappers.StepBudget(make()[0], max_steps=1), max_tokens=10_000)
    env.reset(seed=0)
    info = env.step("x")[4]
    assert info["truncated_by"] == "step_budget"
    assert {"steps_left", "tokens_left"} <= set(info)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda env: wrappers.TruncateObservation(env, max_chars=10), "at least 64, found 10"),
        (lambda env: wrappers.WindowObservation(env, pairs=0), "at least 1, found 0"),
        (lambda env: wrappers.WindowObservation(env, pairs=1, max_action_chars=True), "found True"),
        (lambda env: wrappers.TimeAwareObservation(env, steps=False, seconds=False), "both False"),
        (lambda env: wrappers.ScaleReward(env, scale=0.0), "other than 0"),
        (lambda env: wrappers.ScaleReward(env, shift=math.nan), "finite number, found nan"),
        (lambda env: wrappers.StepBudget(env, max_steps=True), "an integer above 0, found True"),
        (lambda env: wrappers.TokenBudget(env, max_tokens=0), "above 0, found 0"),
        (lambda env: wrappers.TokenBudget(env, max_tokens=1, count="nowhere:at_all"), "module:function"),
        (lambda env: wrappers.TokenBudget(env, max_tokens=1, count="math:pi"), "a function of a text"),
        (lambda env: wrappers.WallBudget(env, wall_s=math.inf), "found inf"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(make: MakeEnv, build: Callable[[Env], Env], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(make()[0])


def test_observation_wrappers_refuse_other_spaces() -> None:
    cartpole: Any = gym.make("CartPole-v1")
    for build in (
        lambda: wrappers.TruncateObservation(cartpole, max_chars=100),
        lambda: wrappers.WindowObservation(cartpole, pairs=1),
        lambda: wrappers.TimeAwareObservation(cartpole),
    ):
        with pytest.raises(TypeError, match="Unicode space, found Box"):
            build()


def test_wrappers_add_no_key_that_the_env_has(make: MakeEnv) -> None:
    inner, _ = make()
    own = set(inner.reset(seed=0)[1])
    assert not own & {"truncated_by", *(budget.key for budget in (wrappers.StepBudget, wrappers.TokenBudget,
                                                                  wrappers.WallBudget))}  # fmt: skip
