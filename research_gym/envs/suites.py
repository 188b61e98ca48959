"""Which tasks an id stands for: one task, a task file, or a set that draws its task on reset."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from research_gym.task import Task, load_task


@cache
def shipped() -> dict[str, Path]:
    """Task id -> task file of every task that ships with the package, from `ids.csv`; opens no task file."""
    root = files("research_gym.envs")
    table = csv.DictReader(root.joinpath("ids.csv").read_text("utf-8").splitlines())
    return {row["id"]: Path(str(root)) / row["file"] for row in table}


def suite_of(task_id: str) -> str:
    """The part of an id before its slash."""
    return task_id.partition("/")[0]


def unknown_id(task_id: str, known: Iterable[str]) -> ValueError:
    """The error for an id that is not there, with the nearest one."""
    near = get_close_matches(task_id, list(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`research-gym list` shows the ids"
    return ValueError(f"unknown task {task_id!r}; {hint}")


@dataclass(frozen=True)
class Choice:
    """The tasks that one environment may serve."""

    ids: tuple[str, ...]
    """Ids of shipped tasks, or the path of one task file."""

    @classmethod
    def of(cls, task: str | Path) -> Choice:
        """Reads what a user passed as `task`.

        Raises:
            ValueError: no task, set or file has that name.
        """
        text = str(task)
        if text.endswith((".yaml", ".yml")):
            return cls((text,))
        suite, _, name = text.partition("/")
        if name in ("All", "All-v0"):
            ids = tuple(task_id for task_id in shipped() if suite_of(task_id) == suite)
            if not ids:
                raise unknown_id(text, {f"{suite_of(task_id)}/All-v0" for task_id in shipped()})
            return cls(ids)
        if text not in shipped():
            raise unknown_id(text, shipped())
        return cls((text,))

    def first(self) -> Task:
        """The first task of the set."""
        return _load(self.ids[0])

    def tasks(self) -> list[Task]:
        """All tasks of the set, loaded."""
        return [_load(task_id) for task_id in self.ids]

    def draw(self, options: Mapping[str, Any] | None, random: np.random.Generator) -> Task:
        """The task of the next episode: `options["task"]` where it is given, else drawn by `random`.

        Raises:
            ValueError: an option other than `task`, or a task outside the set.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"reset(options=...): expected a mapping, found {options!r}")
        options = dict(options or {})
        wanted = options.pop("task", None)
        if options:
            raise ValueError(f"reset(options=...): unknown option {next(iter(options))!r}; known: 'task'")
        if wanted is not None:
            if wanted not in self.ids:
                raise unknown_id(str(wanted), self.ids)
            return _load(wanted)
        if len(self.ids) == 1:
            return _load(self.ids[0])
        return _load(self.ids[int(random.integers(len(self.ids)))])


def _load(task_id: str) -> Task:
    return _load_file(shipped().get(task_id) or Path(task_id))


@cache
def _load_file(path: Path) -> Task:
    return load_task(path)
