"""The first observation of an episode: the task, where things are, and how to act."""

from __future__ import annotations

from research_gym.limits import Limits
from research_gym.task import SubmissionGrading, Task

_ACTIONS = """\
Each of your actions is one notebook cell, run in a live IPython kernel: Python, `!shell`, `%magic`, `%%bash` and
top-level `await` work, and variables stay. A cell that runs longer than {cell_timeout_s:g} s {on_timeout}
- `%%edit PATH` on the first line, then `<<<BEFORE_EDIT>>>`, the exact lines to replace, `<<<AFTER_EDIT>>>` and the new
  lines, edits a file.
- `%interrupt` stops a running cell, `%wait` waits for it and shows what is new.
- {submit}"""

_ON_TIMEOUT = {
    "interrupt": "is interrupted.",
    "keep": "goes on in the background: `%wait` for it or `%interrupt` it.",
}


def first_observation(task: Task, limits: Limits) -> str:
    """Builds the prompt of a task: its own text, the places, the actions, the submission and the budgets.

    Depends on nothing but its arguments, so that the same seed gives the same first observation.
    """
    parts = [f"# {task.title}", task.prompt.strip(), "## Where", _places(task), "## How to act"]
    parts.append(
        _ACTIONS.format(
            cell_timeout_s=limits.cell_timeout_s,
            on_timeout=_ON_TIMEOUT[limits.on_timeout],
            submit=_submit(task),
        )
    )
    parts.append(
        f"You have {limits.max_steps} actions, {limits.compute_s:g} s of cell time and {limits.life_s:g} s in all; "
        f"{limits.cpus:g} CPU, {limits.memory_bytes / 2**30:g} GiB of memory, no network. "
        "One graded submission ends the episode."
    )
    return "\n\n".join(parts)


def _places(task: Task) -> str:
    lines = [f"- working directory: `{task.workdir}`"]
    if task.repository:
        lines.append(f"- repository: `{task.workdir}/{task.repository}`")
    if task.data is not None:
        lines.append(f"- data (read-only): `{task.data.mount}`")
    return "\n".join(lines)


def _submit(task: Task) -> str:
    if isinstance(task.grading, SubmissionGrading):
        grading = task.grading
        columns = ",".join(column.name for column in grading.columns)
        better = "lower" if grading.lower_is_better else "higher"
        return (
            f"`%submit` alone submits `{task.workdir}/{grading.file}` (CSV, header `{columns}`), graded by "
            f"{grading.metric} ({better} is better). A file that breaks the format is refused with the reason and may "
            "be mended."
        )
    return "`%submit {...}` submits your answer as JSON (or `%%submit` and the JSON below it)."
