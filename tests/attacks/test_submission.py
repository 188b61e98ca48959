"""Attacks: what an agent does to its own files ends in a refusal or in nothing, never in an exception of `step`."""

from __future__ import annotations

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
