"""Attacks: what an agent does to its own files ends in a refusal or in nothing, never in an exception of `step`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from research_gym.envs.research_env import ResearchEnv
from research_gym.testing.tasks import write_answer_task

DEEP = {"id": "deep", "weight": 1.0, "artefact": {"path": "made/results/report.txt"}}


@pytest.mark.parametrize(
    "cell",
    [
        "import os; os.symlink('/tmp', 'made')",
        "import os; os.mkdir('made'); os.symlink('made', 'made/results')",
        "import os; os.makedirs('made/results'); os.chmod('made', 0)",
        "import os; os.mkfifo('made')",
        "import os; os.chmod('.', 0)",
    ],
    ids=["folder-is-link", "link-loop", "folder-closed", "folder-is-fifo", "workdir-closed"],
)
def test_the_way_to_an_artefact_is_blocked(tmp_path: Path, sandbox_name: str, cell: str) -> None:
    env = ResearchEnv(write_answer_task(tmp_path, landmarks=[DEEP]), sandbox=sandbox_name)
    try:
        env.reset(seed=0)
        run = env._run
        assert run is not None
        if not run.session.isolated:
            pytest.skip("hostile code runs in namespaces or a container only")
        _, reward, terminated, truncated, info = env.step(cell)
        assert (info["cell"]["status"], reward, terminated, truncated) == ("ok", 0.0, False, False)
        assert info["landmarks"] == {"deep": -1}
    finally:
        env.close()


@pytest.mark.parametrize("idle_s", [0.0, 5.0], ids=["in-a-cell", "between-steps"])
def test_the_end_of_life_truncates(tmp_path: Path, idle_s: float) -> None:
    env = ResearchEnv(write_answer_task(tmp_path), sandbox="local", limits={"life_s": 4.0})
    try:
        env.reset(seed=0)
        run = env._run
        assert run is not None
        if not run.session.isolated:
            pytest.skip("hostile code runs in namespaces or a container only")
        time.sleep(idle_s)
        observation, _, terminated, truncated, info = env.step("import time; time.sleep(30)")
        assert (terminated, truncated, info["result"].reason) == (False, True, "4 s have passed"), observation
    finally:
        env.close()
