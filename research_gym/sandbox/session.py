"""One live sandbox, as the host uses it: a client of the supervisor's protocol over one stream.

Everything that takes time is a generator of waits (`sandbox.waiting`). Nothing blocks but `close`.

Stable codes of `FileRefused` from here: `missing`, `not_regular`, `too_large`, `link`, `denied`, `disk_full`,
`bad_request`. Codes of `RequestRefused`: `not_running`, `exec_failed`, `bad_request`, `busy`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

from research_gym.cell import CellResult, ErrorOutput, Output, parse_item
from research_gym.errors import FileRefused, SandboxError, SandboxLost, SandboxStartError
from research_gym.kernel.bootstrap import bundle
from research_gym.kernel.frames import MAX_BINARY_BYTES, Frame, FrameError
from research_gym.limits import Limits, OnTimeout
from research_gym.sandbox.answers import (
    FileStat,
    Hello,
    KernelStarted,
    RequestRefused,
    RunResult,
    number,
    read_cell,
    whole,
)
from research_gym.sandbox.base import Stream
from research_gym.sandbox.channel import Channel, Refusal
from research_gym.sandbox.waiting import Steps

__all__ = ["FileStat", "Hello", "KernelStarted", "OnItems", "RequestRefused", "RunResult", "Session"]

T = TypeVar("T")

OnItems: TypeAlias = Callable[[list[Output]], None]
"""Takes outputs as they arrive, in order."""

MARGIN_S = 20.0
"""The host's patience beyond the supervisor's own deadlines, for a loaded machine."""
_FILE_TIMEOUT_S = 60.0
_ESCAPED = 8
"""JSON may take so many bytes for one byte of text."""
_FILE_CODES = frozenset(("missing", "not_regular", "too_large", "link", "denied", "disk_full", "bad_request"))


class Session:
    """One sandbox and the kernel in it. Close it, or use it in a `with` statement.

    One request at a time. Every request has a deadline on the host too: past it, at the end of the stream and at broken
    frames the sandbox is lost, and from then on every method raises `SandboxLost`. In a forked child of the process
    that opened it every method raises `ForkedProcessError`. A generator that is closed half-way leaves the session
    usable: the next cell interrupts what still runs.
    """

    def __init__(
        self, channel: Channel, *, limits: Limits, isolated: bool, hello: Hello, paths: Mapping[str, str] | None = None
    ) -> None:
        """For `connect`; sandboxes call that."""
        self._channel = channel
        self._paths = sorted((paths or {}).items(), key=lambda pair: len(pair[0]), reverse=True)
        self.limits = limits
        self.isolated = isolated
        """Whether agent processes are kept from the rest of the machine; `False` only for plain local."""
        self.hello = hello
        channel.watch(self)

    @classmethod
    def connect(
        cls,
        stream: Stream,
        *,
        config: Mapping[str, Any],
        deadline: float,
        what: str = "sandbox",
        first: bytes = b"",
        paths: Mapping[str, str] | None = None,
    ) -> Steps[Session]:
        """Sends the supervisor and its configuration, and waits until it greets. Takes over the stream in any case.

        Args:
            stream: A fresh stream whose other end runs `kernel.bootstrap.BOOTSTRAP`.
            config: The supervisor's configuration; `limits` and `isolated` count here too.
            deadline: `time.monotonic()` at which the start has failed.
            what: Name of the sandbox, for messages.
            first: Bytes that something in front of the bootstrap reads.
            paths: Folders that the caller names and where they really are; for a sandbox without a root of its own.

        Raises:
            SandboxStartError: the sandbox ended, or did not greet in time; carries what it said. The stream is closed.
        """
        channel = Channel(stream, what=what)
        try:
            try:
                hello = yield from channel.greet(first + bundle(config), deadline=deadline)
                greeting = Hello(whole(hello, "pid"), str(hello.get("python")), str(hello.get("machine")))
            except SandboxLost as error:
                raise SandboxStartError(f"the supervisor did not come up: {error}") from error
            except ValueError as error:
                raise SandboxStartError(f"{what}: the supervisor's greeting is malformed: {error}") from error
            limits = Limits(**config["limits"])
            return cls(channel, limits=limits, isolated=bool(config["isolated"]), hello=greeting, paths=paths)
        except BaseException:
            channel.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor of the stream; -1 once it is closed."""
        return self._channel.fileno()

    def close(self) -> None:
        """Ends the stream and with it all there is in the sandbox. At most 5 s; idempotent; does not raise."""
        self._channel.close()

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def start_kernel(self, kernel: str = "k0", kernelspec: str = "python3") -> Steps[KernelStarted]:
        """Starts a kernel, the first one or a fresh one after a death.

        Raises:
            SandboxStartError: it did not answer within `limits.start_timeout_s`; carries the end of its standard error.
        """
        yield from self._settle(kernel)
        try:
            done = yield from self._channel.request(
                {"type": "start", "kernel": kernel, "kernelspec": kernelspec},
                timeout_s=self.limits.start_timeout_s + self.limits.grace_s + MARGIN_S,
            )
        except Refusal as refusal:
            raise SandboxStartError(
                f"{self._channel.what}: kernel {kernelspec!r} did not start: {refusal}"
            ) from refusal
        return self._read(lambda: KernelStarted(number(done, "startup_s"), whole(done, "pid")))

    def execute(
        self,
        code: str,
        *,
        timeout_s: float,
        on_timeout: OnTimeout = "interrupt",
        on_items: OnItems | None = None,
        kernel: str = "k0",
    ) -> Steps[CellResult]:
        """Runs a cell. A cell that still runs (`on_timeout="keep"`) is interrupted first.

        A cell too long for a frame is answered like one that does not compile, with status `error`.
        """
        yield from self._settle(kernel)
        header = {"type": "execute", "kernel": kernel, "code": code, "timeout_s": timeout_s, "on_timeout": on_timeout}
        try:
            return (yield from self._cell(header, timeout_s=timeout_s, on_items=on_items))
        except FrameError:
            words = f"a cell of {len(code)} characters is too long; write a file in pieces instead"
            output = ErrorOutput("ValueError", words, (f"ValueError: {words}",))
            if on_items is not None:
                on_items([output])
            return CellResult("error", outputs=(output,))

    def wait_cell(self, timeout_s: float, on_items: OnItems | None = None, *, kernel: str = "k0") -> Steps[CellResult]:
        """Waits for a cell that was kept running; only output that is new.

        Raises:
            RequestRefused: no cell runs (`not_running`).
        """
        yield from self._settle(kernel)
        header = {"type": "wait", "kernel": kernel, "timeout_s": timeout_s}
        return (yield from self._cell(header, timeout_s=timeout_s, on_items=on_items))

    def interrupt(self, on_items: OnItems | None = None, *, kernel: str = "k0") -> Steps[CellResult]:
        """Interrupts the running cell and, after the grace, kills it.

        Raises:
            RequestRefused: no cell runs (`not_running`).
        """
        yield from self._settle(kernel)
        return (yield from self._cell({"type": "interrupt", "kernel": kernel}, timeout_s=0.0, on_items=on_items))

    def freeze(self, kernel: str = "k0") -> Steps[int]:
        """Stops every process of the agent, so that files hold still; returns how many. `RequestRefused`: `busy`."""
        done = yield from self._plain({"type": "freeze", "kernel": kernel})
        return self._read(lambda: whole(done, "stopped"))

    def thaw(self, kernel: str = "k0") -> Steps[None]:
        """Lets go on what `freeze` stopped."""
        yield from self._plain({"type": "thaw", "kernel": kernel})

    # -- files and commands -------------------------------------------------------------------------------------------

    def read_file(self, path: str, *, max_bytes: int) -> Steps[bytes]:
        """Reads one regular file, whole.

        Raises:
            FileRefused: not there, not regular, a link in the path, or larger than `max_bytes`; see the codes above.
        """
        parts: list[bytes] = []
        try:
            done = yield from self._channel.request(
                {"type": "read_file", "kernel": "", "path": self._real(path), "max_bytes": max_bytes},
                timeout_s=_FILE_TIMEOUT_S + MARGIN_S,
                max_bytes=2 * max_bytes,
                on_frame=lambda frame: parts.append(self._expect(frame, "data").data),
            )
        except FrameError as error:
            raise FileRefused("bad_request", f"path of {len(path)} characters: too long") from error
        except Refusal as refusal:
            self._refuse_file(refusal)
        data = b"".join(parts)
        if (
            done.get("size") != len(data)
            or done.get("sha256") != hashlib.sha256(data).hexdigest()
            or len(data) > max_bytes
        ):
            raise self._channel.lose(f"read_file: {len(data)} bytes arrived, not the ones announced")
        return data

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> Steps[None]:
        """Writes one file as the agent, folders made, replacing what is there in one act; never through a link.

        Raises:
            FileRefused: outside the writable areas (`denied`), a link in the path, or no room (`disk_full`).
        """
        body = [data[at : at + MAX_BINARY_BYTES] for at in range(0, len(data), MAX_BINARY_BYTES)] or [b""]
        try:
            yield from self._channel.request(
                {"type": "write_file", "kernel": "", "path": self._real(path), "mode": mode, "size": len(data)},
                body=body,
                timeout_s=_FILE_TIMEOUT_S + MARGIN_S,
            )
        except FrameError as error:
            raise FileRefused("bad_request", f"path of {len(path)} characters: too long") from error
        except Refusal as refusal:
            self._refuse_file(refusal)

    def stat(self, path: str) -> Steps[FileStat]:
        """What is at a path.

        Raises:
            FileRefused: the path is not one (`bad_request`).
        """
        try:
            done = yield from self._channel.request(
                {"type": "stat", "kernel": "", "path": self._real(path)}, timeout_s=MARGIN_S
            )
        except FrameError as error:
            raise FileRefused("bad_request", f"path of {len(path)} characters: too long") from error
        except Refusal as refusal:
            self._refuse_file(refusal)
        return self._read(
            lambda: FileStat(done.get("exists") is True, str(done["kind"]), whole(done, "size"), int(done["mtime_ns"]))
        )

    def status(self) -> Steps[dict[str, Any]]:
        """Figures by pid 1's account: `uptime_s`, `processes`, `memory_bytes`, `kernels`, `compute_s`."""
        done = yield from self._plain({"type": "stat", "kernel": ""})
        return {key: value for key, value in done.items() if key not in ("id", "kernel", "type")}

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str = "agent",
        timeout_s: float = 60.0,
        max_output_bytes: int = 1 << 20,
    ) -> Steps[RunResult]:
        """Runs a command beside the kernel, without terminal or input; its whole tree dies with it.

        Raises:
            RequestRefused: the program did not start (`exec_failed`), or an argument cannot be one (`bad_request`).
        """
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}

        def take(frame: Frame) -> None:
            for item in self._items(frame):
                if isinstance(item, dict) and item.get("kind") == "stream" and item.get("name") in texts:
                    texts[item["name"]].append(str(item.get("text")))

        header = {
            "type": "run", "kernel": "", "argv": list(argv), "env": dict(env or {}), "user": user,
            "cwd": None if cwd is None else self._real(cwd),
            "timeout_s": timeout_s, "max_output_bytes": max_output_bytes,
        }  # fmt: skip
        try:
            done = yield from self._channel.request(
                header, timeout_s=timeout_s + MARGIN_S, max_bytes=_ESCAPED * max_output_bytes, on_frame=take
            )
        except FrameError as error:
            raise RequestRefused("bad_request", f"run: {error}") from error
        except Refusal as refusal:
            raise RequestRefused(refusal.code, f"run {argv[0]!r:.100}: {refusal}") from refusal
        out, err = ("".join(texts[name]).encode("utf-8", "backslashreplace") for name in ("stdout", "stderr"))
        return self._read(
            lambda: RunResult(
                exit_code=int(done["exit_code"]),
                stdout=out,
                stderr=err,
                duration_s=number(done, "duration_s"),
                cpu_s=number(done, "cpu_s"),
                timed_out=done.get("timed_out") is True,
                omitted_bytes=whole(done, "omitted_bytes"),
            )
        )

    # -- the protocol -------------------------------------------------------------------------------------------------

    def _settle(self, kernel: str) -> Steps[None]:
        """A cell whose step was given up half-way still owes its answer: interrupt it and take that, unseen."""
        self._channel.check()
        owed = set(self._channel.owed.values())
        timeout_s = 2 * self.limits.grace_s + MARGIN_S
        if owed & {"execute", "wait", "interrupt"}:
            with contextlib.suppress(Refusal):  # it may have ended meanwhile, its answer on the way
                yield from self._channel.request(
                    {"type": "interrupt", "kernel": kernel},
                    timeout_s=timeout_s,
                    max_bytes=self._output_bytes,
                    on_frame=lambda frame: None,
                )
        if owed:
            yield from self._channel.settle(
                timeout_s=timeout_s + (self.limits.start_timeout_s if "start" in owed else 0.0)
            )

    def _real(self, path: str) -> str:
        for top, real in self._paths:
            if path == top or path.startswith(top + "/"):
                return real + path[len(top) :]
        return path

    @property
    def _output_bytes(self) -> int:
        return _ESCAPED * self.limits.output_bytes

    def _cell(self, header: dict[str, Any], *, timeout_s: float, on_items: OnItems | None) -> Steps[CellResult]:
        outputs: list[Output] = []
        bad = 0

        def take(frame: Frame) -> None:
            nonlocal bad
            items = self._items(frame)
            read = [output for item in items if (output := parse_item(item)) is not None]
            bad += len(items) - len(read)
            outputs.extend(read)
            if on_items is not None and read:
                on_items(read)

        try:
            done = yield from self._channel.request(
                header,
                # An earlier cell may take the grace and a kill before this one begins; then the same for this one.
                timeout_s=timeout_s + 2 * self.limits.grace_s + MARGIN_S,
                max_bytes=self._output_bytes,
                on_frame=take,
            )
        except Refusal as refusal:
            if refusal.code == "not_running":
                raise RequestRefused(refusal.code, str(refusal)) from refusal
            raise SandboxError(f"{self._channel.what}: {refusal.code}: {refusal}") from refusal
        return self._read(lambda: read_cell(done, tuple(outputs), bad))

    def _plain(self, header: dict[str, Any]) -> Steps[dict[str, Any]]:
        try:
            return (yield from self._channel.request(header, timeout_s=self.limits.grace_s + MARGIN_S))
        except Refusal as refusal:
            if refusal.code == "busy":
                raise RequestRefused("busy", str(refusal)) from refusal
            raise SandboxError(f"{self._channel.what}: {header['type']}: {refusal.code}: {refusal}") from refusal

    def _refuse_file(self, refusal: Refusal) -> NoReturn:
        if refusal.code in _FILE_CODES:
            raise FileRefused(refusal.code, str(refusal)) from refusal
        raise SandboxError(f"{self._channel.what}: {refusal.code}: {refusal}") from refusal

    def _expect(self, frame: Frame, kind: str) -> Frame:
        found = frame.header.get("type")
        if found != kind:
            raise self._channel.lose(f"broke the protocol: expected a frame {kind!r}, found {found!r:.40}")
        return frame

    def _items(self, frame: Frame) -> list[Any]:
        items = self._expect(frame, "output").header.get("items")
        if not isinstance(items, list):
            raise self._channel.lose("broke the protocol: an output frame without items")
        return items

    def _read(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._channel.lose(f"broke the protocol: a malformed answer: {error!r:.200}") from error
