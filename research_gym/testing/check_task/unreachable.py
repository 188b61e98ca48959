"""Looks for labels where the agent could: in the data it is given, and from inside a fresh sandbox."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from research_gym.datastore import agent_dir
from research_gym.envs.baselines import scored_column
from research_gym.envs.research_env import ResearchEnv
from research_gym.envs.tables import tables
from research_gym.task import SubmissionGrading, Task
from research_gym.testing.check_task.grades import gold_answer, labels

ROWS = 20
"""Label rows that are searched for in one piece, more where labels say little: a run must not come about by chance."""
BITS = 64.0
"""Information in such a run, at least."""
SEARCH_S = 150.0
"""Time for one search. Places that a task can put something in come first."""
_JOINTS = ("\n", "\r\n", ",", ", ", " ", '", "', "', '")
_PARTS_OF_AN_ANSWER = 8
_STARTS = "SEARCHED "

SEARCH = """
import gzip as _gzip, json as _json, os as _os, time as _time
def _search(needles, first, within_s):
    until, longest = _time.monotonic() + within_s, max(map(len, needles))
    found, seen, total = [], set(), 0
    def look(name, path, opened):
        nonlocal total
        tail = b""
        try:
            with opened(path, "rb") as file:
                while piece := file.read(8 << 20):
                    total += len(piece)
                    piece = tail + piece
                    for needle in needles:
                        if needle in piece:
                            found.append([name, needle.decode("utf-8", "replace")[:60]])
                            return
                    tail = piece[-longest:]
        except (OSError, EOFError, ValueError, _gzip.zlib.error):
            pass
    for name in ("environ", "cmdline"):
        for process in filter(str.isdigit, _os.listdir("/proc")):
            look(f"/proc/<pid>/{name}", f"/proc/{process}/{name}", open)
    for top in (*first, "/"):
        for folder, folders, names in _os.walk(top):
            if folder == "/":
                folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
            for name in names:
                path = _os.path.join(folder, name)
                try:
                    info = _os.lstat(path)
                except OSError:
                    continue
                if info.st_mode & 0o170000 != 0o100000 or (info.st_dev, info.st_ino) in seen:
                    continue
                if _time.monotonic() > until:
                    return found, len(seen), total, False
                seen.add((info.st_dev, info.st_ino))
                look(path, path, open)
                if name.endswith(".gz"):
                    look(path, path, _gzip.open)
    return found, len(seen), total, True
"""
"""Source of the search, run as a cell: it sees what the agent sees."""


def needles(task: Task) -> list[bytes]:
    """Byte runs that only the labels (or the gold answer) have."""
    if isinstance(task.grading, SubmissionGrading):
        values = labels(task)
        rows = rows_needed(values)
        places = sorted({0, max(0, (len(values) - rows) // 2)})
        return [joint.join(values[at : at + rows]).encode("utf-8") for at in places for joint in _JOINTS]
    gold = gold_answer(task)
    texts = {json.dumps(gold), json.dumps(gold, separators=(",", ":")), repr(gold), json.dumps(gold, indent=2)}
    texts = {text for text in texts if len(text) >= 2 * _PARTS_OF_AN_ANSWER}
    for leaf in _leaves(gold):
        text = leaf if isinstance(leaf, str) else repr(leaf)
        if len(text.strip("-").replace(".", "").lstrip("0")) >= (16 if isinstance(leaf, str) else _PARTS_OF_AN_ANSWER):
            texts.add(text)
    return sorted(text.encode("utf-8") for text in texts)


def rows_needed(values: Sequence[str]) -> int:
    """How many consecutive labels carry `BITS` of information, at least `ROWS` and at most all of them."""
    counts = Counter(values)
    entropy = -sum(count / len(values) * math.log2(count / len(values)) for count in counts.values())
    return min(len(values), max(ROWS, math.ceil(BITS / entropy) if entropy > 0 else len(values)))


def leaks_in_data(task: Task) -> Iterator[str]:
    """What is wrong with the files that the agent is given, looked at on the host."""
    wanted = needles(task)
    given = [(f"files/{name}", data) for name, data in task.read_files()]
    folder = agent_dir(task.id)
    if task.data is not None:
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        given += [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths]
    for name, data in given:
        if any(needle in data for needle in wanted):
            yield f"unreachable: the agent's file {name} holds labels in one piece"
    if task.data is None or not isinstance(task.grading, SubmissionGrading):
        return
    values = labels(task)
    own = {scored_column(task.grading).labels, scored_column(task.grading).name}
    run = _chained(values)
    for name, table in tables(folder).items():
        for column, cells in table.items():
            if len(cells) >= len(values) and run in _chained(cells):
                yield f"unreachable: the agent's file {name} holds the labels in its column {column!r}"
            elif column in own and "test" in name.lower() and len(cells) == len(values) and any(cells):
                yield f"unreachable: the agent's file {name} has the label column {column!r}"


def search_inside(env: ResearchEnv) -> tuple[list[str], str]:
    """Searches from inside a running episode: all files it can read, environments and command lines of processes.

    Returns:
        What is wrong, and what was looked at.
    """
    task = env.task
    first = [task.workdir, "/tmp", "/dev/shm", "/var", "/home", *([task.data.mount] if task.data else [])]
    wanted = [needle.hex() for needle in needles(task)]
    if not wanted:
        return [], "nothing to search for"
    call = f"print({_STARTS!r} + _json.dumps(_search([bytes.fromhex(n) for n in {wanted!r}], {first!r}, {SEARCH_S})))"
    observation, *_ = env.step(f"{SEARCH}\n{call}")
    line = next((line for line in observation.splitlines() if line.startswith(_STARTS)), "")
    try:
        found, count, total, complete = json.loads(line.removeprefix(_STARTS))
    except ValueError:
        return [f"unreachable: the search inside failed: {observation.strip()[-300:]}"], ""
    failures = [f"unreachable: inside the sandbox {path} holds {text!r}" for path, text in found[:5]]
    if not total:
        failures.append("unreachable: the search inside could read nothing")
    return failures, f"{count} files, {total >> 20} MiB" + ("" if complete else f", stopped after {SEARCH_S:g} s")


def _chained(values: Sequence[str]) -> str:
    return "\x1f" + "\x1f".join(map(_canonical, values)) + "\x1f"


def _canonical(value: str) -> str:
    try:
        return repr(float(value))
    except ValueError:
        return value.strip()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        yield value
