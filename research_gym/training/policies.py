"""Policies that need no model: the reference solution, a notebook, random harmless cells."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from research_gym.task import Task, reference_cells

SUBMIT_LAST = "%submit $LAST"
"""A cell that submits the last line of the observation before it, as JSON."""

_RANDOM_CELLS = (
    "1 + 1",
    "import math; print(math.pi)",
    "!ls",
    "import os; print(sorted(os.listdir('.')))",
    "undefined_name",
    "%%bash\necho hello",
    "for i in range(3): print(i)",
)


class Policy(Protocol):
    """Chooses the next action from what was seen."""

    def __call__(self, observation: str, info: dict[str, Any]) -> str | None:
        """Returns the next action; `None` gives the episode up."""


class ScriptedPolicy:
    """Plays a list of cells in order, then gives up. `%submit $LAST` submits the last line it saw."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._cells: Iterator[str] = iter(cells)

    def __call__(self, observation: str, info: dict[str, Any]) -> str | None:
        """The next cell."""
        cell = next(self._cells, None)
        if cell is not None and cell.strip() == SUBMIT_LAST:
            lines = [line for line in observation.splitlines() if line.strip()]
            return f"%submit {lines[-1] if lines else ''}"
        return cell


class ReferencePolicy(ScriptedPolicy):
    """Plays the reference solution that ships with a task.

    Raises:
        ValueError: the task has none.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(reference_cells(task))


class NotebookPolicy(ScriptedPolicy):
    """Plays the code cells of a notebook file.

    Raises:
        ValueError: the file is not a notebook; the message says what nbformat found.
    """

    def __init__(self, path: str | Path) -> None:
        import nbformat

        try:
            notebook = nbformat.read(str(path), as_version=4)
        except (OSError, ValueError, nbformat.ValidationError) as error:
            raise ValueError(f"{path}: expected a Jupyter notebook (.ipynb), found: {error}") from error
        super().__init__([cell.source for cell in notebook.cells if cell.cell_type == "code"])


class RandomPolicy:
    """Harmless cells drawn at random, never a submission: a smoke test, and the floor of any comparison."""

    def __init__(self, seed: int = 0, *, steps: int = 10) -> None:
        self._random = random.Random(seed)
        self._left = steps

    def __call__(self, observation: str, info: dict[str, Any]) -> str | None:
        """The next random cell, `None` after `steps` of them."""
        if self._left <= 0:
            return None
        self._left -= 1
        return self._random.choice(_RANDOM_CELLS)
