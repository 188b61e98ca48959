"""Our own failures: an error from a bare environment, a masked step from the wrapper, never reward 0."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded

from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import (
    ForkedProcessError,
    GraderError,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    SandboxUnavailable,
)
from research_gym.testing.fakes import FakeSandbox
from research_gym.testing.tasks import write_answer_task
from research_gym.wrappers import FaultsToTruncation

LOST = SandboxLost("the stream ended")


def _env(folder: Path, sandbox: Any, **arguments: Any) -> ResearchEnv:
    return ResearchEnv(write_answer_task(folder), sandbox=sandbox, **arguments)


def _once(error: Exception) -> Any:
    """Raises the error for the cell `break`, answers every other one."""
    return {"break": error}


def test_a_bare_environment_raises_and_the_next_reset_works(tmp_path: Path) -> None:
    fake = FakeSandbox(_once(LOST))
    env = _env(tmp_path, fake)
    env.reset(seed=0)
    with pytest.raises(SandboxLost, match="the stream ended"):
        env.step("break")
    assert fake.session.was_closed
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    assert env.step("x")[3] is False


def test_the_wrapper_gives_nan_and_truncated(tmp_path: Path) -> None:
    env = FaultsToTruncation(_env(tmp_path, FakeSandbox(_once(LOST))))
    _, usual = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("break")
    assert math.isnan(reward), "a broken sandbox is never a failed policy"
    assert (terminated, truncated) == (False, True)
    assert observation in env.observation_space
    assert info["fault"] == "sandbox_lost: the stream ended"
    assert math.isnan(info["score"])
    assert set(info) == set(usual)
    assert {key: type(value) for key, value in info.items()} == {key: type(value) for key, value in usual.items()}
    env.reset(seed=0)
    assert env.step("x")[4]["fault"] == ""


def test_a_broken_grader_is_a_fault_not_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from research_gym.envs.judge import Judge

    def broken(*_: Any, **__: Any) -> Any:
        raise GraderError("the verdict does not parse")
        yield

    monkeypatch.setattr(Judge, "grade", broken)
    env = FaultsToTruncation(_env(tmp_path, FakeSandbox()))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step('%submit {"value": 1}')
    assert math.isnan(reward)
    assert (terminated, truncated) == (False, True)
    assert info["fault"] == "grader: the verdict does not parse"
    bare = _env(tmp_path, FakeSandbox())
    bare.reset(seed=0)
    with pytest.raises(GraderError):
        bare.step('%submit {"value": 1}')


def test_a_failed_start_is_tried_three_times(tmp_path: Path) -> None:
    errors = [SandboxStartError(f"start {i} failed") for i in range(3)]
    env = FaultsToTruncation(_env(tmp_path, FakeSandbox(start_errors=errors[:2])))
    env.reset(seed=0)
    env = FaultsToTruncation(_env(tmp_path, FakeSandbox(start_errors=errors)))
    with pytest.raises(SandboxUnavailable, match="start 2 failed"):
        env.reset(seed=0)
    bare = _env(tmp_path, FakeSandbox(start_errors=errors))
    with pytest.raises(SandboxStartError, match="start 0 failed"):
        bare.reset(seed=0)


def test_errors_of_the_caller_still_raise(tmp_path: Path) -> None:
    env = FaultsToTruncation(_env(tmp_path, FakeSandbox()))
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    with pytest.raises(TypeError):
        env.step(3)  # type: ignore[arg-type]  # the wrong type is the point
    with pytest.raises(ValueError, match="unknown option"):
        env.reset(options={"nope": 1})


def test_the_wrapper_may_stand_outside_of_other_wrappers(tmp_path: Path) -> None:
    inner = gym.wrappers.TimeLimit(_env(tmp_path, FakeSandbox(_once(LOST))), max_episode_steps=50)
    env = FaultsToTruncation(inner)
    env.reset(seed=0)
    assert env.step("break")[4]["fault"]


def test_a_fault_in_the_start_of_a_fresh_kernel_is_ours(tmp_path: Path) -> None:
    """The agent killed its kernel; that the next one does not come up is not the agent's doing."""
    from research_gym.testing.fakes import printed

    fake = FakeSandbox(lambda code: printed("", status="died"))
    env = FaultsToTruncation(_env(tmp_path, fake))
    env.reset(seed=0)

    def refuse(*_: Any, **__: Any) -> Any:
        raise SandboxStartError("no kernel")
        yield

    fake.session.start_kernel = refuse  # type: ignore[method-assign]  # the fake fails from now on
    _, reward, _, truncated, info = env.step("die()")
    assert truncated
    assert math.isnan(reward)
    assert info["fault"].startswith("sandbox_start: ")


def test_every_kind_of_fault_has_a_stable_word() -> None:
    kinds = {
        SandboxError.kind,
        SandboxLost.kind,
        SandboxStartError.kind,
        SandboxUnavailable.kind,
        ForkedProcessError.kind,
        GraderError.kind,
    }
    assert kinds == {"sandbox", "sandbox_lost", "sandbox_start", "sandbox_unavailable", "forked_process", "grader"}


@pytest.mark.slow
def test_a_forked_child_of_the_trainer_cannot_use_the_environment(tmp_path: Path, sandbox_name: str) -> None:
    """And its end does not touch the parent's sandbox."""
    env = _env(tmp_path, sandbox_name)
    env.reset(seed=0)
    env.step("x = 7")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            env.step("x = 8")
        except ForkedProcessError:
            env.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert env.step("x")[0] == "7"
    env.close()


@pytest.mark.slow
def test_a_sandbox_that_is_killed_from_outside_is_a_fault_at_the_next_step(tmp_path: Path, sandbox_name: str) -> None:
    import socket

    env = FaultsToTruncation(_env(tmp_path, sandbox_name))
    env.reset(seed=0)
    inner = env.unwrapped
    assert isinstance(inner, ResearchEnv)
    assert inner._run is not None
    with socket.socket(fileno=os.dup(inner._run.session.fileno())) as stream:
        stream.shutdown(socket.SHUT_RDWR)
    _, reward, _, truncated, info = env.step("1")
    assert truncated
    assert math.isnan(reward)
    assert info["fault"].startswith("sandbox_lost: ")
    env.reset(seed=0)
    assert env.step("print(1)")[0] == "1"
    env.close()
