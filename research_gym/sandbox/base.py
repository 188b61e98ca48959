"""What a sandbox is to the rest of the package: a way to open sessions, what it is asked for, and the stream below."""

from __future__ import annotations

import abc
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from research_gym.limits import MIB, Limits
from research_gym.sandbox.waiting import Steps

if TYPE_CHECKING:
    from research_gym.sandbox.session import Session


@dataclass(frozen=True)
class Bind:
    """A host folder or file shown in the sandbox: read-only, without set-uid programs or devices in force.

    The agent is another user than its owner, and reads what everybody may read.
    """

    source: Path
    """Absolute path on the machine of the sandbox."""
    target: str
    """Absolute path inside."""

    def __post_init__(self) -> None:
        _inside("Bind.target", self.target)


@dataclass(frozen=True)
class SandboxSpec:
    """What one session needs. The same spec means the same to every sandbox.

    Raises:
        ValueError: a path inside is not absolute and normalised.
    """

    workdir: str = "/content"
    """Writable work directory of the agent; `limits.disk_bytes` is its size."""
    limits: Limits = field(default_factory=Limits)
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of agent processes, added to what `sandbox.agent_env` gives them."""
    image: str | None = None
    """Container image, where the sandbox has images; `None` is its default."""
    labels: Mapping[str, str] = field(default_factory=dict)
    hide: tuple[str, ...] = ()
    """Data folders inside installed packages that the agent must not see (`sklearn/datasets/data`)."""

    def __post_init__(self) -> None:
        _inside("SandboxSpec.workdir", self.workdir)
        for name in self.hide:
            if (
                not name
                or name.startswith("/")
                or name != posixpath.normpath(name)
                or name.split("/")[0] in (".", "..")
            ):
                raise ValueError(f"SandboxSpec.hide: expected a path below site-packages, found {name!r}")

    def work_areas(self, *, home: str) -> dict[str, int]:
        """Where the agent may write, with sizes in bytes: work directory, and a quarter of it for `/tmp` and home."""
        areas = {self.workdir: self.limits.disk_bytes}
        for path in ("/tmp", home):
            if not any(path == area or path.startswith(area + "/") for area in areas):
                areas[path] = max(MIB, self.limits.disk_bytes // 4)
        return areas


@dataclass(frozen=True)
class Finding:
    """One line of `research-gym doctor`: what was tried, and how it came out."""

    topic: str
    ok: bool
    detail: str
    mend: str = ""
    """What to do about it; empty where there is nothing to do."""


class Stream(Protocol):
    """The byte stream to pid 1 of one sandbox. Its end is the sandbox's end, so whoever holds it holds the sandbox."""

    def fileno(self) -> int:
        """The descriptor to wait on; -1 after `close`."""

    def receive(self) -> bytes | None:
        """Bytes that came; `None` if there are none yet, empty at the end of the stream. Call it until it says `None`.

        Raises:
            OSError: the stream broke; the same to the caller as its end.
        """

    def send(self, data: bytes) -> int:
        """Writes what there is room for and says how many bytes that was, 0 if there is no room now.

        Raises:
            OSError: the stream is gone.
        """

    def close(self) -> None:
        """Ends the stream, then removes what is left of the sandbox. Idempotent, at most 5 s, does not raise.

        In a forked child of the process that opened it: drops the descriptor and leaves the parent's sandbox alone.
        """

    def diagnostics(self) -> str:
        """What the sandbox said beside the protocol (its standard error, the engine's word), for error messages."""


class Sandbox(abc.ABC):
    """A way to get sandboxes. Cheap to construct; nothing starts before `open`."""

    name: ClassVar[str]
    """The word by which `sandbox=` chooses it."""

    @abc.abstractmethod
    def open(self, spec: SandboxSpec) -> Steps[Session]:
        """Starts a sandbox and its supervisor; no kernel runs in it yet. The caller closes the session.

        Raises:
            SandboxStartError: it did not come up within `spec.limits.start_timeout_s`; nothing is left behind.
            SandboxUnavailable: there is no such sandbox on this machine.
        """

    @abc.abstractmethod
    def findings(self) -> list[Finding]:
        """What works here and what does not, found by trying."""


def _inside(what: str, path: str) -> None:
    if not path.startswith("/") or path == "/" or path != posixpath.normpath(path) or "\0" in path:
        raise ValueError(f"{what}: expected an absolute, normalised path below /, found {path!r}")
