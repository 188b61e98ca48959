"""Prepares the tasks on structures: graphs of up to seven nodes, and small molecules in their geometry."""

from __future__ import annotations

import ast
import gzip
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research_gym.envs.mini.rows import best_constant_error, digest, ordered, write_jsonl, write_labels
from research_gym.envs.mini.sources import data_file
from research_gym.errors import DataMissing
from research_gym.task import Task

GRAPHS_TO_TRAIN = 694
MOLECULES_TO_TRAIN = 100
_ELEMENT = re.compile(r"([A-Z][a-z]?)(\d*)")


def graph_property(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """All connected graphs of 3 to 7 nodes (Read and Wilson's atlas) with a spectral property of each, computed here.

    The property is the algebraic connectivity: the second smallest eigenvalue of the Laplacian. The agent is not told.
    """
    import numpy as np

    path = data_file("networkx", "generators/atlas.dat.gz", distribution="networkx")
    rows = []
    for number, (nodes, edges) in enumerate(_atlas(path)):
        laplacian = np.zeros((nodes, nodes))
        for one, other in edges:
            laplacian[[one, other], [one, other]] += 1.0
            laplacian[[one, other], [other, one]] -= 1.0
        value = float(np.linalg.eigvalsh(laplacian)[1]) if nodes >= 3 else 0.0
        if value < 1e-9:
            continue
        keys = [digest(str(number), str(node)) for node in range(nodes)]
        renamed = [sorted(keys).index(key) for key in keys]
        moved = sorted(sorted((renamed[one], renamed[other])) for one, other in edges)
        both_ways = sorted(moved + [edge[::-1] for edge in moved])
        edge_index = [list(side) for side in zip(*both_ways, strict=True)]
        rows.append({"num_nodes": nodes, "edge_index": edge_index, "y": round(value, 9)})
    return _split(rows, data, labels, salt=task.id, label="y", train_rows=GRAPHS_TO_TRAIN)


def molecule_enthalpy(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """148 molecules of the G2/97 set: geometry and experimental enthalpy of formation at 0 K, in kcal/mol."""
    rows = []
    for part in ("g2_1", "g2_2"):
        for entry in _literal(data_file("ase", f"data/{part}.py", distribution="ase"), "data").values():
            elements = [
                element
                for element, count in _ELEMENT.findall(entry["symbols"])
                for _ in range(int(count) if count else 1)
            ]
            if len(elements) < 2 or entry.get("enthalpy") is None:
                continue
            rows.append({"elements": elements, "positions": entry["positions"], "enthalpy": float(entry["enthalpy"])})
    return _split(rows, data, labels, salt=task.id, label="enthalpy", train_rows=MOLECULES_TO_TRAIN)


def _split(
    rows: list[dict[str, Any]], data: Path, labels: Path, *, salt: str, label: str, train_rows: int
) -> Mapping[str, Any]:
    mixed = ordered(rows, salt=salt, label=label)
    train, test = mixed[:train_rows], mixed[train_rows:]
    write_jsonl(data / "train" / "train.jsonl", train)
    write_jsonl(data / "test" / "test.jsonl", test, leave_out=label)
    write_labels(labels, test, label=label)
    worst = best_constant_error(train=[row[label] for row in train], test=[row[label] for row in test])
    return {"rows": len(test), "worst": worst, "optimal": 0.0}


def _atlas(path: Path) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yields (number of nodes, edges) of every graph in networkx's file: `GRAPH n`, `NODES n`, then an edge a line."""
    nodes, edges, started = 0, list[tuple[int, int]](), False
    with gzip.open(path, "rt", encoding="ascii") as file:
        for line in file:
            match line.split():
                case ["GRAPH", _]:
                    if started:
                        yield nodes, edges
                    edges, started = [], True
                case ["NODES", count]:
                    nodes = int(count)
                case [one, other]:
                    edges.append((int(one), int(other)))
    if started:
        yield nodes, edges


def _literal(path: Path, name: str) -> dict[str, Any]:
    """Reads one literal that a module assigns, without running the module.

    Raises:
        DataMissing: there is no such assignment: another version of the package.
    """
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            try:
                found: dict[str, Any] = ast.literal_eval(node.value)
            except ValueError:
                continue
            return found
    raise DataMissing(
        f"expected the table {name!r} as a literal in {path}, found none: this version of the package is too new or "
        "too old; install another, or set RESEARCH_GYM_HOME to a folder where the task is prepared already"
    )
