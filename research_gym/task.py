"""Tasks: what an agent is to do, what it finds, how it is graded, and which signs of progress count on the way.

A task is a folder with a YAML file. `load_task` checks all of it; a task that loads is complete but for its data, which
`research_gym.datastore` keeps.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research_gym.errors import TaskFormatError
from research_gym.landmark import ArtefactCheck, Landmark
from research_gym.limits import Limits
from research_gym.task_file import Node, read
from research_gym.task_grading import AnswerGrading, Column, Grading, Shape, SubmissionGrading, read_grading

__all__ = [
    "AnswerGrading",
    "Column",
    "DataSpec",
    "Grading",
    "SubmissionGrading",
    "Task",
    "load_task",
    "reference_cells",
]

MAX_FILES_BYTES = 16 << 20
"""Size of all files that a task lays in the work directory."""

_ID = re.compile(r"[A-Z][A-Za-z0-9]*/[A-Za-z0-9][A-Za-z0-9_.-]{0,100}-v[0-9]{1,4}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_WORKDIR = "/content"


@dataclass(frozen=True)
class DataSpec:
    """Prepared data that the agent finds, read-only; `prepare` or `folder`, exactly one, says where they come from."""

    mount: str
    """Where in the sandbox."""
    prepare: str = ""
    """Name of the preparer that makes them on the host."""
    folder: Path | None = None
    """Folder beside the task file that is copied as it is."""
    labels: Path | None = None
    """Label file beside the task file, outside of `folder`: kept on the host for the grader."""


@dataclass(frozen=True)
class Task:
    """One research task, checked."""

    id: str
    """`<Suite>/<name>-v<N>`, the environment's id."""
    title: str
    shape: Shape
    prompt: str
    grading: Grading
    path: Path
    """The task file."""
    category: str = ""
    difficulty: str = ""
    workdir: str = _DEFAULT_WORKDIR
    data: DataSpec | None = None
    files: Path | None = None
    """Folder whose files are laid in the work directory at reset."""
    repository: str = ""
    """Name of the folder in the work directory that they go to; empty: the work directory itself."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the default limits."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the kernel."""
    hide: tuple[str, ...] = ()
    """Folders of installed packages that the sandbox must not show: the task is made from them."""
    landmarks: tuple[Landmark, ...] = ()
    entrypoint: str | None = None
    """The script whose run the task is about, relative to the repository."""
    reference: Path | None = None
    """A solution, `.py` or `.ipynb`; never enters the sandbox."""
    baselines: tuple[Any, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict)
    """Where it comes from, and its licence."""

    def read_files(self) -> Iterator[tuple[str, bytes]]:
        """Yields (path relative to `files`, content) of every file to lay out, sorted by path.

        Raises:
            TaskFormatError: one is a link or no regular file, or all of them are over 16 MiB.
        """
        if self.files is None:
            return
        left = MAX_FILES_BYTES
        for path in sorted(self.files.rglob("*")):
            name = path.relative_to(self.files).as_posix()
            if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
                continue
            data = _read_regular(path, max_bytes=left, where=f"{self.path}: files: {name}")
            left -= len(data)
            yield name, data


def _read_regular(path: Path, *, max_bytes: int, where: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise TaskFormatError(f"{where}: expected a regular file, found: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise TaskFormatError(f"{where}: expected a regular file, found something else")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TaskFormatError(f"{where}: expected at most {MAX_FILES_BYTES} bytes in all files, found more")
    return data


def load_task(path: str | Path) -> Task:
    """Loads and checks a task file. Opens nothing outside of the file's folder, and runs nothing.

    Raises:
        TaskFormatError: anything is missing, unknown or of another type; the message names file, key and nearest key.
    """
    path = Path(path)
    if "\0" in str(path):
        raise TaskFormatError(f"task file: expected a path without NUL, found {str(path)!r}")
    root = read(path)
    part = root.mapping(
        required=("id", "title", "shape", "prompt", "grading"),
        optional=(
            "category",
            "difficulty",
            "workdir",
            "data",
            "files",
            "repository",
            "limits",
            "environment",
            "hide",
            "landmarks",
            "entrypoint",
            "reference",
            "baselines",
            "source",
        ),
    )
    task_id = part["id"].line()
    if not _ID.fullmatch(task_id):
        part["id"].fail("an id <Suite>/<name>-v<N> of letters, digits, '.', '_' and '-'")
    shape: Shape = "answer" if part["shape"].choice("submission", "answer") == "answer" else "submission"
    folder = path.parent
    return Task(
        id=task_id,
        title=part["title"].line(),
        shape=shape,
        prompt=part["prompt"].text(),
        grading=read_grading(part["grading"], shape),
        path=path,
        category=part["category"].line() if "category" in part else "",
        difficulty=part["difficulty"].choice("easy", "medium", "hard", "expert") if "difficulty" in part else "",
        workdir=part["workdir"].absolute_path() if "workdir" in part else _DEFAULT_WORKDIR,
        data=_data(part["data"], folder) if "data" in part else None,
        files=part["files"].file_beneath(folder, directory=True) if "files" in part else None,
        repository=_name(part["repository"]) if "repository" in part else "",
        limits=_limits(part["limits"]) if "limits" in part else {},
        environment=_environment(part["environment"]) if "environment" in part else {},
        hide=tuple(item.relative_path() for item in part["hide"].items()) if "hide" in part else (),
        landmarks=_landmarks(part["landmarks"]) if "landmarks" in part else (),
        entrypoint=part["entrypoint"].relative_path() if "entrypoint" in part else None,
        reference=_reference(part["reference"], folder) if "reference" in part else None,
        baselines=tuple(item.json() for item in part["baselines"].items()) if "baselines" in part else (),
        source={key: item.line() for key, item in part["source"].entries().items()} if "source" in part else {},
    )


def _name(node: Node) -> str:
    name = node.relative_path()
    if "/" in name:
        node.fail("the name of one folder")
    return name


def _data(node: Node, beside: Path) -> DataSpec:
    part = node.mapping(required=("mount",), optional=("prepare", "folder", "labels"))
    mount = part["mount"].absolute_path()
    if ("prepare" in part) == ("folder" in part):
        node.fail("exactly one of the keys 'prepare' and 'folder'", found=", ".join(part))
    if "prepare" in part:
        if "labels" in part:
            part["labels"].fail("no labels beside the task file where a preparer makes them")
        return DataSpec(mount, prepare=part["prepare"].line())
    folder = part["folder"].file_beneath(beside, directory=True)
    labels = part["labels"].file_beneath(beside) if "labels" in part else None
    if labels is not None and folder in labels.parents:
        part["labels"].fail("a file outside of the agent's data folder")
    return DataSpec(mount, folder=folder, labels=labels)


def _limits(node: Node) -> dict[str, Any]:
    changes = {key: item.value for key, item in node.entries().items()}
    try:
        Limits.of(changes)
    except ValueError as error:
        node.wrong(error)
    return changes


def _environment(node: Node) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, item in node.entries().items():
        if not _VARIABLE.fullmatch(key):
            item.fail("the name of an environment variable", found=repr(key))
        if not isinstance(item.value, str) or "\0" in item.value:
            item.fail("text (put numbers in quotes)")
        found[key] = item.value
    return found


def _reference(node: Node, folder: Path) -> Path:
    path = node.file_beneath(folder)
    if path.suffix not in (".py", ".ipy", ".ipynb"):
        node.fail("a .py, .ipy or .ipynb file")
    return path


def _landmarks(node: Node) -> tuple[Landmark, ...]:
    found: dict[str, Landmark] = {}
    for item in node.items():
        part = item.mapping(required=("id",), optional=("weight", "artefact", "output"))
        name = part["id"].line()
        if name in found:
            part["id"].fail("an id that no other landmark has")
        try:
            found[name] = Landmark(
                name,
                weight=part["weight"].number() if "weight" in part else 1.0,
                artefact=_artefact(part["artefact"]) if "artefact" in part else None,
                output=part["output"].text() if "output" in part else None,
            )
        except TaskFormatError as error:
            if str(error).startswith(node.file):
                raise
            item.wrong(error)
    return tuple(found.values())


def _artefact(node: Node) -> ArtefactCheck:
    part = node.mapping(required=("path",), optional=("format", "key", "min", "max", "rows", "columns", "contains"))
    form = part["format"].choice("json", "csv", "text") if "format" in part else None
    return ArtefactCheck(
        path=part["path"].relative_path(),
        format=form,  # type: ignore[arg-type]  # one of the three words, checked in the line above
        key=part["key"].line() if "key" in part else None,
        min=part["min"].number() if "min" in part else None,
        max=part["max"].number() if "max" in part else None,
        rows=part["rows"].integer() if "rows" in part else None,
        columns=tuple(item.line() for item in part["columns"].items()) if "columns" in part else None,
        contains=part["contains"].text() if "contains" in part else None,
    )


_CELL_MARK = re.compile(r"^# %%.*$", re.MULTILINE)


def reference_cells(task: Task) -> list[str]:
    """Returns the cells of a task's reference solution, in order.

    A `.py` or `.ipy` file is cut at lines that begin with `# %%`, a notebook gives its code cells; markdown and blank
    ones are left out.

    Raises:
        ValueError: the task has no reference.
        TaskFormatError: the reference cannot be read.
    """
    if task.reference is None:
        raise ValueError(f"{task.id}: expected a reference solution, found none: its task file has no key 'reference'")
    try:
        text = task.reference.read_text("utf-8")
        if task.reference.suffix == ".ipynb":
            sources = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            cells = [source if isinstance(source, str) else "".join(source) for source in sources]
        else:
            marks = ["", *_CELL_MARK.findall(text)]
            parts = zip(marks, _CELL_MARK.split(text), strict=True)
            cells = [cell for mark, cell in parts if "[markdown]" not in mark]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskFormatError(f"{task.reference}: expected a .py, .ipy or .ipynb file, found: {error}") from error
    return [cell.strip("\n") for cell in cells if cell.strip()]
