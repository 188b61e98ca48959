"""The three top-level folders are relative links into the package, and cannot be imported by their short names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("envs", "wrappers", "training")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="the suite runs outside the checkout: there are no links to look at"
)


@pytest.mark.parametrize("name", NAMES)
def test_link_is_relative_and_points_into_the_package(name: str) -> None:
    link = ROOT / name
    if not link.is_symlink():
        pytest.skip(f"{name} is a plain file in this checkout (git config core.symlinks=false)")
    assert os.readlink(link) == f"research_gym/{name}"
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("statement", ["import {}", "import {0}.{1}"])
def test_import_by_the_short_name_stops_with_the_right_name(name: str, statement: str) -> None:
    module = {"envs": "research_env", "wrappers": "faults", "training": "rollout"}[name]
    if not (ROOT / name / "__init__.py").is_file():
        pytest.skip(f"{name} is a plain file in this checkout (git config core.symlinks=false)")
    done = subprocess.run(
        [sys.executable, "-c", statement.format(name, module)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert f"ImportError: import research_gym.{name}, not {name}" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_same_package_imports_by_its_long_name(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import research_gym.{name}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
