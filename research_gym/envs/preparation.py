"""Makes the data of a task where they are not there yet."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from research_gym.datastore import commit_prepared, data_home, is_prepared, read_facts, read_manifest, staging
from research_gym.errors import DataMissing, TaskFormatError
from research_gym.task import SubmissionGrading, Task

__all__ = ["damaged_files", "ensure_prepared", "has_far_source", "is_stale", "prepare_task"]

Report: TypeAlias = Callable[[str], None]
"""Called with one line for each step that takes a while."""

_SOURCE = "source"
"""Fact of a task whose data lie beside its file: what they looked like when they were copied."""


def ensure_prepared(task: Task) -> None:
    """Prepares a task whose source is on this machine (seconds, offline); others must have been prepared before.

    Data beside the task file are copied again when they have changed.

    Raises:
        DataMissing: the data are not here and cannot be made from what is installed.
        TaskFormatError: data beside the task file do not fit it.
    """
    if is_prepared(task.id) and not is_stale(task):
        return
    if has_far_source(task):
        from research_gym.envs.airs.prepare import missing

        raise missing(task)
    prepare_task(task)


def has_far_source(task: Task) -> bool:
    """Whether the data of a task come from a download or a source that the user names, never by themselves."""
    return task.data is not None and task.data.folder is None and task.id.startswith("AIRS/")


def prepare_task(task: Task, *, source: str | None = None, report: Report = lambda line: None) -> None:
    """Makes agent data and labels of a task, atomically: either all of it is there afterwards or nothing.

    Args:
        source: where the data come from, for a task with a choice (`has_far_source`): `None` or `hub` downloads them,
            `qm9pack` reads that installed package, anything else is a folder of saved data sets.
        report: called with a line on each step that takes a while.

    Raises:
        DataMissing: the source is not on this machine; the message names both ways to get it.
        TaskFormatError: the task names no preparer that there is, or data beside the task file do not fit it.
        ValueError: a source is named for a task without a choice.
    """
    if has_far_source(task):
        from research_gym.envs.airs import prepare as airs

        airs.prepare(task, source=source, report=report)
        return
    if source is not None:
        raise ValueError(f"{task.id}: its data have one source only; leave out --source {source}")
    from research_gym.envs.mini.prepare import prepare

    if task.data is None:
        return
    if task.data.folder is not None:
        _copy(task)
        return
    if not task.id.startswith("Mini/"):
        raise DataMissing(
            f"{task.id}: expected a preparer of its suite, found none in this version. Either name the data beside the "
            "task file (`data: {mount: ..., folder: data, labels: labels.csv}`), or set RESEARCH_GYM_HOME to a folder "
            "where the task is prepared already."
        )
    prepare(task)


def damaged_files(task_id: str) -> list[str]:
    """Prepared files whose content is not what the manifest says: missing, changed, cut off. Reads all of them.

    Raises:
        DataMissing: the task is not prepared.
    """
    damaged = []
    for name, known in read_manifest(task_id)["files"].items():
        try:
            with (data_home() / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            digest = ""
        if digest != known["sha256"]:
            damaged.append(name)
    return damaged


def _copy(task: Task) -> None:
    """Copies the data and labels that lie beside a task file."""
    assert task.data is not None
    assert task.data.folder is not None
    with staging(task.id) as staged:
        for path in _regular(task, task.data.folder):
            target = staged.data / path.relative_to(task.data.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
        facts: dict[str, Any] = {_SOURCE: _fingerprint(task)}
        if isinstance(task.grading, SubmissionGrading):
            if task.data.labels is None:
                raise TaskFormatError(f"{task.path}: data: expected the key 'labels', the label file of a file task")
            shutil.copyfile(task.data.labels, staged.labels / "labels.csv")
            facts |= _bounds(task, task.grading, staged.labels / "labels.csv", staged.data)
        commit_prepared(staged, facts=facts)


def _bounds(task: Task, grading: SubmissionGrading, labels: Path, data: Path) -> dict[str, Any]:
    """Rows, and where the task file does not say it, what the best trivial model gets: it earns 0."""
    from research_gym.envs import baselines
    from research_gym.grading.schema import SubmissionInvalid

    right = baselines.read_labels(task, labels)
    if grading.worst is not None:
        return {"rows": len(right)}
    try:
        found = baselines.predictions(task, labels=right, data=data)
        return {"rows": len(right), "worst": baselines.best_raw(grading, labels=right, found=found)}
    except SubmissionInvalid as error:
        raise TaskFormatError(f"{task.path}: data.labels: not what `grading` declares: {error}") from error


def _regular(task: Task, folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise TaskFormatError(f"{task.path}: data.folder: expected regular files, found {path.name!r}")
        if path.is_file():
            yield path


def _fingerprint(task: Task) -> str:
    """Changes when a file beside the task file does; reads no file."""
    assert task.data is not None
    digest = hashlib.sha256(os.fsencode(task.path.absolute()))
    files = [task.path, *([task.data.labels] if task.data.labels else ())]
    if task.data.folder is not None:
        files += _regular(task, task.data.folder)
    for path in files:
        seen = path.stat()
        digest.update(os.fsencode(f"\n{path}\t{seen.st_size}\t{seen.st_mtime_ns}"))
    return digest.hexdigest()


def is_stale(task: Task) -> bool:
    """Whether files beside a task file have changed since they were copied; false for tasks without such files."""
    if task.data is None or task.data.folder is None:
        return False
    return read_facts(task.id).get(_SOURCE) != _fingerprint(task)
