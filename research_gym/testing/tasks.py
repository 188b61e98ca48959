"""The smallest tasks there are, written to a folder: for trying environments and sandboxes without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GOLD = {"value": 42.0, "name": "done"}
"""The answer of `write_answer_task`."""


def write_answer_task(
    folder: Path,
    *,
    name: str = "smallest",
    limits: Mapping[str, Any] | None = None,
    landmarks: Sequence[Mapping[str, Any]] = (),
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Writes a task of the answer shape without data and returns the path of its file, for `ResearchEnv(task=...)`.

    `%submit {"value": 42.0, "name": "done"}` scores 1.0.

    Example:
        >>> import tempfile
        >>> from research_gym.task import load_task
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_task(write_answer_task(Path(folder))).id
        'Test/smallest-v0'
    """
    import yaml

    content: dict[str, Any] = {
        "id": f"Test/{name}-v0",
        "title": "The smallest task",
        "shape": "answer",
        "category": "Code",
        "difficulty": "easy",
        "prompt": 'Submit {"value": 42.0, "name": "done"}.\n',
        "grading": {"kind": "answer", "gold": dict(GOLD), "mode": "strict"},
        "source": {"package": "research-gym", "licence": "Apache-2.0", "url": "https://example.org"},
    }
    for key, value in (("limits", limits), ("environment", environment)):
        if value:
            content[key] = dict(value)
    if landmarks:
        content["landmarks"] = [dict(landmark) for landmark in landmarks]
    path = Path(folder) / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
