"""`import research_gym` registers the environments and pulls in nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import research_gym

HEAVY = (
    "torch", "datasets", "docker", "ray", "pandas", "sklearn", "scipy", "matplotlib", "transformers", "trl",
    "jupyter_client", "ipykernel", "IPython", "zmq", "nbformat", "rich", "click",
)  # fmt: skip
PACKAGE_ROOT = Path(research_gym.__file__).resolve().parents[1]

_PROBE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
before = set(os.listdir("."))
statement = sys.argv[2]
exec(statement)
print(json.dumps({"modules": sorted(sys.modules), "made": sorted(set(os.listdir(".")) - before)}))
"""


def _modules_after(statement: str, where: Path) -> tuple[set[str], list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(PACKAGE_ROOT), statement],
        cwd=where, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return set(found["modules"]), found["made"], done.stderr


@pytest.mark.parametrize(
    "statement",
    ["import research_gym", "import research_gym.envs", "import research_gym.wrappers", "import research_gym.testing"],
)
def test_import_pulls_in_nothing_heavy(statement: str, tmp_path: Path) -> None:
    modules, _, _ = _modules_after(statement, tmp_path)
    assert not modules & set(HEAVY)


def test_import_is_silent_and_leaves_nothing_behind(tmp_path: Path) -> None:
    _, made, stderr = _modules_after("import research_gym", tmp_path)
    assert made == []
    assert stderr == ""


def test_import_registers_every_shipped_id(tmp_path: Path) -> None:
    statement = (
        "import gymnasium, research_gym\n"
        "from research_gym.envs.suites import shipped\n"
        "missing = [i for i in shipped() if i not in gymnasium.registry]\n"
        "assert shipped() and not missing, missing\n"
        "assert 'Mini/All-v0' in gymnasium.registry"
    )
    _modules_after(statement, tmp_path)
