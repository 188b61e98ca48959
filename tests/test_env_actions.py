"""What may be sent to an environment and what it may show: action grammar and observation contract, over a fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from research_gym.envs.research_env import ResearchEnv
from research_gym.limits import Limits
from research_gym.testing.fakes import FakeSandbox, printed

STARTS = ["%submit ", "%%submit\n", "%%edit ", "%wait", "%interrupt", "!", "%%bash\n"]
"""First lines that mean something."""

MakeEnv = Callable[..., tuple[ResearchEnv, FakeSandbox]]


@pytest.mark.parametrize(
    "text", ["\x00\x07\x1b[31mred\x1b[0m", "\ud800 tail", "a\rb", "\x9b31m", "y" * 3_000_000, "\u202ertl", ""]
)
def test_every_observation_is_in_the_space(make: MakeEnv, text: str) -> None:
    env, _ = make(lambda code: printed(text))
    env.reset(seed=0)
    observation = env.step("x")[0]
    assert observation in env.observation_space
    assert len(observation) <= Limits().observation_chars


def test_a_long_observation_keeps_head_and_tail_and_says_what_is_missing(make: MakeEnv) -> None:
    env, _ = make(lambda code: printed("HEAD" + "x" * 100_000 + "TAIL"), limits={"observation_chars": 5000})
    env.reset(seed=0)
    observation, _, _, _, info = env.step("x")
    assert observation.startswith("HEAD")
    assert observation.endswith("TAIL")
    assert info["cell"]["omitted_chars"] > 90_000
    assert str(info["cell"]["omitted_chars"]) in observation
    assert len(observation) <= 5000


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.one_of(
    st.text(st.characters(), max_size=200),
    st.tuples(st.sampled_from(STARTS), st.text(st.characters(), max_size=80)).map("".join),
))  # fmt: skip
def test_no_action_raises(make: MakeEnv, action: str) -> None:
    env, _ = make(lambda code: code)
    env.reset(seed=0)
    observation, reward, _, _, info = env.step(action)
    assert observation in env.observation_space
    assert 0.0 <= reward <= 1.0
    assert info["fault"] == ""
    env.close()


@pytest.mark.parametrize("action", [None, 3, b"x", ["x"]])
def test_an_action_that_is_no_string_is_a_type_error(make: MakeEnv, action: Any) -> None:
    env, _ = make()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="expected str"):
        env.step(action)
    assert env.step("x")[2:4] == (False, False), "the episode goes on"


def test_a_step_needs_a_running_episode(make: MakeEnv) -> None:
    env, _ = make()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step("x")
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.close()


def test_an_edit_changes_a_file_and_shows_its_surroundings(make: MakeEnv) -> None:
    env, fake = make()
    env.reset(seed=0)
    fake.session.files["/content/train.py"] = b"lr = 1.0\nsteps = 3\n"
    edit = "%%edit train.py\n<<<BEFORE_EDIT>>>\nlr = 1.0\n<<<AFTER_EDIT>>>\nlr = 0.1"
    assert "lr = 0.1" in env.step(edit)[0]
    assert fake.session.files["/content/train.py"] == b"lr = 0.1\nsteps = 3\n"
    assert "refused" in env.step(edit)[0], "the old lines are gone"
    assert "refused" in env.step(edit.replace("train.py", "missing.py"))[0]
    fake.session.files["/content/train.py"] = b"\xff\xfe"
    assert "UTF-8" in env.step(edit)[0]
    assert fake.session.cells == [], "an edit never goes through the kernel"
