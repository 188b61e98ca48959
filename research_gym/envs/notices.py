"""What the environment itself says to the agent, beside the output of its cells. Each notice is one bracketed line."""

from __future__ import annotations

from research_gym.cell import CellResult
from research_gym.grading.score import Score
from research_gym.limits import Limits

ROOM = 1000
"""Characters of an observation kept free for notices."""

NOTHING_RUNS = "[no cell is running: nothing to wait for or to interrupt]"


def join(text: str, notes: list[str]) -> str:
    """Puts notices behind the text, each on its own line."""
    parts = [text.rstrip("\n")] if text.strip() else []
    return "\n".join(parts + notes)


def after_cell(result: CellResult, limits: Limits) -> list[str]:
    """The notices a cell's end calls for."""
    notes = []
    if result.status == "timeout" and result.running:
        notes.append(
            f"[still running after {limits.cell_timeout_s:g} s: `%wait` for more, `%interrupt` to stop it; "
            "any other action interrupts it first]"
        )
    elif result.status == "timeout":
        end = "the kernel did not answer and was killed" if result.killed else "interrupted; variables are kept"
        notes.append(f"[timed out after {result.duration_s:.0f} s: {end}]")
    elif result.status == "interrupted":
        end = "the kernel did not answer and was killed" if result.killed else "variables are kept"
        notes.append(f"[interrupted: {end}]")
    elif result.status == "died":
        why = "it ran out of memory" if result.oom_kills else "the process ended"
        notes.append(f"[the kernel died: {why}]")
    if result.background_processes:
        notes.append(f"[{result.background_processes} background process(es) still running]")
    return notes


def restarted(count: int, limits: Limits) -> str:
    """Says that a fresh kernel runs over the same files, or that there is none left."""
    if count > limits.kernel_restarts:
        return f"[no kernel is left: {limits.kernel_restarts} restarts are used up]"
    left = f"restart {count} of {limits.kernel_restarts}"
    return f"[a fresh kernel was started over the same files; variables are lost ({left})]"


def refused(code: str, message: str) -> str:
    """A submission that could not be graded, and may be mended."""
    return f"[submission refused ({code}): {message}. It was not graded: mend it and submit again.]"


def graded(score: Score) -> str:
    """A graded submission. Says that it was taken, not how good it was: the score belongs to the trainer."""
    return f"[submission accepted and graded by {score.metric}; the episode is over]"
