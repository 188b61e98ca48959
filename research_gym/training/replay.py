"""Runs a recorded episode again and says where it diverges."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from research_gym.envs.notebook import read_episode
from research_gym.envs.research_env import ResearchEnv
from research_gym.limits import Limits
from research_gym.sandbox.base import Sandbox

_NORMAL = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x…"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?"), "<time>"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w* (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d:A-Z]+"),
    "<time>"), (re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} +(\d{2}:\d{2}|\d{4})\b"),
    "<time>"), (re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(?:ns|us|µs|μs|ms|s|sec|secs|seconds|min|it/s|s/it|kB/s|MB/s)\b"), "<duration>"),
    (re.compile(r"\bpid[= ]?\d+", re.IGNORECASE), "pid <n>"), (re.compile(r"/tmp/[\w./-]+"), "<tmp>"),
    (re.compile(r"ipykernel_\d+"), "ipykernel_<n>"),
)  # fmt: skip


@dataclass(frozen=True)
class Divergence:
    """The first step whose normalised observation is not the recorded one."""

    step: int
    """Counted from 1."""
    action: str
    recorded: str
    found: str

    def first_difference(self) -> tuple[str, str]:
        """The first lines that differ, recorded and found; empty where one of them has no more lines."""
        recorded, found = self.recorded.splitlines(), self.found.splitlines()
        longest = max(len(recorded), len(found))
        recorded += [""] * (longest - len(recorded))
        found += [""] * (longest - len(found))
        return next(((a, b) for a, b in zip(recorded, found, strict=True) if a != b), ("", ""))


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found."""

    task: str
    sandbox: str
    """Name of the sandbox that it ran in."""
    steps: int
    """Steps that were executed again."""
    divergence: Divergence | None


def normalise(text: str) -> str:
    """Takes out what differs between two honest runs: addresses, clock times, durations, process ids, temporary paths.

    Example:
        >>> normalise("took 0.31 s at <object at 0x7f00a1b2c3d4>  ")
        'took <duration> at <object at 0x…>'
    """
    for pattern, mark in _NORMAL:
        text = pattern.sub(mark, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def replay(
    path: str | Path, *, sandbox: str | Sandbox | None = None, on_step: Callable[[int, str], None] | None = None
) -> ReplayReport:
    """Executes the actions of a recording in a fresh episode, under its limits, and compares each observation.

    Stops at the first difference: what follows it would differ for that reason alone. Compares observations, which is
    what the agent saw, not rewards. Versions of packages differ between sandboxes, and some outputs with them.

    Args:
        path: a recording, `.jsonl` or `.ipynb`.
        sandbox: where to run it; `None`: the sandbox that the recording names.
        on_step: called with the number (from 1) and the action before each step.

    Raises:
        ValueError: the file is no recording, or its task or limits are not known here.
        OSError: the file cannot be read.
        DataMissing: the data of its task are not here.
        SandboxError: the sandbox failed.
    """
    episode = read_episode(path)
    known = episode.sandbox if episode.sandbox in ("docker", "local") else "auto"
    chosen = sandbox if sandbox is not None else known
    env = ResearchEnv(episode.file or episode.task, sandbox=chosen, limits=Limits.of(episode.limits))
    name = chosen if isinstance(chosen, str) else chosen.name
    try:
        env.reset(seed=episode.seed)
        done = 0
        for number, step in enumerate(episode.steps, 1):
            if on_step is not None:
                on_step(number, step["action"])
            observation, _, terminated, truncated, _ = env.step(step["action"])
            done = number
            recorded, found = normalise(step["observation"]), normalise(observation)
            if recorded != found:
                return ReplayReport(episode.task, name, number, Divergence(number, step["action"], recorded, found))
            if terminated or truncated:
                break
        if done < len(episode.steps):
            left = episode.steps[done]
            ended = Divergence(done + 1, left["action"], normalise(left["observation"]), "[the episode is over]")
            return ReplayReport(episode.task, name, done, ended)
        return ReplayReport(episode.task, name, done, None)
    finally:
        env.close()
