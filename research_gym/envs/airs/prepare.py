"""Makes the data of AIRS tasks: which preparer a task names, from which source, and one atomic step to all of it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from research_gym.datastore import commit_prepared, staging
from research_gym.envs.airs import qm9
from research_gym.envs.airs.sources import HubDataset, Report
from research_gym.errors import DataMissing, TaskFormatError
from research_gym.task import Task


class Preparer(Protocol):
    """Fills the agent's data folder and the label folder, both empty, and returns the facts that the grader needs.

    Raises `DataMissing` where the source is not on this machine and cannot be fetched.
    """

    def __call__(
        self, task: Task, data: Path, labels: Path, *, source: str | None, report: Report
    ) -> Mapping[str, Any]: ...


PREPARERS: Mapping[str, tuple[HubDataset, Preparer]] = {
    "qm9-c_v": (qm9.DATASET, qm9.heat_capacity),
}
"""Name in a task file (`data: {prepare: ...}`) -> its data set and its preparer."""


def prepare(task: Task, *, source: str | None = None, report: Report = lambda line: None) -> None:
    """Makes agent data, labels and facts of a task and stores them in one piece; replaces what was there.

    Args:
        source: `None` or `hub` (download), `qm9pack` (that installed package), or a folder of saved data sets.
        report: called with one line for each step.

    Raises:
        DataMissing: the source is not here; the message names the ways out. Nothing was changed.
        TaskFormatError: the task names a preparer that does not exist.
    """
    preparer = _entry(task)[1]
    with staging(task.id) as staged:
        facts = preparer(task, staged.data, staged.labels, source=source, report=report)
        report("computing checksums")
        commit_prepared(staged, facts=facts)


def missing(task: Task) -> DataMissing:
    """The error of a task that was not prepared: making an environment downloads nothing.

    Raises:
        TaskFormatError: the task names a preparer that does not exist.
    """
    return _entry(task)[0].missing(task.id, found="nothing prepared from it on this machine")


def _entry(task: Task) -> tuple[HubDataset, Preparer]:
    name = task.data.prepare if task.data is not None else ""
    if name not in PREPARERS:
        near = get_close_matches(name, PREPARERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PREPARERS)}"
        raise TaskFormatError(f"{task.path}: data.prepare: unknown preparer {name!r}; {hint}")
    return PREPARERS[name]
