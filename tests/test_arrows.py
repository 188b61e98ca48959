"""Who may import whom: read from the source with `ast`, imports inside functions and under TYPE_CHECKING included."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import research_gym

PACKAGE = Path(research_gym.__file__).resolve().parent

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "limits": {"errors"},
    "terminal": set(),
    "text": {"terminal"},
    "output": set(),
    "cell": {"errors", "limits", "text", "output"},
    "pattern": {"errors"},
    "artefact": {"errors", "pattern"},
    "landmark": {"errors", "cell", "text", "pattern", "artefact"},
    "task_file": {"errors", "text"},
    "task_grading": {"errors", "task_file"},
    "task": {"errors", "limits", "landmark", "task_file", "task_grading"},
    "action": {"errors", "limits"},
    "edit": {"errors", "limits", "text", "action"},
    "reward": {"errors", "limits"},
    "episode": {"errors", "limits"},
    "datastore": {"errors", "limits", "task"},
}
VOCABULARY = set(MAY_IMPORT)
MAY_IMPORT |= {
    "kernel": set(),
    "sandbox": {"errors", "limits", "text", "cell", "kernel"},
    "grading": {"errors", "limits", "text", "task", "sandbox", "kernel"},
    "envs": VOCABULARY | {"sandbox", "grading"},
    "wrappers": VOCABULARY | {"sandbox", "grading", "envs"},
    "training": VOCABULARY | {"sandbox", "grading", "envs", "wrappers"},
    "testing": VOCABULARY | {"sandbox", "grading", "envs", "wrappers", "training", "kernel"},
    "cli": VOCABULARY | {"sandbox", "grading", "envs", "wrappers", "training", "testing"},
}
"""Unit (a module or a folder of the package) -> the other units it may import."""

INSIDE = {"ipykernel", "jupyter_client", "zmq", "tornado", "traitlets", "IPython"}
"""What the kernel's own side may use beside the standard library: the kernel image has it."""
OUTSIDE = {
    "research_gym.kernel",
    "research_gym.kernel.frames",
    "research_gym.kernel.bootstrap",
    "research_gym.kernel.seccomp",
}
"""What the host side may import of `kernel/`: the wire format, how sources get inside, what the filter knows."""
KERNEL_SIDE = ("kernel.jupyter", "kernel.fork")
"""Modules of `kernel/` that run in or speak to an ipykernel; the others run as pid 1 with `python -I -S`."""
LIGHT = {"gymnasium", "numpy", "yaml", "re2", "platformdirs"}
"""Third-party packages that a module may import at the top level; everything else is imported where it is used."""


def _modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if "__pycache__" in relative.parts or (relative.parts[:2] in (("envs", "mini"),) and len(relative.parts) > 3):
            continue  # files of a task belong to the agent, not to the package
        found.append((".".join(relative.with_suffix("").parts), path))
    return found


def _imports(tree: ast.Module, module: str) -> Iterator[tuple[str, bool]]:
    """Yields (dotted name, whether it runs when the module is imported)."""
    nested = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in nested
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            yield node.module, id(node) not in nested
            if node.module in ("research_gym", "research_gym.kernel"):
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", id(node) not in nested


def _unit(module: str) -> str:
    return module.split(".")[0]


MODULES = _modules()


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[module for module, _ in MODULES])
def test_module_keeps_the_arrows(module: str, path: Path) -> None:
    unit = _unit(module)
    if unit in ("__init__", "__main__"):
        return
    assert unit in MAY_IMPORT, f"{module}: a new unit needs its place in the arrows"
    for name, _ in _imports(ast.parse(path.read_text("utf-8")), module):
        parts = name.split(".")
        if parts[0] != "research_gym" or len(parts) < 2:
            continue
        assert parts[1] == unit or parts[1] in MAY_IMPORT[unit], f"{module} must not import {name}"
        if parts[1] == "kernel" and unit != "kernel":
            assert name in OUTSIDE, f"{module} must not import {name}: it runs inside the sandbox"


@pytest.mark.parametrize(
    ("module", "path"), [m for m in MODULES if _unit(m[0]) == "kernel"], ids=lambda v: str(v)[-30:]
)
def test_kernel_code_needs_the_standard_library_and_frames_only(module: str, path: Path) -> None:
    """It runs inside the sandbox, where the package is not: the standard library is all there is for pid 1."""
    for name, _ in _imports(ast.parse(path.read_text("utf-8")), module):
        top = name.split(".")[0]
        if top == "research_gym":
            assert name.startswith("research_gym.kernel"), f"{module} imports {name}: not shipped into the sandbox"
        elif top not in sys.stdlib_module_names:
            assert module.startswith(KERNEL_SIDE), f"{module} imports {name}: not on the side of pid 1"
            assert top in INSIDE, f"{module} imports {name}: not in the kernel image"


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[module for module, _ in MODULES])
def test_module_imports_heavy_packages_only_where_they_are_used(module: str, path: Path) -> None:
    if _unit(module) in ("kernel", "cli"):
        return
    for name, at_import in _imports(ast.parse(path.read_text("utf-8")), module):
        top = name.split(".")[0]
        if at_import and top not in sys.stdlib_module_names and top != "research_gym":
            assert top in LIGHT, f"{module}: import {name} inside the function that uses it"
