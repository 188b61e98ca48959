"""Prepares the forecasting tasks: public domain series, the last stretch of each hidden."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from research_gym.envs.mini.rows import write_csv, write_labels
from research_gym.envs.mini.sources import data_file
from research_gym.task import Task

EMPLOYMENT_MONTHS = 12
CO2_WEEKS = 52
_SUM_OF_CHANGES = "nonfarm_change"


def us_employment(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """22 monthly series of employment by sector (US Bureau of Labor Statistics), 120 months; the last 12 are hidden."""
    path = data_file("vega_datasets", "_data/us-employment.csv", distribution="vega-datasets")
    table = _read(path)
    months = [row.pop("month")[:7] for row in table]
    names = [name for name in table[0] if name != _SUM_OF_CHANGES]
    series = {name: [float(row[name]) for row in table] for name in names}
    history = [{"month": month, **{name: series[name][at] for name in names}} for at, month in enumerate(months)]
    wanted = [
        {"series": name, "month": month, "value": value}
        for name in names
        for month, value in zip(months[-EMPLOYMENT_MONTHS:], series[name][-EMPLOYMENT_MONTHS:], strict=True)
    ]
    write_csv(data / "train" / "history.csv", history[:-EMPLOYMENT_MONTHS])
    write_csv(data / "test" / "wanted.csv", wanted, leave_out="value")
    write_labels(labels, wanted, label="value")
    worst = _worst([(series[name][:-EMPLOYMENT_MONTHS], series[name][-EMPLOYMENT_MONTHS:]) for name in names])
    return {"rows": len(wanted), "worst": worst, "optimal": 0.0}


def co2(task: Task, data: Path, labels: Path) -> Mapping[str, Any]:
    """Weekly carbon dioxide at Mauna Loa, 1958 to 2001 (Keeling and Whorf); the last year's measured weeks hidden."""
    table = _read(data_file("statsmodels", "datasets/co2/co2.csv", distribution="statsmodels"))
    rows = [{"week": datetime.strptime(row["date"], "%Y%m%d").date().isoformat(), "ppm": row["co2"]} for row in table]
    history = rows[:-CO2_WEEKS]
    wanted = [row for row in rows[-CO2_WEEKS:] if row["ppm"]]
    write_csv(data / "train" / "history.csv", history)
    write_csv(data / "test" / "wanted.csv", wanted, leave_out="ppm")
    write_labels(labels, wanted, label="ppm")
    known = [float(row["ppm"]) for row in history if row["ppm"]]
    worst = _worst([(known, [float(row["ppm"]) for row in wanted])])
    return {"rows": len(wanted), "worst": worst, "optimal": 0.0}


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _worst(parts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Mean absolute error of the better trivial forecast: the last known value, or the mean of the history."""
    naive = [abs(value - history[-1]) for history, future in parts for value in future]
    mean = [abs(value - fmean(history)) for history, future in parts for value in future]
    return min(fmean(naive), fmean(mean))
