"""What the build settings must say so that neither the wheel nor the checks lose or double the linked trees."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("envs", "wrappers", "training")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="the suite runs outside the checkout: there is no pyproject.toml"
)


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_back_end_is_setuptools(settings: dict[str, Any]) -> None:
    """Other back ends silently drop linked trees."""
    assert settings["build-system"]["build-backend"] == "setuptools.build_meta"


def test_only_the_real_package_is_built(settings: dict[str, Any]) -> None:
    tool = settings["tool"]["setuptools"]
    assert tool["package-dir"] == {"": "."}
    assert tool["packages"]["find"]["include"] == ["research_gym*"]


def test_task_files_and_typing_marker_ship(settings: dict[str, Any]) -> None:
    data = settings["tool"]["setuptools"]["package-data"]["research_gym"]
    assert "py.typed" in data
    assert any(pattern.startswith("envs/**") for pattern in data)


def test_tools_look_at_the_real_tree_only(settings: dict[str, Any]) -> None:
    tool = settings["tool"]
    assert tool["mypy"]["files"] == ["research_gym", "tests"]
    assert tool["mypy"]["strict"] is True
    for name in LINKS:
        assert f"--ignore={name}" in tool["pytest"]["ini_options"]["addopts"]
        assert name not in tool["ruff"].get("extend-exclude", []), "a bare name would exclude the real package too"
        banned = tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"][name]["msg"]
        assert banned == f"import research_gym.{name}"


def test_heavy_packages_are_extras_not_dependencies(settings: dict[str, Any]) -> None:
    names = {requirement.split(">")[0].split("[")[0].strip() for requirement in settings["project"]["dependencies"]}
    assert not names & {"torch", "datasets", "docker", "ray", "pandas", "scikit-learn", "transformers", "trl"}


def test_every_file_beside_the_code_is_covered_by_a_data_pattern() -> None:
    """A YAML file or a repository file outside `envs/` would be missing from the wheel."""
    package = ROOT / "research_gym"
    beside = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*")
        if path.is_file()
        and path.suffix not in {".py", ".pyc"}
        and path.name != "py.typed"
        and "__pycache__" not in path.parts
    }
    assert beside <= {"envs"}


def test_no_file_is_over_four_hundred_lines() -> None:
    """House style: one idea a file."""
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("research_gym", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text("utf-8").splitlines())) > 400
    }
    assert not long
