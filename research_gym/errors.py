"""Every error that research_gym raises, named for the boundary that failed.

The agent's failure is data (a cell status, a refused submission); ours is one of these. Neither ever becomes reward 0.
Each message says what was expected, what was found, where, and what to do.
"""

from __future__ import annotations

__all__ = [
    "DataMissing",
    "FileRefused",
    "ForkRefused",
    "ForkedProcessError",
    "GraderError",
    "ResearchGymError",
    "SandboxError",
    "SandboxLost",
    "SandboxStartError",
    "SandboxUnavailable",
    "TaskFormatError",
]


class ResearchGymError(Exception):
    """Base of all errors of this package: `except ResearchGymError` catches what is ours and nothing else."""


class TaskFormatError(ResearchGymError, ValueError):
    """A task file breaks the schema; the message names the file, the key and the nearest valid key."""


class DataMissing(ResearchGymError, FileNotFoundError):
    """The data of a task are not on this machine; the message names both ways to get them."""


class SandboxError(ResearchGymError):
    """The sandbox failed, not the agent. `kind` is a stable word for logs and for `info["fault"]`."""

    kind = "sandbox"


class SandboxStartError(SandboxError):
    """A sandbox or its kernel did not start; the message carries what the engine or the kernel said."""

    kind = "sandbox_start"


class SandboxLost(SandboxError):
    """The stream to a running sandbox ended or broke its protocol: the container is gone, paused or was killed."""

    kind = "sandbox_lost"


class SandboxUnavailable(SandboxError):
    """No sandbox can be had at all: no engine answers, or three starts in a row failed."""

    kind = "sandbox_unavailable"


class ForkedProcessError(SandboxError):
    """A sandbox opened before `os.fork()` was used in the child: its stream belongs to the parent process."""

    kind = "forked_process"


class GraderError(ResearchGymError):
    """The grader broke (not the submission): labels missing, a crash, a verdict that does not parse."""

    kind = "grader"


class FileRefused(ResearchGymError):
    """A file in the sandbox could not be read or written under the rules; `code` is stable (`missing`, `link`, ...)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ForkRefused(ResearchGymError):
    """The live state cannot be forked; `reason` names the thing that stands in the way."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
