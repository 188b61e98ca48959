"""Fixtures and rules of all tests: a data folder of their own, and which sandboxes this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_LANDMARKS = [
    {"id": "wrote-report", "weight": 0.5, "artefact": {"path": "report.txt"}},
    {"id": "said-done", "weight": 0.5, "output": "training done"},
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs Docker skips with a reason where there is none; RESEARCH_GYM_REQUIRE_DOCKER=1 forbids that."""
    needing = [item for item in items if item.get_closest_marker("docker")]
    if not needing or os.environ.get("RESEARCH_GYM_REQUIRE_DOCKER") == "1":
        return
    from research_gym.testing.engines import docker_missing

    reason = docker_missing()
    if reason:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data go to a folder of this run, never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESEARCH_GYM_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def sandbox_name(request: pytest.FixtureRequest) -> str:
    """Each sandbox in turn."""
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """Makes an environment of the smallest task over a sandbox that runs nothing; returns both."""
    from research_gym.envs.research_env import ResearchEnv
    from research_gym.testing.fakes import FakeSandbox
    from research_gym.testing.tasks import write_answer_task

    def build(script: Any = (), **arguments: Any) -> tuple[ResearchEnv, FakeSandbox]:
        fake = FakeSandbox(script)
        return ResearchEnv(write_answer_task(tmp_path, landmarks=_LANDMARKS), sandbox=fake, **arguments), fake

    return build
