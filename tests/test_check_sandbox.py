"""Every sandbox passes the shipped conformance kit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from research_gym.sandbox.choose import choose
from research_gym.testing import check_sandbox
from research_gym.testing.check_sandbox import names

GROUPS = sorted({name.split(":")[0] for name in names()})
ASKED_FOR = {
    "files", "commands", "limits", "users", "hidden", "timeouts", "output", "stdin", "death", "state", "lifecycle",
}  # fmt: skip


def test_there_are_at_least_thirty_checks_of_every_kind() -> None:
    assert len(names()) >= 30
    assert len(set(names())) == len(names())
    assert set(GROUPS) == ASKED_FOR


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_sandbox_passes(sandbox_name: str, group: str) -> None:
    checks = check_sandbox(choose(sandbox_name), select=f"{group}:")
    assert checks
    failed = [f"{check.name}: {check.detail}" for check in checks if check.ok is False]
    assert not failed, "\n".join(failed)
    if sandbox_name == "docker":
        assert all(check.ok for check in checks), "a container has no excuse"


def test_unknown_selection_is_an_error() -> None:
    with pytest.raises(ValueError, match="no check has that in its name"):
        check_sandbox(choose("local"), select="no such check")


def test_command_line_prints_one_json_value() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "research_gym.testing.check_sandbox", "local", "--select", "a written file", "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["files: a written file is read back"]
    assert "RuntimeWarning" not in done.stderr
