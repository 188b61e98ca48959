"""Writes one episode as JSON lines while it runs, and as a notebook when it ends."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from research_gym.cell import Output
from research_gym.envs.notebook import write_notebook
from research_gym.limits import Limits
from research_gym.task import Task

FORMAT = 1
_STEP_INFO = ("reward_terms", "landmarks", "landmark_evidence", "cell", "fault")


class Recorder:
    """Writes `FOLDER/<episode>.jsonl`, each line complete and flushed before the step returns, then the `.ipynb`.

    A process that is killed loses at most the step it was in; `write_notebook` makes the notebook from what is there.
    Any text an agent can write or print is recorded: the lines are ASCII JSON.
    """

    def __init__(self, folder: str | Path, *, notebook: bool = True) -> None:
        """Makes the folder if it is missing.

        Raises:
            OSError: it cannot be made.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path: Path | None = None
        """The JSON lines file of the running (or last) episode."""
        self._notebook = notebook
        self._file: IO[str] | None = None

    def begin(
        self, task: Task, *, seed: int | None, prompt: str, limits: Limits, sandbox: str, shipped: bool = True
    ) -> None:
        """Starts the file of an episode; one still being recorded is closed as it stands.

        Args:
            task: its task.
            seed: what `reset` was given.
            prompt: the first observation.
            limits: in force.
            sandbox: name of the sandbox.
            shipped: whether the id of the task is enough to find it again; else its path is noted.

        Raises:
            OSError: the folder cannot be written.
        """
        self.end()
        name = f"{task.id.replace('/', '--')}-{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self.path = self.folder / f"{name}.jsonl"
        self._file = self.path.open("w", encoding="ascii")
        self._line(
            {
                "event": "reset",
                "format": FORMAT,
                "task": task.id,
                "file": None if shipped else str(task.path.absolute()),
                "seed": seed,
                "sandbox": sandbox,
                "limits": asdict(limits),
                "prompt": prompt,
            }
        )

    def step(
        self,
        action: str,
        *,
        observation: str,
        outputs: tuple[Output, ...],
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Writes a step, and the end of the episode if it is the last."""
        event = {
            "event": "step",
            "action": action,
            "observation": observation,
            "outputs": [output.to_item() for output in outputs],
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
        }
        self._line(event | {key: info[key] for key in _STEP_INFO})
        if terminated or truncated:
            result = info.get("result")
            self._line({"event": "end", "result": json.loads(result.to_json()) if result is not None else None})
            self.end()

    def fault(self, action: str, error: BaseException) -> None:
        """Writes that a step ended in an error of ours, and ends the recording."""
        self._line({"event": "fault", "action": action, "error": f"{type(error).__name__}: {error}"})
        self.end()

    def end(self) -> None:
        """Closes the file and writes the notebook; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            if self._notebook and self.path is not None:
                write_notebook(self.path)

    def _line(self, event: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(_ascii(event) + "\n")
            self._file.flush()


def _ascii(event: dict[str, Any]) -> str:
    """Strict JSON in ASCII. Lone surrogates stay as they are, `\\ud800` is what they are in JSON."""
    try:
        return json.dumps(event, ensure_ascii=True, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(_strict(event, depth=100), ensure_ascii=True, allow_nan=False)


def _strict(value: Any, *, depth: int) -> Any:
    """The value without NaN and infinity, which become null, and without what is nested too deep for a reader."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, (dict, list, tuple)) and depth <= 0:
        return "(nested too deep)"
    if isinstance(value, dict):
        return {str(key): _strict(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item, depth=depth - 1) for item in value]
    return value
