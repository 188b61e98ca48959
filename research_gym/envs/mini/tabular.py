"""Prepares the tabular tasks from the data sets that ship with scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research_gym.envs.mini.rows import best_constant_error, best_constant_share, ordered, write_csv, write_labels
from research_gym.envs.mini.sources import sklearn_dataset
from research_gym.task import Task


def digits(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """1,797 handwritten digits of 8 x 8 pixels, 0 to 16 each, from UCI: 1,200 to train, 597 to test."""
    source = sklearn_dataset("load_digits")
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    rows: list[dict[str, Any]] = [
        {**{name: int(pixel) for name, pixel in zip(names, pixels, strict=True)}, "label": int(target)}
        for pixels, target in zip(source.data.tolist(), source.target.tolist(), strict=True)
    ]
    test = _split(rows, data, labels, salt=task.id, label="label", train_rows=1200)[1]
    return {"rows": len(test), "worst": best_constant_share(test), "optimal": 1.0}


def breast_cancer(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """569 tumours, 30 measurements of cell nuclei each, benign or malignant: 379 to train, 190 to test."""
    source = sklearn_dataset("load_breast_cancer")
    names = [str(name).replace(" ", "_") for name in source.feature_names]
    words = [str(name) for name in source.target_names]
    rows: list[dict[str, Any]] = [
        {**dict(zip(names, values, strict=True)), "diagnosis": words[target]}
        for values, target in zip(source.data.tolist(), source.target.tolist(), strict=True)
    ]
    test = _split(rows, data, labels, salt=task.id, label="diagnosis", train_rows=379)[1]
    return {"rows": len(test), "worst": best_constant_share(test), "optimal": 1.0}


def diabetes(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """442 patients, ten baseline variables, the progression of diabetes a year later: 300 to train, 142 to test."""
    source = sklearn_dataset("load_diabetes", scaled=False)
    names = [str(name) for name in source.feature_names]
    rows: list[dict[str, Any]] = [
        {**dict(zip(names, values, strict=True)), "progression": float(target)}
        for values, target in zip(source.data.tolist(), source.target.tolist(), strict=True)
    ]
    train, test = _split(rows, data, labels, salt=task.id, label="progression", train_rows=300)
    return {"rows": len(test), "worst": best_constant_error(train=train, test=test), "optimal": 0.0}


def _split(
    rows: Sequence[Mapping[str, Any]], data: Path, labels: Path, *, salt: str, label: str, train_rows: int
) -> tuple[list[Any], list[Any]]:
    """Writes train and test tables and the label file; returns the labels of both."""
    mixed = ordered(rows, salt=salt, label=label)
    train, test = mixed[:train_rows], mixed[train_rows:]
    write_csv(data / "train" / "train.csv", train)
    write_csv(data / "test" / "test.csv", test, leave_out=label)
    write_labels(labels, test, label=label)
    return [row[label] for row in train], [row[label] for row in test]
