"""Prepares the tasks on QM9: which molecules, which target, which columns the agent gets, the score of a constant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from research_gym.datastore import LABEL_FILE
from research_gym.envs.airs import qm9pack
from research_gym.envs.airs.molecules import Floats, Molecules, mixed, texts, write_files
from research_gym.envs.airs.sources import HubDataset, Report, load_splits
from research_gym.errors import DataMissing
from research_gym.task import Task

DATASET = HubDataset(
    name="nimashoghi/qm9",
    config="default",
    commit="1c482d3",
    rows={"train": 110_831, "val": 10_000, "test": 10_000},
    package=qm9pack.REQUIREMENT,
)
"""Row counts as on the data set's card at this commit, and in airs-bench's metadata."""

_BATCH_ROWS = 5_000


def heat_capacity(task: Task, data: Path, labels: Path, *, source: str | None, report: Report) -> Mapping[str, Any]:
    """Heat capacity at constant volume at 298.15 K, cal/(mol K); no scaling."""
    return _constant_baseline(task, data, labels, target="c_v", source=source, report=report)


def _constant_baseline(
    task: Task, data: Path, labels: Path, *, target: str, source: str | None, report: Report
) -> Mapping[str, Any]:
    """Writes train and test (validation is no part of the task) and grades the constants of the train split."""
    splits, origin = _splits(task, target, source=source, report=report)
    report("writing the agent's files and the labels")
    values: dict[str, Floats] = {}
    for split in ("train", "test"):
        molecules, ids = mixed(splits[split], salt=f"{task.id} {split}")
        values[split] = molecules.targets[target]
        write_files(data / split, molecules, ids=ids, target=target if split == "train" else None)
    (labels / LABEL_FILE).write_text("\n".join((target, *texts(values["test"]), "")), encoding="ascii")
    train, test = (values[split].astype(np.float64) for split in ("train", "test"))
    errors = {
        "median": float(np.abs(test - np.median(train)).mean()),
        "mean": float(np.abs(test - train.mean()).mean()),
    }
    return {
        "rows": len(test),
        "worst": min(errors.values()),
        "optimal": 0.0,
        "baselines": errors,
        "origin": origin,
        "train_rows": len(train),
    }


def _splits(task: Task, target: str, *, source: str | None, report: Report) -> tuple[dict[str, Molecules], str]:
    if source == "qm9pack":
        folder = qm9pack.folder()
        if folder is None:
            raise DATASET.missing(task.id, found="no installed package qm9pack")
        try:
            return qm9pack.read_splits(folder, rows=DATASET.rows, report=report), qm9pack.REQUIREMENT
        except (ValueError, KeyError) as error:
            raise DATASET.missing(task.id, found=str(error)) from error
    path = None if source in (None, "hub") else Path(str(source)).expanduser()
    if path is not None and not path.is_dir():
        raise DATASET.missing(task.id, found=f"no folder {source} (nor is that the name of a source: hub, qm9pack)")
    loaded, origin = load_splits(DATASET, task_id=task.id, folder=path, report=report)
    report(f"reading {origin}")
    try:
        return {split: _molecules(loaded[split], target=target) for split in ("train", "test")}, origin
    except (ValueError, KeyError) as error:
        raise DataMissing(f"{task.id}: expected {DATASET.name} with its 25 columns, found: {error}") from error


def _molecules(dataset: Any, *, target: str) -> Molecules:
    """Turns a split as the Hub has it into arrays, a few thousand rows at a time."""
    parts: dict[str, list[Any]] = {}
    columns = dataset.select_columns(["pos", "atomic_numbers", "tags", "A", "B", "C", target])
    for table in columns.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        numbers = table["atomic_numbers"].combine_chunks()
        found = {
            "natoms": numbers.value_lengths().to_numpy(zero_copy_only=False),
            "atomic_numbers": numbers.flatten().to_numpy(zero_copy_only=False),
            "tags": table["tags"].combine_chunks().flatten().to_numpy(zero_copy_only=False),
            "pos": table["pos"].combine_chunks().flatten().flatten().to_numpy(zero_copy_only=False),
            **{name: table[name].to_numpy() for name in ("A", "B", "C", target)},
        }
        for name, values in found.items():
            parts.setdefault(name, []).append(values)
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    return Molecules(
        natoms=whole["natoms"].astype(np.int32),
        pos=whole["pos"].astype(np.float32).reshape(-1, 3),
        atomic_numbers=whole["atomic_numbers"].astype(np.int32),
        tags=whole["tags"].astype(np.int32),
        rotations=np.stack([whole[name] for name in "ABC"], axis=1).astype(np.float32),
        targets={target: whole[target].astype(np.float32)},
    )
