"""Where the data sets of AIRS-Bench come from: the Hub or a folder of saved data sets; what to say without both."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research_gym.errors import DataMissing

Report = Callable[[str], None]
"""Called with one line on what is being done."""


@dataclass(frozen=True)
class HubDataset:
    """One data set on the Hub, as the tasks use it."""

    name: str
    """`owner/name`."""
    config: str
    commit: str
    """The beginning of the commit that tasks are made from."""
    rows: Mapping[str, int]
    """Split -> number of rows; every one of them must be there, with that many."""
    package: str = ""
    """An installed package that carries the same data, as a requirement; empty if there is none."""

    def missing(self, task_id: str, *, found: str) -> DataMissing:
        """The error of a task whose data set is not here: the task, the data set, and the ways out with and without a
        network."""
        carried = f"`--source {self.package.partition('==')[0]}` (`pip install --no-deps {self.package}`) or "
        return DataMissing(
            f"{task_id}: expected the data set {self.name} ({self.config}), found {found}. Run `research-gym prepare "
            f"{task_id}`: with a network and `pip install datasets`, as it stands; offline, with "
            f"{carried if self.package else ''}`--source DIR`, a folder of saved data sets that holds "
            f"{self.name}/{self.config}. Or set RESEARCH_GYM_HOME to a folder where the task is prepared already."
        )


def load_splits(
    dataset: HubDataset, *, task_id: str, folder: Path | None, report: Report
) -> tuple[dict[str, Any], str]:
    """Loads the splits of a data set, from a folder of saved data sets or else from the Hub, and counts their rows.

    From the Hub, finished downloads are kept in the cache of the package `datasets` and not fetched again.

    Returns:
        Split -> `datasets.Dataset`, and where they came from.

    Raises:
        DataMissing: the package `datasets`, the network, the folder, a split or a row is missing.
    """
    try:
        package = importlib.import_module("datasets")
    except ImportError as error:
        raise dataset.missing(task_id, found="no package 'datasets' to read it with") from error
    if folder is not None:
        loaded, origin = _from_folder(package, dataset, task_id=task_id, folder=folder)
    else:
        loaded, origin = _from_hub(package, dataset, task_id=task_id, report=report)
    for split, rows in dataset.rows.items():
        if split not in loaded:
            raise dataset.missing(task_id, found=f"no split {split!r} in {origin}, only {', '.join(loaded)}")
        if len(loaded[split]) != rows:
            raise dataset.missing(
                task_id, found=f"{len(loaded[split])} rows in its split {split!r}, not {rows} ({origin})"
            )
    return {split: loaded[split] for split in dataset.rows}, origin


def _from_folder(package: Any, dataset: HubDataset, *, task_id: str, folder: Path) -> tuple[dict[str, Any], str]:
    below = folder / dataset.name / dataset.config
    path = below if below.is_dir() else folder
    try:
        loaded = package.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise dataset.missing(task_id, found=f"no saved data set at {path}") from error
    if not isinstance(loaded, dict):
        raise dataset.missing(task_id, found=f"one split at {path}, not a data set of several")
    return loaded, f"saved data set {dataset.name}"


def _from_hub(package: Any, dataset: HubDataset, *, task_id: str, report: Report) -> tuple[dict[str, Any], str]:
    hub = importlib.import_module("huggingface_hub")
    report(f"{dataset.name}: asking the Hub for commit {dataset.commit}")
    try:
        commits = hub.HfApi().list_repo_commits(dataset.name, repo_type="dataset")
        full = next((commit.commit_id for commit in commits if commit.commit_id.startswith(dataset.commit)), None)
        if full is None:
            raise dataset.missing(task_id, found=f"no commit {dataset.commit} of it on the Hub")
        report(f"{dataset.name}: downloading, unless it is in the cache")
        return package.load_dataset(dataset.name, dataset.config, revision=full), f"{dataset.name}@{full}"
    except _hub_errors(package, hub) as error:
        if isinstance(error, DataMissing):
            raise
        reason = " ".join(str(error).split())[:200]
        raise dataset.missing(task_id, found=f"no way to it on the Hub ({type(error).__name__}: {reason})") from error


def _hub_errors(package: Any, hub: Any) -> tuple[type[Exception], ...]:
    """What the two packages raise without a network, or if the Hub refuses.

    Their HTTP client depends on their version, and its errors are not always `OSError`s; but their own HTTP error
    inherits from the client's.
    """
    client = [
        kind for kind in hub.errors.HfHubHTTPError.__mro__ if issubclass(kind, Exception) and kind is not Exception
    ]
    return (OSError, ValueError, package.exceptions.DatasetsError, *client)
