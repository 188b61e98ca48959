"""QM9 from the package qm9pack, which carries 130,831 molecules as CSV files. The package is never imported.

The split is ours: the data set on the Hub was split at random, and which molecule went where is not in the package.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from research_gym.envs.airs.molecules import Molecules
from research_gym.envs.airs.sources import Report

REQUIREMENT = "qm9pack==1.0.3"
FILES: Mapping[str, str] = {
    "qm9_part1.csv": "19f0a5d595462d52cd82eef3370f3e9eb55a1f52cb14985657200349568deff3",
    "qm9_part2.csv": "2bca113fdc0b28a13563c80ed9b240e934f3da6c64c64fe74ddb4f0f36036e61",
    "qm9_part3.csv": "9c5efb5733d2af149db8d95d36ff198b4ffed12d9f7b344220a1e5877d5c6a43",
}
"""File of version 1.0.3 -> its SHA-256."""
TARGETS: Mapping[str, str] = {"c_v": "Heatcapacity_Cv_cal_mol_K"}
"""Name on the Hub -> column of the package, in the same unit."""

_NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
_ROTATIONS = ("RotA_GHz", "RotB_GHz", "RotC_GHz")
_TAG = 2
_SEED = "research_gym: split of qm9pack 0"


def folder() -> Path | None:
    """The data folder of the installed package; `None` if it is not installed."""
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def read_splits(data: Path, *, rows: Mapping[str, int], report: Report) -> dict[str, Molecules]:
    """Reads the package's files and splits the molecules by a seeded permutation, the same on every machine.

    Raises:
        ValueError: a file is missing or not the one of version 1.0.3, or the number of molecules is another.
    """
    for name, expected in FILES.items():
        report(f"qm9pack: checking {name}")
        try:
            with (data / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"no file {name} in the package qm9pack ({error.strerror})") from error
        if found != expected:
            raise ValueError(f"another {name} in the package qm9pack than that of {REQUIREMENT}")
    molecules, names = _read([data / name for name in FILES], report=report)
    if len(molecules) != sum(rows.values()):
        raise ValueError(f"{len(molecules)} molecules in the package qm9pack, not {sum(rows.values())}")
    order = sorted(range(len(names)), key=lambda row: hashlib.sha256(f"{_SEED} {names[row]}".encode()).digest())
    splits, start = {}, 0
    for split, count in rows.items():
        splits[split] = molecules.take(order[start : start + count])
        start += count
    return splits


def _read(paths: list[Path], *, report: Report) -> tuple[Molecules, list[str]]:
    """Reads all molecules and their names in the package."""
    names: list[str] = []
    natoms, numbers = array("i"), array("i")
    pos, rotations = array("f"), array("f")
    targets = {name: array("f") for name in TARGETS}
    for path in paths:
        report(f"qm9pack: reading {path.name} ({len(names)} molecules so far)")
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                symbols = json.loads(row["Elements"].replace("'", '"'))
                coordinates = row["XYZ_Ang"].replace("[", "").replace("]", "").split(",")
                names.append(row["XYZ_file"])
                natoms.append(len(symbols))
                numbers.extend(_NUMBERS[symbol] for symbol in symbols)
                pos.extend(map(float, coordinates))
                rotations.extend(float(row[column]) for column in _ROTATIONS)
                for target, column in TARGETS.items():
                    targets[target].append(float(row[column]))
    molecules = Molecules(
        natoms=np.array(natoms, dtype=np.int32),
        pos=np.array(pos, dtype=np.float32).reshape(-1, 3),
        atomic_numbers=np.array(numbers, dtype=np.int32),
        tags=np.full(len(numbers), _TAG, dtype=np.int32),
        rotations=np.array(rotations, dtype=np.float32).reshape(-1, 3),
        targets={name: np.array(values, dtype=np.float32) for name, values in targets.items()},
    )
    return molecules, names
