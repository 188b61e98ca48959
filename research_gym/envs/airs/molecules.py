"""Many molecules as flat arrays, and the two files an agent reads them from.

One number per molecule goes to a CSV table, whatever has a shape to a NumPy archive: the sandbox has NumPy and pandas
and no pyarrow. 110,831 molecules are 29 MB and load in about a second, far below 2 GB.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ELEMENTS = 120
"""Length of a composition: entry z counts the atoms of atomic number z."""
TABLE = "molecules.csv"
ARCHIVE = "atoms.npz"

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Molecules:
    """Molecules with their targets. Columns per atom hold the atoms of all molecules, one molecule after the other.

    Raises:
        ValueError: lengths do not agree, or a number is not finite; the message names the column.
    """

    natoms: Ints
    """Atoms of each molecule, (n,)."""
    pos: Floats
    """Angstrom, (atoms, 3)."""
    atomic_numbers: Ints
    """(atoms,)."""
    tags: Ints
    """(atoms,); a mark of the source that QM9 leaves constant."""
    rotations: Floats
    """Rotational constants A, B and C in GHz, (n, 3)."""
    targets: Mapping[str, Floats]
    """Name -> values, (n,)."""

    def __post_init__(self) -> None:
        atoms, count = int(self.natoms.sum()), len(self.natoms)
        expected: dict[str, tuple[Any, tuple[int, ...]]] = {
            "pos": (self.pos, (atoms, 3)),
            "atomic_numbers": (self.atomic_numbers, (atoms,)),
            "tags": (self.tags, (atoms,)),
            "A, B, C": (self.rotations, (count, 3)),
            **{name: (values, (count,)) for name, values in self.targets.items()},
        }
        for name, (values, shape) in expected.items():
            if values.shape != shape:
                raise ValueError(f"molecules: {name}: expected the shape {shape}, found {values.shape}")
            if not np.isfinite(values).all():
                raise ValueError(f"molecules: {name}: expected finite numbers only, found others")
        if atoms and not (self.atomic_numbers.min() > 0 and self.atomic_numbers.max() < ELEMENTS):
            raise ValueError(f"molecules: atomic_numbers: expected 1 to {ELEMENTS - 1}, found others")

    def __len__(self) -> int:
        return len(self.natoms)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Molecules:
        """Returns some of the molecules, in the order of `rows`."""
        chosen = np.asarray(rows, dtype=np.int64)
        natoms = self.natoms[chosen]
        starts = (np.cumsum(self.natoms) - self.natoms)[chosen]
        places = np.cumsum(natoms) - natoms
        atoms = np.repeat(starts - places, natoms) + np.arange(int(natoms.sum()))
        return Molecules(
            natoms=natoms,
            pos=self.pos[atoms],
            atomic_numbers=self.atomic_numbers[atoms],
            tags=self.tags[atoms],
            rotations=self.rotations[chosen],
            targets={name: values[chosen] for name, values in self.targets.items()},
        )

    def composition(self) -> Ints:
        """Atoms of each molecule by atomic number, (n, 120)."""
        found = np.zeros((len(self), ELEMENTS), dtype=np.int32)
        np.add.at(found, (np.repeat(np.arange(len(self)), self.natoms), self.atomic_numbers), 1)
        return found

    def keys(self, *, salt: str) -> list[str]:
        """A text of 64 hexadecimal digits for each molecule, from `salt` and what an agent sees of it: no target, no
        name and no place in the source. Molecules that agree in all of it get different ones."""
        seen: Counter[bytes] = Counter()
        found = []
        ends = np.cumsum(self.natoms)
        for row, (start, end) in enumerate(zip(ends - self.natoms, ends, strict=True)):
            content = b"".join(
                (
                    salt.encode("utf-8"),
                    self.atomic_numbers[start:end].astype("<i4").tobytes(),
                    self.pos[start:end].astype("<f4").tobytes(),
                    self.rotations[row].astype("<f4").tobytes(),
                )
            )
            digest = hashlib.sha256(content).digest()
            seen[digest] += 1
            found.append(hashlib.sha256(digest + str(seen[digest]).encode()).hexdigest())
        return found


def mixed(molecules: Molecules, *, salt: str) -> tuple[Molecules, list[str]]:
    """Puts molecules into an order that says nothing about their targets, and gives each an id that says nothing.

    Returns the molecules and their ids. Neither follows from the order of the source, nor an id from its row.
    """
    keys = molecules.keys(salt=salt)
    rows = sorted(range(len(keys)), key=keys.__getitem__)
    ids = [hashlib.sha256(f"id {keys[row]}".encode()).hexdigest()[:16] for row in rows]
    return molecules.take(rows), ids


def write_files(folder: Path, molecules: Molecules, *, ids: Sequence[str], target: str | None) -> None:
    """Writes `molecules.csv` (id, natoms, A, B, C and the target, if the agent may have it) and `atoms.npz` (the
    columns per atom, `composition`, and `offsets`: where the atoms of each molecule begin, and the end). The same bytes
    every time on one machine."""
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Sequence[str]] = {"id": ids, "natoms": [str(count) for count in molecules.natoms]}
    columns |= {name: texts(values) for name, values in zip("ABC", molecules.rotations.T, strict=True)}
    if target is not None:
        columns[target] = texts(molecules.targets[target])
    lines = (",".join(row) for row in zip(*columns.values(), strict=True))
    (folder / TABLE).write_text("\n".join((",".join(columns), *lines, "")), encoding="ascii")
    arrays = {
        "offsets": np.concatenate(([0], np.cumsum(molecules.natoms))),
        "pos": molecules.pos,
        "atomic_numbers": molecules.atomic_numbers,
        "tags": molecules.tags,
        "composition": molecules.composition(),
    }
    np.savez_compressed(folder / ARCHIVE, allow_pickle=False, **arrays)


def texts(values: Floats) -> list[str]:
    """The shortest decimals that give the same float32 numbers again."""
    return [str(value) for value in values]
