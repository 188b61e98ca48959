"""A sandbox that runs nothing: cells are answered from a script, files are a dict. Tests take milliseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

from research_gym.cell import CellResult, Output, Stream
from research_gym.errors import FileRefused, SandboxLost
from research_gym.limits import OnTimeout
from research_gym.sandbox.base import Finding, Sandbox, SandboxSpec
from research_gym.sandbox.session import FileStat, KernelStarted, RunResult, Session
from research_gym.sandbox.waiting import Steps, Wait

T = TypeVar("T")

Reply: TypeAlias = CellResult | str | Exception
"""What a cell gives: its result, what it prints (status ok), or the error that the sandbox raises."""
Script: TypeAlias = Callable[[str], Reply] | Mapping[str, Reply] | Sequence[Reply]
"""Answers to cells: by a function of the code, by the exact code (others print nothing), or one after the other."""
OnItems: TypeAlias = Callable[[list[Output]], None]


def printed(text: str, **changes: Any) -> CellResult:
    """A cell that printed `text`; `changes` are fields of its `CellResult`.

    Example:
        >>> printed("hello", status="timeout", running=True).running
        True
    """
    fields: dict[str, Any] = {"status": "ok", "outputs": (Stream("stdout", text),) if text else ()}
    return CellResult(**(fields | changes))


class FakeSession(Session):
    """One scripted session. Everything it was asked is in `log`, the cells in `cells`, the files in `files`."""

    isolated = True

    def __init__(self, spec: SandboxSpec, replies: Callable[[str], Reply], files: Mapping[str, bytes]) -> None:
        # The base class is a client of a stream; there is none here, so its constructor has nothing to do.
        self.spec = spec
        self.files: dict[str, bytes] = dict(files)
        """Absolute path -> content of every regular file."""
        self.kinds: dict[str, str] = {}
        """Absolute path -> kind of everything that is not a regular file (`link`, `fifo`, `directory`)."""
        self.log: list[str] = []
        self.cells: list[str] = []
        self.frozen = False
        self.was_closed = False
        self._replies = replies
        self._count = 0
        self._writes = 0
        self._mtimes: dict[str, int] = {}

    def fileno(self) -> int:
        """There is no descriptor to wait on.

        Raises:
            OSError: always.
        """
        raise OSError("a fake session has no descriptor")

    def start_kernel(self, kernel: str = "k0", kernelspec: str = "python3") -> Steps[KernelStarted]:
        """Answers at once."""
        self._note("start_kernel")
        return _now(KernelStarted(startup_s=0.0, pid=2))

    def execute(
        self,
        code: str,
        *,
        timeout_s: float,
        on_timeout: OnTimeout = "interrupt",
        on_items: OnItems | None = None,
        **_: Any,
    ) -> Steps[CellResult]:
        """Answers from the script."""
        self._note("execute")
        self.cells.append(code)
        return self._answer(code, on_items)

    def wait_cell(self, timeout_s: float, on_items: OnItems | None = None, **_: Any) -> Steps[CellResult]:
        """Answers from the script, asked for `%wait`."""
        self._note("wait_cell")
        return self._answer("%wait", on_items)

    def interrupt(self, on_items: OnItems | None = None, **_: Any) -> Steps[CellResult]:
        """Answers from the script, asked for `%interrupt`."""
        self._note("interrupt")
        return self._answer("%interrupt", on_items)

    def read_file(self, path: str, *, max_bytes: int) -> Steps[bytes]:
        """The content of `files`, under the rules of the real thing."""
        self._note("read_file")
        if path in self.kinds:
            code = "link" if self.kinds[path] == "link" else "not_regular"
            return _refuse(code, f"{path}: expected a regular file, found a {self.kinds[path]}")
        if path not in self.files:
            return _refuse("missing", f"{path}: there is no such file")
        if len(self.files[path]) > max_bytes:
            return _refuse("too_large", f"{path}: expected at most {max_bytes} bytes, found {len(self.files[path])}")
        return _now(self.files[path])

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> Steps[None]:
        """Puts it into `files`."""
        self._note("write_file")
        self._writes += 1
        self._mtimes[path] = self._writes
        self.files[path] = data
        return _now(None)

    def run(self, argv: Sequence[str], **_: Any) -> Steps[RunResult]:
        """A command that prints nothing and succeeds."""
        self._note("run")
        return _now(RunResult(exit_code=0, stdout=b"", stderr=b"", duration_s=0.0, cpu_s=0.0, timed_out=False))

    def stat(self, path: str) -> Steps[FileStat]:
        """Of `files` and `kinds`; the time of modification counts the writes and follows the content."""
        self._note("stat")
        kind = self.kinds.get(path, "regular" if path in self.files else "none")
        data = self.files.get(path, b"")
        mtime_ns = self._mtimes.get(path, 0) * (1 << 40) + int.from_bytes(hashlib.sha256(data).digest()[:5], "big")
        return _now(FileStat(exists=kind != "none", kind=kind, size=len(data), mtime_ns=mtime_ns))

    def status(self) -> Steps[dict[str, Any]]:
        """Figures of an idle sandbox."""
        self._note("status")
        return _now({"uptime_s": 1.0, "processes": 1, "memory_bytes": 0, "kernels": ["k0"], "compute_s": 0.0})

    def freeze(self, *_: Any, **__: Any) -> Steps[int]:
        """Notes it."""
        self._note("freeze")
        self.frozen = True
        return _now(1)

    def thaw(self, *_: Any, **__: Any) -> Steps[None]:
        """Notes it."""
        self._note("thaw")
        self.frozen = False
        return _now(None)

    def close(self) -> None:
        """Notes it; idempotent."""
        self.was_closed = True

    def _note(self, request: str) -> None:
        self.log.append(request)
        if self.was_closed:
            raise SandboxLost(f"the fake session was closed before {request}")

    def _answer(self, code: str, on_items: OnItems | None) -> Steps[CellResult]:
        yield Wait(until=0.0)
        reply = self._replies(code)
        if isinstance(reply, Exception):
            raise reply
        self._count += 1
        result = printed(reply, execution_count=self._count) if isinstance(reply, str) else reply
        if on_items is not None and result.outputs:
            on_items(list(result.outputs))
        return result


class FakeSandbox(Sandbox):
    """Opens `FakeSession`s and keeps them in `sessions`.

    Args:
        script: how cells are answered; see `Script`. A sequence that is used up raises `LookupError` in the test.
        files: absolute path -> content of what every session starts with.
        start_errors: raised by the first calls of `open`, one each.

    Example:
        >>> from research_gym.sandbox.base import SandboxSpec
        >>> from research_gym.sandbox.waiting import drive
        >>> session = drive(FakeSandbox({"1 + 1": "2"}).open(SandboxSpec()))
        >>> drive(session.execute("1 + 1", timeout_s=1.0, on_timeout="interrupt")).outputs
        (Stream(name='stdout', text='2', late=False),)
    """

    name: ClassVar[str] = "fake"

    def __init__(
        self, script: Script = (), *, files: Mapping[str, bytes] | None = None, start_errors: Sequence[Exception] = ()
    ) -> None:
        self.sessions: list[FakeSession] = []
        self._files = dict(files or {})
        self._start_errors = iter(list(start_errors))
        self._replies = _replies_of(script)

    @property
    def session(self) -> FakeSession:
        """The newest session."""
        return self.sessions[-1]

    def open(self, spec: SandboxSpec) -> Steps[Session]:
        """A fresh session, or the next of `start_errors`."""
        yield Wait(until=0.0)
        error = next(self._start_errors, None)
        if error is not None:
            raise error
        session = FakeSession(spec, self._replies, self._files)
        self.sessions.append(session)
        return session

    def findings(self) -> list[Finding]:
        """Nothing to find."""
        return []


def _replies_of(script: Script) -> Callable[[str], Reply]:
    if isinstance(script, Mapping):
        table = dict(script)
        return lambda code: table.get(code, "")
    if isinstance(script, Sequence):
        if not script:
            return lambda code: ""
        queue: Iterator[Reply] = iter(script)

        def next_reply(code: str) -> Reply:
            for reply in queue:
                return reply
            raise LookupError(f"the script of the fake sandbox is used up at the cell {code!r}")

        return next_reply
    return script


def _now(value: T) -> Steps[T]:
    yield Wait(until=0.0)
    return value


def _refuse(code: str, message: str) -> Steps[NoReturn]:
    yield Wait(until=0.0)
    raise FileRefused(code, message)
