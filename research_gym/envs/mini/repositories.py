"""Prepares the tasks that are repositories: their data, and the gold answer from a run of the mended repository here.

A gold answer is in no file of the package: it is what the repository gives once the edits of the reference are made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research_gym.action import Edit, parse
from research_gym.edit import apply_edit
from research_gym.envs.mini.rows import ordered, write_csv
from research_gym.envs.mini.sources import sklearn_dataset
from research_gym.envs.mini.wheels import build_wheel
from research_gym.errors import DataMissing
from research_gym.task import Task, reference_cells

RUN_TIMEOUT_S = 120.0
_TAIL_CHARS = 2000


def mend_perceptron(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """The Wisconsin table; the answer of three epochs with seed 7."""
    source = sklearn_dataset("load_breast_cancer")
    words = [str(name) for name in source.target_names]
    rows = _rows(source, label="diagnosis", values=[words[target] for target in source.target.tolist()])
    write_csv(data / "wdbc.csv", ordered(rows, salt=task.id, label="diagnosis"))
    metrics = run_mended(
        task,
        ["train.py", "--data", str(data / "wdbc.csv"), "--epochs", "3", "--seed", "7"],
        answer="results/metrics.json",
    )
    return {"gold": {"test_accuracy": metrics["test_accuracy"], "mistakes": metrics["mistakes"]}}


def run_on_cpu(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """The wine table; the answer of three clusters with seed 5."""
    source = sklearn_dataset("load_wine")
    rows = _rows(source, label="cultivar", values=[f"cultivar_{target}" for target in source.target.tolist()])
    write_csv(data / "wine.csv", ordered(rows, salt=task.id, label="cultivar"))
    metrics = run_mended(
        task,
        ["cluster.py", "--data", str(data / "wine.csv"), "--clusters", "3", "--seed", "5", "--device", "cpu"],
        answer="results/metrics.json",
    )
    return {"gold": {name: metrics[name] for name in ("inertia", "purity", "iterations")}}


def point_to_data(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """The diabetes table as another laboratory would export it; the answer of a ridge regression on it."""
    source = sklearn_dataset("load_diabetes", scaled=False)
    rows = _rows(source, label="progression", values=source.target.tolist())
    table = ordered(rows, salt=task.id, label="progression")
    names = list(table[0])
    lines = [";".join(name.upper() for name in names)]
    lines += [";".join(str(row[name]).replace(".", ",") for name in names) for row in table]
    (data / "clinic_export.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    metrics = run_mended(
        task,
        ["crossvalidate.py", "--config", "config.ini"],
        answer="results/metrics.json",
        replace={"/data/": f"{data}/"},
    )
    return {"gold": {name: metrics[name] for name in ("best_penalty", "rmse")}}


def install_dependency(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """The iris table and two versions of a small package as wheels; the answer of a ranking with the right one."""
    source = sklearn_dataset("load_iris")
    words = [str(name) for name in source.target_names]
    rows = _rows(source, label="species", values=[words[target] for target in source.target.tolist()])
    write_csv(data / "iris.csv", ordered(rows, salt=task.id, label="species"))
    sources = task.path.parent / "wheels"
    for version in ("0.1.4", "0.2.0"):
        build_wheel(sources / version, name="tinyrank", version=version, into=data / "wheels")
    metrics = run_mended(
        task,
        ["evaluate.py", "--data", str(data / "iris.csv"), "--cutoff", "20"],
        answer="results/metrics.json",
        python_path=sources / "0.1.4",
    )
    return {"gold": {name: metrics[name] for name in ("ndcg", "map", "mrr")}}


def mended_files(task: Task) -> dict[str, str]:
    """Returns the text of every file of a task's repository after the edits of its reference.

    Raises:
        EditRefused: an edit of the reference does not fit the repository.
    """
    found = {name: content.decode("utf-8") for name, content in task.read_files()}
    for cell in reference_cells(task):
        edit = parse(cell, shape=task.shape)
        if isinstance(edit, Edit):
            name = edit.path.removeprefix(f"{task.repository}/")
            found[name] = apply_edit(found[name], edit).text
    return found


def run_mended(
    task: Task,
    arguments: Sequence[str],
    *,
    answer: str,
    replace: Mapping[str, str] | None = None,
    python_path: Path | None = None,
) -> Any:
    """Runs a script of the mended repository in a temporary folder and returns the JSON file that it wrote.

    Args:
        task: the task whose repository it is.
        arguments: the script and its arguments.
        answer: the file to read afterwards, relative to the repository.
        replace: texts to replace in the repository's `.ini` files: places of the sandbox that are elsewhere here.
        python_path: a folder to import from: what the agent has to install.

    Raises:
        DataMissing: the script fails on this machine; the message carries the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in mended_files(task).items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".ini":
                for old, new in (replace or {}).items():
                    text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if python_path is not None:
            environment["PYTHONPATH"] = str(python_path.resolve())
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(task, f"no end after {RUN_TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            raise _failed(task, f"exit status {done.returncode}: {(done.stdout + done.stderr)[-_TAIL_CHARS:]}")
        return json.loads(Path(folder, answer).read_text("utf-8"))


def _failed(task: Task, found: str) -> DataMissing:
    return DataMissing(
        f"{task.id}: expected its mended repository to run here and give the gold answer, found {found}. Check that "
        f"{sys.executable} imports numpy, or prepare on another machine and point RESEARCH_GYM_HOME at its data."
    )


def _rows(source: Any, *, label: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    names = [str(name).replace(" ", "_").replace("/", "_") for name in source.feature_names]
    return [
        {**dict(zip(names, features, strict=True)), label: value}
        for features, value in zip(source.data.tolist(), values, strict=True)
    ]
