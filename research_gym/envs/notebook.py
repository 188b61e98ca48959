"""Recorded episodes: read them back, and turn them into notebooks with reward and landmarks in each cell's metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

METADATA_KEY = "research_gym"
MAX_DEPTH = 50
"""Deeper values of an output are cut off: nbformat and viewers recurse over them."""

_STEP_KEYS = ("reward", "reward_terms", "landmarks", "cell", "fault", "terminated", "truncated", "observation")
_JSON_MIME = re.compile(r"application/(.*\+)?json")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode as it was recorded; `result` is `None` where the recording broke off."""

    task: str
    """Id of the task."""
    seed: int | None
    prompt: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    """One mapping per step: action, observation, outputs, reward, reward_terms, landmarks, cell, fault."""
    result: dict[str, Any] | None = None
    file: str | None = None
    """Path of the task file, where the task is not one that ships with the package."""
    sandbox: str = ""
    """Name of the sandbox that it ran in."""
    limits: dict[str, Any] = field(default_factory=dict)

    def head(self) -> dict[str, Any]:
        """Everything but the prompt and the steps."""
        return {
            "task": self.task,
            "seed": self.seed,
            "file": self.file,
            "sandbox": self.sandbox,
            "limits": self.limits,
            "result": self.result,
        }

    @classmethod
    def build(
        cls, head: Mapping[str, Any], *, prompt: str, steps: list[dict[str, Any]], result: dict[str, Any] | None
    ) -> RecordedEpisode:
        """Builds it from a recorded head, checking what a replay rests on.

        Raises:
            ValueError: a key is missing or of another type.
        """
        for name, kinds in (("task", str), ("seed", (int, type(None))), ("file", (str, type(None)))):
            if not isinstance(head.get(name), kinds):
                raise ValueError(f"recording: key {name!r}: found {head.get(name)!r}")
        for number, step in enumerate(steps, 1):
            if not isinstance(step.get("action"), str) or not isinstance(step.get("observation"), str):
                raise ValueError(f"recording: step {number}: expected an action and an observation, both text")
        limits = head.get("limits")
        return cls(
            head["task"],
            head["seed"],
            prompt,
            steps,
            result,
            file=head.get("file"),
            sandbox=str(head.get("sandbox") or ""),
            limits=dict(limits) if isinstance(limits, Mapping) else {},
        )


def read_episode(path: str | Path) -> RecordedEpisode:
    """Reads a recording, `.jsonl` or the `.ipynb` made from it. A last line cut off by a kill is dropped.

    A notebook keeps everything but lone surrogates in outputs, which are escaped there.

    Raises:
        ValueError: the file is no recording; the message names the line or the missing key.
        OSError: it cannot be read.
    """
    path = Path(path)
    try:
        return _read_notebook(path) if path.suffix == ".ipynb" else _read_lines(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a recording (.jsonl or .ipynb), found bytes that are not UTF-8") from error


def _read_lines(path: Path) -> RecordedEpisode:
    events: list[dict[str, Any]] = []
    lines = path.read_text("utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}: line {number}: expected one JSON object per line, found: {error}") from error
        if not isinstance(event, dict):
            raise ValueError(f"{path}: line {number}: expected a JSON object, found {type(event).__name__}")
        events.append(event)
    if not events or events[0].get("event") != "reset":
        raise ValueError(f"{path}: expected a recording that begins with a reset, found {len(events)} other lines")
    steps = [event for event in events if event.get("event") == "step"]
    ends = [event for event in events if event.get("event") == "end"]
    result = ends[-1].get("result") if ends else None
    try:
        return RecordedEpisode.build(events[0], prompt=str(events[0].get("prompt", "")), steps=steps, result=result)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_notebook(path: str | Path) -> Path:
    """Writes the notebook beside a `.jsonl` recording, atomically, and returns its path.

    Works on the recording of a killed process too.

    Raises:
        ValueError: the file is no recording.
        OSError: the folder cannot be written.
    """
    import nbformat

    path = Path(path)
    target = path.with_suffix(".ipynb")
    notebook = to_notebook(read_episode(path))
    nbformat.validate(notebook)
    temporary = target.with_suffix(".ipynb.part")
    temporary.write_text(nbformat.writes(notebook), encoding="utf-8")
    os.replace(temporary, target)
    return target


def to_notebook(episode: RecordedEpisode) -> Any:
    """Builds an nbformat 4 notebook: the prompt as markdown, then a code cell per step. The same episode gives the same
    bytes."""
    from nbformat import v4

    notebook = v4.new_notebook()
    notebook.metadata[METADATA_KEY] = plain(episode.head())
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells.append(v4.new_markdown_cell(valid(episode.prompt), id="prompt"))
    for number, step in enumerate(episode.steps, 1):
        cell = v4.new_code_cell(valid(step["action"]), id=f"step-{number}")
        cell.outputs = _outputs(step.get("outputs", []))
        cell.execution_count = _count(plain(step.get("cell", {})).get("execution_count"))
        kept = {key: plain(step[key]) for key in _STEP_KEYS if key in step}
        if cell.source != step["action"]:
            kept["action"] = step["action"].encode("unicode_escape").decode("ascii")
        cell.metadata[METADATA_KEY] = kept
        notebook.cells.append(cell)
    return notebook


def _outputs(items: list[dict[str, Any]]) -> list[Any]:
    from nbformat import v4

    outputs: list[Any] = []
    for item in map(plain, items):
        match item.get("kind"):
            case "stream":
                outputs.append(v4.new_output("stream", name=item["name"], text=item["text"]))
            case "display":
                outputs.append(v4.new_output("display_data", data=_bundle(item["data"]), metadata=item["metadata"]))
            case "result":
                count = _count(item["execution_count"])
                outputs.append(v4.new_output("execute_result", data=_bundle(item["data"]), execution_count=count))
            case "error":
                fields = {key: item[key] for key in ("ename", "evalue", "traceback")}
                outputs.append(v4.new_output("error", **fields))
            case "clear":
                outputs.clear()
    return outputs


def _bundle(data: Mapping[str, Any]) -> dict[str, Any]:
    """Values of JSON types stay values, all others must be text."""
    return {
        mime: value if isinstance(value, str) or _JSON_MIME.fullmatch(mime) else json.dumps(value)
        for mime, value in data.items()
    }


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _read_notebook(path: Path) -> RecordedEpisode:
    import nbformat

    try:
        notebook = nbformat.read(str(path), as_version=4)
        head = notebook.metadata[METADATA_KEY]
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise ValueError(
            f"{path}: expected a notebook with {METADATA_KEY!r} in its metadata, found: {error!r}"
        ) from error
    steps = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept = json.loads(json.dumps(cell.metadata.get(METADATA_KEY, {})))
            # The source counts: somebody may have edited it. Only what no notebook can hold stands in the metadata.
            action = kept.pop("action", "").encode("ascii", "replace").decode("unicode_escape", "replace")
            kept["action"] = action if action and valid(action) == cell.source else cell.source
            kept.setdefault("observation", "")
            kept["outputs"] = [_item(output) for output in cell.outputs]
            steps.append(kept)
    prompt = notebook.cells[0].source if notebook.cells and notebook.cells[0].cell_type == "markdown" else ""
    try:
        return RecordedEpisode.build(head, prompt=prompt, steps=steps, result=head.get("result"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _item(output: Any) -> dict[str, Any]:
    """The item that an output of a notebook was made from."""
    match output.output_type:
        case "stream":
            return {"kind": "stream", "name": output.name, "text": output.text, "late": False}
        case "error":
            return {
                "kind": "error",
                "ename": output.ename,
                "evalue": output.evalue,
                "traceback": list(output.traceback),
                "late": False,
            }
        case "execute_result":
            count = output.execution_count or 0
            return {"kind": "result", "data": dict(output.data), "execution_count": count, "late": False}
        case _:
            metadata = dict(output.get("metadata", {}))
            return {
                "kind": "display",
                "data": dict(output.data),
                "metadata": metadata,
                "update": False,
                "late": False,
            }


def valid(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates become their escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8") if _SURROGATE.search(text) else text


def plain(value: Any, *, depth: int = MAX_DEPTH) -> Any:
    """What strict JSON and UTF-8 can carry of a value: no NaN, no lone surrogate, nothing deeper than `depth`."""
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if depth <= 0:
        return "(nested too deep)"
    if isinstance(value, Mapping):
        return {valid(str(key)): plain(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth=depth - 1) for item in value]
    return valid(str(value))
