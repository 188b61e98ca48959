"""What the checks are made of: an open box to try things in, and the record of what came of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from research_gym.cell import CellResult, Display, ErrorOutput, Output, Result, Stream
from research_gym.errors import FileRefused
from research_gym.limits import MIB, Limits, OnTimeout
from research_gym.sandbox.base import Sandbox, SandboxSpec
from research_gym.sandbox.session import RunResult, Session
from research_gym.sandbox.waiting import Steps, drive

T = TypeVar("T")

WORKDIR = "/content"
LIMITS = Limits(
    grace_s=1.0,
    cpus=1.0,
    memory_bytes=768 * MIB,
    disk_bytes=64 * MIB,
    shm_bytes=64 * MIB,
    processes=128,
    open_files=512,
    output_bytes=256 * 1024,
    output_kill_bytes=16 * MIB,
    output_messages=500,
)
"""Small limits, so that the checks reach them in a second."""


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    ok: bool | None
    """`None`: the sandbox states that it does not isolate, and `detail` says what therefore does not apply."""
    detail: str
    """What was expected and found where it failed; empty where it passed."""
    duration_s: float


class CheckFailed(AssertionError):
    """The sandbox breaks the contract; the message says what was expected and what was found."""


def expect(condition: object, message: str) -> None:
    """Fails the running check unless the condition holds; unlike `assert` also under `python -O`."""
    if not condition:
        raise CheckFailed(message)


@dataclass(frozen=True)
class Seen:
    """What one cell gave."""

    result: CellResult
    wall_s: float
    """Seconds on the caller's clock."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Everything the cell put out, in order."""
        return self.result.outputs

    @property
    def text(self) -> str:
        """All stream text, joined and stripped."""
        return "".join(item.text for item in self.outputs if isinstance(item, Stream)).strip()

    @property
    def value(self) -> str:
        """The `text/plain` form of the cell's last expression."""
        return "".join(str(item.data.get("text/plain", "")) for item in self.outputs if isinstance(item, Result))

    @property
    def displays(self) -> list[Display]:
        """Displays, in order."""
        return [item for item in self.outputs if isinstance(item, Display)]

    @property
    def error(self) -> str:
        """Name of the exception that ended the cell, or empty."""
        names = [item.ename for item in self.outputs if isinstance(item, ErrorOutput)]
        return names[-1] if names else ""

    @property
    def all_text(self) -> str:
        """Stream text, values and tracebacks: whatever an agent could read."""
        errors = [
            line for item in self.outputs if isinstance(item, ErrorOutput) for line in (item.evalue, *item.traceback)
        ]
        return "\n".join([self.text, self.value, *errors])

    def __str__(self) -> str:
        return f"status {self.result.status} after {self.wall_s:.1f} s, error {self.error!r}, text {self.text[-300:]!r}"


@dataclass
class Box:
    """One open session with a running kernel, driven synchronously. Starts a fresh kernel where the last one died."""

    sandbox: Sandbox
    limits: Limits = LIMITS
    _session: Session | None = field(default=None, repr=False)
    _dead: bool = False

    @property
    def session(self) -> Session:
        """The session."""
        expect(self._session is not None, "the box is not open")
        assert self._session is not None
        return self._session

    @property
    def isolated(self) -> bool:
        """Whether the sandbox says that it isolates. Only one that says `False` is believed to be excused."""
        return bool(getattr(self.session, "isolated", True))

    def open(self) -> Box:
        """Starts sandbox and kernel."""
        self._session = drive(self.sandbox.open(SandboxSpec(workdir=WORKDIR, limits=self.limits)))
        try:
            drive(self._session.start_kernel())
        except BaseException:
            self._session.close()
            raise
        return self

    def close(self) -> None:
        """Closes the session; safe to call twice."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Box:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def cell(self, code: str, *, timeout_s: float = 30.0, on_timeout: OnTimeout = "interrupt") -> Seen:
        """Runs one cell to its end, whatever its status."""
        if self._dead:
            drive(self.session.start_kernel())
            self._dead = False
        return self._seen(self.session.execute(code, timeout_s=timeout_s, on_timeout=on_timeout))

    def wait(self, timeout_s: float) -> Seen:
        """Waits for a cell that was kept running."""
        return self._seen(self.session.wait_cell(timeout_s=timeout_s))

    def interrupt(self) -> Seen:
        """Interrupts a cell that was kept running."""
        return self._seen(self.session.interrupt())

    def text(self, code: str, *, timeout_s: float = 30.0) -> str:
        """Runs a cell that must end well, and returns what it printed."""
        seen = self.cell(code, timeout_s=timeout_s)
        expect(seen.result.status == "ok", f"expected the cell to run, found {seen}; cell: {code[:200]!r}")
        return seen.text

    def write(self, path: str, data: bytes) -> None:
        """Writes a file beneath the work directory."""
        drive(self.session.write_file(at(path), data))

    def read(self, path: str, *, max_bytes: int = 64 * MIB) -> bytes:
        """Reads a file beneath the work directory."""
        data: bytes = drive(self.session.read_file(at(path), max_bytes=max_bytes))
        return data

    def refused(self, work: Steps[Any]) -> str:
        """The code with which a file request is refused."""
        try:
            drive(work)
        except FileRefused as refusal:
            return refusal.code
        raise CheckFailed("expected FileRefused, found that the request was granted")

    def run(self, *argv: str, **options: Any) -> RunResult:
        """Runs a command beside the kernel."""
        result: RunResult = drive(self.session.run(list(argv), **options))
        return result

    def alive(self, token: str) -> list[str]:
        """Command lines of live processes in the sandbox that contain a token, zombies not counted. Asks no kernel."""
        listing = self.run("python3", "-I", "-S", "-c", _LIST, token, timeout_s=20).stdout
        text = listing.decode("utf-8", "replace") if isinstance(listing, bytes) else listing
        return [line for line in text.splitlines() if line.strip()]

    def gone(self, token: str, *, within_s: float = 2.0) -> None:
        """Expects every process with that token to be dead soon."""
        until = time.monotonic() + within_s
        while left := self.alive(token):
            if time.monotonic() > until:
                raise CheckFailed(f"expected no process left after {within_s:g} s, found {left}")
            time.sleep(0.1)

    def _seen(self, work: Steps[CellResult]) -> Seen:
        began = time.monotonic()
        result = drive(work)
        if result.killed or result.status == "died":
            self._dead = True
        return Seen(result, time.monotonic() - began)


_LIST = """
import os, sys
me = {os.getpid(), os.getppid()}
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) in me:
        continue
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read().replace(b"\\0", b" ")
        state = open(f"/proc/{pid}/stat", "rb").read().rpartition(b")")[2].split()[0]
    except OSError:
        continue
    if sys.argv[1].encode() in line and state != b"Z":
        print(pid, line[:200].decode("utf-8", "replace"))
"""


def at(path: str) -> str:
    """A path beneath the work directory."""
    return path if path.startswith("/") else f"{WORKDIR}/{path}"


def token() -> str:
    """A string that occurs nowhere else, for marking processes and files."""
    return f"rgcheck{secrets.token_hex(6)}"


Body = Callable[[Box], None]


@dataclass(frozen=True)
class Probe:
    """One check before it runs."""

    name: str
    group: str
    body: Body
    fresh: bool
    """Whether it destroys its box, and so gets one of its own."""
    isolation: str
    """What an unisolated sandbox does not promise; empty where every sandbox must pass."""
    limits: Mapping[str, Any]
    """Changes to `LIMITS`; they imply a fresh box."""


PROBES: list[Probe] = []


def probe(
    group: str, *, fresh: bool = False, isolation: str = "", limits: Mapping[str, Any] | None = None
) -> Callable[[Body], Body]:
    """Makes a function a check; its name and docstring are what a failure shows."""

    def register(body: Body) -> Body:
        name = f"{group}: {body.__name__.replace('_', ' ')}"
        PROBES.append(Probe(name, group, body, fresh or limits is not None, isolation, limits or {}))
        return body

    return register
