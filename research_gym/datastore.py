"""Where prepared data of tasks lie on the host: what the agent may read, and, apart from it, the labels.

```
<home>/data/<Suite>/<name>/        bound read-only into the sandbox
<home>/labels/<Suite>/<name>/      labels.csv; mode 0700, read by the grader's process only
<home>/manifests/<Suite>/<name>.json   checksums and facts for the grader; mode 0700; written last, so that it says
                                       that the rest is complete
```
`<home>` is `RESEARCH_GYM_HOME`, else the user's data folder (`~/.local/share/research_gym` on Linux).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research_gym.errors import DataMissing

LABEL_FILE = "labels.csv"
FORMAT = 1

_ID = re.compile(r"[A-Za-z][A-Za-z0-9]*/[A-Za-z0-9][A-Za-z0-9_.-]*")


def data_home() -> Path:
    """The folder of all prepared data; it need not exist."""
    home = os.environ.get("RESEARCH_GYM_HOME")
    if home:
        return Path(home).expanduser().absolute()
    from platformdirs import user_data_dir

    return Path(user_data_dir("research_gym", appauthor=False))


def agent_dir(task_id: str) -> Path:
    """The folder an agent may read; it need not exist. Holds no label.

    Raises:
        ValueError: the id is not of the form `<Suite>/<name>`.
    """
    return data_home() / "data" / _relative(task_id)


def label_dir(task_id: str) -> Path:
    """The folder of a task's labels; it need not exist. Never enters a sandbox.

    Raises:
        ValueError: the id is not of the form `<Suite>/<name>`.
    """
    return data_home() / "labels" / _relative(task_id)


def label_file(task_id: str) -> Path:
    """The label file of a task: one header, one row per test example."""
    return label_dir(task_id) / LABEL_FILE


def manifest_file(task_id: str) -> Path:
    """The manifest of a prepared task."""
    relative = _relative(task_id)
    return data_home() / "manifests" / relative.parent / f"{relative.name}.json"


def _relative(task_id: str) -> Path:
    if not isinstance(task_id, str) or not _ID.fullmatch(task_id) or ".." in task_id:
        raise ValueError(f"task id: expected <Suite>/<name>-v<N>, found {task_id!r}")
    return Path(task_id)


def is_prepared(task_id: str) -> bool:
    """Whether the data of a task are complete on this machine. Looks at the manifest, not at every checksum."""
    try:
        manifest = read_manifest(task_id)
    except DataMissing:
        return False
    return all((data_home() / name).is_dir() for name in manifest["folders"])


def read_manifest(task_id: str) -> dict[str, Any]:
    """Reads the manifest of a prepared task: `files` (path -> sha256 and size), `facts`.

    Raises:
        DataMissing: there is none, or it is not one; the message names both ways to get the data.
    """
    path = manifest_file(task_id)
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise missing(task_id, found=f"no manifest at {path}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise missing(task_id, found=f"a manifest of another version at {path}")
    return manifest


def read_facts(task_id: str) -> dict[str, Any]:
    """What the preparer found out and the grader needs; empty for a task without data of its own."""
    try:
        facts = read_manifest(task_id).get("facts", {})
    except DataMissing:
        return {}
    return dict(facts) if isinstance(facts, dict) else {}


def missing(task_id: str, *, found: str) -> DataMissing:
    """The error of a task whose data are not here, with both ways to get them."""
    return DataMissing(
        f"{task_id}: expected its prepared data under {data_home()}, found {found}. Either run "
        f"`research-gym prepare {task_id}` (once; it may download), or set RESEARCH_GYM_HOME to a folder where it is "
        "prepared already."
    )


@dataclass(frozen=True)
class Staged:
    """Two empty folders to prepare a task in; they become its own in one piece, or not at all."""

    task_id: str
    data: Path
    """For the agent's files."""
    labels: Path
    """For `labels.csv`."""


@contextlib.contextmanager
def staging(task_id: str) -> Iterator[Staged]:
    """Gives a place to prepare a task in; what was not committed is removed at the end, whatever happens.

    Raises:
        OSError: the data home cannot be written.
    """
    _relative(task_id)
    parent = data_home() / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=parent))
    try:
        staged = Staged(task_id, root / "data", root / "labels")
        staged.data.mkdir()
        staged.labels.mkdir()
        yield staged
    finally:
        shutil.rmtree(root, ignore_errors=True)


def commit_prepared(staged: Staged, *, facts: Mapping[str, Any] | None = None) -> None:
    """Makes staged folders the data of their task, replacing older ones. Safe against other processes that do the same.

    The agent's files become readable for all (a sandbox reads them as another user), labels for the owner only. The
    manifest is removed first and written last: a process killed in between leaves a task that is not prepared.

    Raises:
        OSError: the data home cannot be written.
        ValueError: something staged is neither a regular file nor a folder.
    """
    manifest = write_manifest(staged, facts=facts or {})
    final = manifest_file(staged.task_id)
    with _lock():
        final.parent.mkdir(parents=True, exist_ok=True)
        final.unlink(missing_ok=True)
        for source, target in ((staged.labels, label_dir(staged.task_id)), (staged.data, agent_dir(staged.task_id))):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.rename(Path(tempfile.mkdtemp(dir=staged.data.parent)) / "old")
            source.rename(target)
        label_dir(staged.task_id).parent.chmod(0o700)
        final.parent.chmod(0o700)  # facts may hold a gold answer
        manifest.rename(final)


def write_manifest(staged: Staged, *, facts: Mapping[str, Any]) -> Path:
    """Writes the manifest beside the staged folders and sets the modes of everything in them.

    Raises:
        ValueError: something staged is neither a regular file nor a folder.
    """
    relative = _relative(staged.task_id).as_posix()
    files: dict[str, Any] = {}
    for kind, root in (("data", staged.data), ("labels", staged.labels)):
        folder_mode, file_mode = (0o755, 0o644) if kind == "data" else (0o700, 0o600)
        root.chmod(folder_mode)
        for path in sorted(root.rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ValueError(f"{staged.task_id}: expected regular files and folders, found {path.name!r}")
            path.chmod(folder_mode if path.is_dir() else file_mode)
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                name = f"{kind}/{relative}/{path.relative_to(root).as_posix()}"
                files[name] = {"sha256": digest, "size_bytes": path.stat().st_size}
    manifest = {
        "format": FORMAT,
        "task": staged.task_id,
        "folders": [f"data/{relative}", f"labels/{relative}"],
        "facts": dict(facts),
        "files": files,
    }
    path = staged.data.parent / "manifest.json"
    path.write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One commit at a time on this machine; the system takes the lock back from a process that dies."""
    with (data_home() / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
