"""What processes that died left on this machine: containers, half-made data, work folders of plain local sandboxes."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from research_gym.errors import SandboxUnavailable
from research_gym.sandbox.docker_engine import engine, engine_errors, leftovers, remove, words

ENGINE_WITHIN_S = 10.0


@dataclass(frozen=True)
class Leftover:
    """One thing to remove."""

    kind: str
    """`container` or `folder`."""
    name: str
    age_s: float
    """Since it was made (containers) or last changed (folders)."""
    why: str
    remove: Callable[[], bool] = field(repr=False, compare=False)
    """Removes it and says whether it is gone; never raises."""


@dataclass(frozen=True)
class Leftovers:
    """Everything that was found, and what could not be looked at."""

    leftovers: list[Leftover]
    notes: list[str]


def collect(*, older_than_s: float, folders: tuple[Path, ...] = ()) -> Leftovers:
    """Lists what is left over, and removes nothing.

    Containers are those of ours whose owning process is gone, whatever their age: nothing can use them any more. Of
    folders nothing says whose they are, so they must not have changed for `older_than_s`.

    Args:
        older_than_s: age of folders.
        folders: whose entries are leftovers if they are old (the staging folder of prepared data).
    """
    found: list[Leftover] = []
    notes: list[str] = []
    try:
        found += _containers()
    except SandboxUnavailable as error:
        notes.append(f"containers were not looked at: {error}")
    except engine_errors() as error:
        notes.append(f"containers were not looked at: {words(error)}")
    entries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    entries += Path(tempfile.gettempdir()).glob("research_gym-*")
    found += _old(entries, older_than_s=older_than_s)
    return Leftovers(found, notes)


def _containers() -> Iterator[Leftover]:
    known = leftovers(timeout_s=ENGINE_WITHIN_S)
    if not known:
        return
    with engine(timeout_s=ENGINE_WITHIN_S) as client:
        made = {row["Id"]: float(row["Created"]) for row in client.containers(all=True)}
    for left in known:
        age_s = max(0.0, time.time() - made.get(left.id, time.time()))
        why = f"its owner, process {left.owner.partition('@')[0]}, is gone ({left.status})"
        yield Leftover("container", left.name, age_s, why, remove=lambda name=left.id: remove(name))  # type: ignore[misc]  # the default binds it


def _old(entries: list[Path], *, older_than_s: float) -> Iterator[Leftover]:
    for path in sorted(entries):
        if path.is_symlink() or not path.is_dir():
            continue
        age_s = time.time() - _changed(path)
        if age_s >= older_than_s:
            why = "nothing in it has changed since"
            yield Leftover("folder", str(path), age_s, why, remove=lambda path=path: _remove_tree(path))  # type: ignore[misc]  # the default binds it


def _changed(folder: Path) -> float:
    """When something in a folder last changed."""
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except OSError:  # it goes away while we look: somebody works in there
            return time.time()
    return newest


def _remove_tree(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
