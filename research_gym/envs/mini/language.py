"""Prepares the tasks on text: which function does a docstring belong to, and questions on tables."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research_gym.envs.mini.functions import documented_functions
from research_gym.envs.mini.rows import best_constant_share, digest, ordered, write_csv, write_jsonl, write_labels
from research_gym.envs.mini.sources import data_file, package_folder
from research_gym.task import Task

CANDIDATES = 10
BLOCKS_TO_TRAIN = 20
TABLE_QUARTERS = 8
_SERIES = {
    "realgdp": "real gross domestic product",
    "realcons": "real personal consumption",
    "realinv": "real private investment",
    "realgovt": "real government spending",
    "cpi": "the consumer price index",
    "m1": "the money stock M1",
    "pop": "the population",
}
_QUESTIONS = {
    "change": (
        "What was the percentage change of {series} from {first} to {last}?",
        "By how many percent did {series} change between {first} and {last}?",
    ),
    "difference": (
        "By how much did {series} change from {first} to {last}?",
        "What is {series} in {last} minus {series} in {first}?",
    ),
    "mean": (
        "What was the average of {series} from {first} to {last}, both included?",
        "Averaged over the quarters {first} to {last}, both included, how large was {series}?",
    ),
    "ratio": (
        "{series} in {first}, as a percentage of {series} in {last}?",
        "How large was {series} in {first} as a percentage of its value in {last}?",
    ),
}


def code_retrieval(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """Documented functions of networkx in blocks of ten: every docstring of a block has all ten bodies to choose from.

    All queries of a block share its candidates, so that nothing but their content tells which is right. Candidates
    stand in the order of a hash of their text.
    """
    folder = package_folder("networkx", distribution="networkx")
    pairs = sorted(documented_functions(folder), key=lambda pair: digest(task.id, pair.code))
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for start in range(0, len(pairs) - CANDIDATES + 1, CANDIDATES):
        block = pairs[start : start + CANDIDATES]
        codes = sorted((pair.code for pair in block), key=lambda code: digest("candidates", code))
        part = "train" if start < BLOCKS_TO_TRAIN * CANDIDATES else "test"
        parts[part] += [{"query": pair.query, "candidates": codes, "label": codes.index(pair.code)} for pair in block]
    train, test = (ordered(rows, salt=task.id, label="label") for rows in parts.values())
    write_jsonl(data / "train" / "train.jsonl", train)
    write_jsonl(data / "test" / "test.jsonl", test, leave_out="label")
    write_labels(labels, test, label="label")
    return {"rows": len(test), "worst": best_constant_share([row["label"] for row in test]), "optimal": 1.0}


def table_questions(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """Questions on windows of quarterly US macroeconomic tables (public domain, through statsmodels), with numbers."""
    path = data_file("statsmodels", "datasets/macrodata/macrodata.csv", distribution="statsmodels")
    with path.open(encoding="utf-8", newline="") as file:
        quarters = list(csv.DictReader(file))
    rows = ordered(_questions(quarters), salt=task.id, label="answer")
    train, test = rows[:200], rows[200:]
    write_csv(data / "train" / "train.csv", train)
    write_csv(data / "test" / "test.csv", test, leave_out="answer")
    write_labels(labels, test, label="answer")
    return {"rows": len(test), "worst": best_constant_share([row["answer"] for row in test]), "optimal": 1.0}


def _questions(quarters: list[dict[str, str]], count: int = 400) -> Iterator[dict[str, Any]]:
    """Yields questions, drawn with a fixed seed: the draw decides what is asked, the table what is right."""
    draw = random.Random(20240101)
    made = 0
    while made < count:
        start = draw.randrange(len(quarters) - TABLE_QUARTERS + 1)
        window = quarters[start : start + TABLE_QUARTERS]
        columns = draw.sample(sorted(_SERIES), 4)
        names = [f"{int(float(row['year']))} Q{int(float(row['quarter']))}" for row in window]
        body = [[name, *(row[column] for column in columns)] for name, row in zip(names, window, strict=True)]
        table = [["quarter", *columns], *body]
        first, last = sorted(draw.sample(range(TABLE_QUARTERS), 2))
        series, kind = draw.choice(columns), draw.choice(sorted(_QUESTIONS))
        value = _answer(kind, [float(row[series]) for row in window[first : last + 1]])
        # A value that a last bit could round the other way is not asked for.
        if abs(abs(value * 10) % 1 - 0.5) < 1e-6 or abs(value) < 0.05:
            continue
        text = draw.choice(_QUESTIONS[kind]).format(series=_SERIES[series], first=names[first], last=names[last])
        made += 1
        yield {"table": json.dumps(table), "question": text[0].upper() + text[1:], "answer": f"{value:.1f}"}


def _answer(kind: str, values: list[float]) -> float:
    first, last = values[0], values[-1]
    match kind:
        case "change":
            return (last - first) / first * 100
        case "difference":
            return last - first
        case "mean":
            return sum(values) / len(values)
        case _:
            return first / last * 100
