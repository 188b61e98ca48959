"""The protocol client against a peer that answers from a script: all a supervisor could do, and what it must not."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

import pytest

from research_gym.cell import Output, Stream
from research_gym.errors import FileRefused, ForkedProcessError, SandboxError, SandboxLost, SandboxStartError
from research_gym.kernel.frames import Decoder, Frame, encode
from research_gym.limits import Limits
from research_gym.sandbox import channel, registry
from research_gym.sandbox import session as session_module
from research_gym.sandbox.session import RequestRefused, Session
from research_gym.sandbox.waiting import drive

LIMITS = Limits(grace_s=0.1, output_bytes=10_000, start_timeout_s=5)
CONFIG = {"limits": asdict(LIMITS), "isolated": True}
HELLO = {"id": 0, "kernel": "", "type": "hello", "pid": 1, "python": "3.11.0", "machine": "x86_64"}
DONE = {
    "type": "done", "status": "ok", "execution_count": 1, "duration_s": 0.5, "cpu_s": 0.25, "omitted_bytes": 3,
    "omitted_messages": 0, "oom_kills": 0, "background_processes": 2, "running": False, "killed": False, "malformed": 1,
}  # fmt: skip


class SocketStream:
    """A stream over one end of a socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.closed = 0
        connection.setblocking(False)

    def fileno(self) -> int:
        return self.connection.fileno()

    def receive(self) -> bytes | None:
        try:
            return self.connection.recv(1 << 16)
        except BlockingIOError:
            return None

    def send(self, data: bytes) -> int:
        try:
            return self.connection.send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.closed += 1
        self.connection.close()

    def diagnostics(self) -> str:
        return "the peer's last words"


class Peer:
    """The other end: reads frames, and writes what the script says to each."""

    def __init__(self, connection: socket.socket, script: Script) -> None:
        self.connection = connection
        self.script = script
        self.requests: list[Frame] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            (size,) = [int.from_bytes(self._exactly(4), "big")]
            self._exactly(size)
            self.send(HELLO)
            decoder = Decoder()
            while data := self.connection.recv(1 << 16):
                for frame in decoder.feed(data):
                    self.requests.append(frame)
                    self.script(self, frame)
        except OSError:
            pass

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise OSError("ended")
            data += piece
        return data

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        self.connection.sendall(encode(header, data))

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def end(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)


Script: TypeAlias = Callable[[Peer, Frame], None]
Connect: TypeAlias = Callable[[Script], tuple[Session, Peer, SocketStream]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[tuple[Session, Peer]] = []

    def connect(script: Script) -> tuple[Session, Peer, SocketStream]:
        ours, theirs = socket.socketpair()
        peer = Peer(theirs, script)
        stream = SocketStream(ours)
        session = drive(Session.connect(stream, config=CONFIG, deadline=time.monotonic() + 10, what="scripted sandbox"))
        opened.append((session, peer))
        return session, peer, stream

    yield connect
    for session, peer in opened:
        session.close()
        peer.connection.close()


def answer(**fields: Any) -> Script:
    """A script that answers every request with one frame."""

    def script(peer: Peer, frame: Frame) -> None:
        peer.send({"id": frame.header["id"], "kernel": frame.header.get("kernel", ""), **fields})

    return script


def silent(peer: Peer, frame: Frame) -> None:
    """A script that answers nothing."""


def text(ident: int, words: str) -> dict[str, Any]:
    return {
        "id": ident,
        "kernel": "k0",
        "type": "output",
        "items": [{"kind": "stream", "name": "stdout", "text": words}],
    }


def test_greeting_is_kept(connect: Connect) -> None:
    session, _, _ = connect(silent)
    assert (session.hello.pid, session.hello.python, session.isolated) == (1, "3.11.0", True)


def test_cell_gives_outputs_as_they_come_and_its_end(connect: Connect) -> None:
    def script(peer: Peer, frame: Frame) -> None:
        ident = frame.header["id"]
        peer.send(text(ident, "a"))
        peer.send({**text(ident, "b"), "items": [*text(ident, "b")["items"], {"kind": "nonsense"}, 7]})
        peer.send({"id": ident, "kernel": "k0", **DONE})

    session, peer, _ = connect(script)
    seen: list[Output] = []
    result = drive(session.execute("1", timeout_s=5, on_timeout="keep", on_items=seen.extend))
    assert result.outputs == (Stream("stdout", "a"), Stream("stdout", "b")) == tuple(seen)
    assert (result.status, result.execution_count, result.omitted_chars, result.malformed) == ("ok", 1, 3, 3)
    asked = peer.requests[0].header
    assert (asked["type"], asked["code"], asked["timeout_s"], asked["on_timeout"]) == ("execute", "1", 5, "keep")


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"status": []},
        {"execution_count": "1"},
        {"duration_s": -1},
        {"cpu_s": None},
        {"omitted_bytes": True},
    ],
)
def test_malformed_end_of_a_cell_is_a_loss(connect: Connect, change: dict[str, Any]) -> None:
    session, _, _ = connect(answer(**(DONE | change)))
    with pytest.raises(SandboxLost, match="malformed"):
        drive(session.execute("1", timeout_s=5, on_timeout="interrupt"))


def test_no_running_cell_is_a_refusal(connect: Connect) -> None:
    session, _, _ = connect(answer(type="error", code="not_running", message="kernel 'k0' runs no cell"))
    for work in (session.wait_cell(1.0), session.interrupt()):
        with pytest.raises(RequestRefused) as caught:
            drive(work)
        assert caught.value.code == "not_running"


def test_other_refusals_of_a_cell_are_faults(connect: Connect) -> None:
    session, _, _ = connect(answer(type="error", code="busy", message="still busy"))
    with pytest.raises(SandboxError, match="busy"):
        drive(session.execute("1", timeout_s=5))


def test_kernel_start_carries_the_reason(connect: Connect) -> None:
    session, _, _ = connect(answer(type="error", code="start_failed", message="No module named ipykernel"))
    with pytest.raises(SandboxStartError, match="ipykernel"):
        drive(session.start_kernel())


def test_cell_too_long_for_a_frame_fails_like_one_that_does_not_compile(connect: Connect) -> None:
    session, peer, _ = connect(silent)
    result = drive(session.execute("é" * (1 << 20), timeout_s=5))
    assert result.status == "error"
    assert not peer.requests


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
def test_file_is_written_in_chunks(connect: Connect, size: int) -> None:
    def script(peer: Peer, frame: Frame) -> None:
        if frame.header.get("last"):
            answer(type="done")(peer, frame)

    session, peer, _ = connect(script)
    data = os.urandom(size)
    drive(session.write_file("/content/x", data, mode=0o600))
    first, *chunks = peer.requests
    assert (first.header["size"], first.header["mode"], first.header["path"]) == (size, 0o600, "/content/x")
    assert b"".join(chunk.data for chunk in chunks) == data
    assert [chunk.header["last"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def reading(data: bytes, **changes: Any) -> Script:
    def script(peer: Peer, frame: Frame) -> None:
        ident = frame.header["id"]
        for at in range(0, len(data), 1 << 20):
            peer.send({"id": ident, "kernel": "", "type": "data"}, data[at : at + (1 << 20)])
        sha256 = hashlib.sha256(data).hexdigest()
        peer.send({"id": ident, "kernel": "", "type": "done", "size": len(data), "sha256": sha256, **changes})

    return script


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
def test_file_is_read_whole(connect: Connect, size: int) -> None:
    data = os.urandom(size)
    session, _, _ = connect(reading(data))
    assert drive(session.read_file("/content/x", max_bytes=3_000_000)) == data


@pytest.mark.parametrize("changes", [{"size": 4}, {"sha256": "0" * 64}])
def test_file_that_is_not_what_was_announced_is_a_loss(connect: Connect, changes: dict[str, Any]) -> None:
    session, _, _ = connect(reading(b"hello", **changes))
    with pytest.raises(SandboxLost, match="announced"):
        drive(session.read_file("/content/x", max_bytes=100))


@pytest.mark.parametrize("code", ["missing", "not_regular", "too_large", "link", "denied", "disk_full"])
def test_file_refusals_keep_their_code(connect: Connect, code: str) -> None:
    session, _, _ = connect(answer(type="error", code=code, message="no"))
    for work in (session.read_file("/x", max_bytes=1), session.stat("/x"), session.write_file("/x", b"")):
        with pytest.raises(FileRefused) as caught:
            drive(work)
        assert caught.value.code == code


def test_command_gives_both_streams(connect: Connect) -> None:
    def script(peer: Peer, frame: Frame) -> None:
        ident = frame.header["id"]
        items = [{"kind": "stream", "name": name, "text": words} for name, words in (("stdout", "é"), ("stderr", "e"))]
        peer.send({"id": ident, "kernel": "", "type": "output", "items": items})
        done = {"exit_code": -9, "duration_s": 1, "cpu_s": 0, "timed_out": True, "omitted_bytes": 0}
        peer.send({"id": ident, "kernel": "", "type": "done", **done})

    session, _, _ = connect(script)
    result = drive(session.run(["x"]))
    assert (result.stdout, result.stderr, result.exit_code, result.timed_out) == ("é".encode(), b"e", -9, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x01x",
        b"\x00\x00\x00\x04null",
        encode({"id": 99, "type": "done"}),
        encode({"id": -1, "type": "done"}),
        encode({"id": True, "type": "done"}),
        encode({"id": "1", "type": "done"}),
        encode({"type": "done"}),
        encode({"id": 1, "type": "surprise"}),
        encode({"id": 1}),
        encode({"id": 1, "type": "output"}),
        encode({"id": 1, "type": "data"}, b"x"),
        b"\x00\x00\x10\x00" + b"[" * 4096,
    ],
)
def test_broken_frames_are_a_loss_for_good(connect: Connect, raw: bytes) -> None:
    session, _, _ = connect(lambda peer, frame: peer.raw(raw))
    with pytest.raises(SandboxLost):
        drive(session.execute("1", timeout_s=5))
    for work in (session.stat("/x"), session.execute("1", timeout_s=1), session.start_kernel(), session.freeze()):
        with pytest.raises(SandboxLost):
            drive(work)


def test_end_of_stream_is_a_loss_with_the_last_words(connect: Connect) -> None:
    session, _, _ = connect(lambda peer, frame: peer.end())
    with pytest.raises(SandboxLost, match="last words"):
        drive(session.execute("1", timeout_s=5))


def test_answer_before_the_end_of_stream_still_counts(connect: Connect) -> None:
    def script(peer: Peer, frame: Frame) -> None:
        answer(**DONE)(peer, frame)
        peer.end()

    session, _, _ = connect(script)
    assert drive(session.execute("1", timeout_s=5)).status == "ok"
    with pytest.raises(SandboxLost):
        drive(session.execute("1", timeout_s=5))


def test_silence_past_the_deadline_is_a_loss(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MARGIN_S", 0.2)
    session, _, _ = connect(silent)
    began = time.monotonic()
    with pytest.raises(SandboxLost, match="no answer within"):
        drive(session.execute("1", timeout_s=0.1))
    assert time.monotonic() - began < 5


def test_endless_answer_is_a_loss(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SLACK_BYTES", 100_000)

    def script(peer: Peer, frame: Frame) -> None:
        while True:
            peer.send(text(frame.header["id"], "x" * 10_000))

    session, _, _ = connect(script)
    with pytest.raises(SandboxLost, match="allows"):
        drive(session.execute("1", timeout_s=30))


def test_step_given_up_half_way_leaves_the_session_usable(connect: Connect) -> None:
    def script(peer: Peer, frame: Frame) -> None:
        header = frame.header
        if header["type"] == "execute" and header["code"] == "slow":
            peer.send(text(header["id"], "slow begins"))
        elif header["type"] == "interrupt":
            slow = peer.requests[0].header["id"]
            for ident in (slow, header["id"]):
                peer.send({"id": ident, "kernel": "k0", **DONE, "status": "interrupted"})
        else:
            peer.send(text(header["id"], "fast"))
            peer.send({"id": header["id"], "kernel": "k0", **DONE})

    session, peer, _ = connect(script)
    slow = session.execute("slow", timeout_s=30)
    next(slow)
    time.sleep(0.1)
    next(slow)
    slow.close()
    result = drive(session.execute("fast", timeout_s=5))
    assert result.outputs == (Stream("stdout", "fast"),)
    assert [frame.header["type"] for frame in peer.requests] == ["execute", "interrupt", "execute"]


def test_two_requests_at_once_are_a_mistake(connect: Connect) -> None:
    session, _, _ = connect(silent)
    first = session.execute("1", timeout_s=5)
    next(first)
    with pytest.raises(RuntimeError, match="another request"):
        drive(session.stat("/x"))


def test_close_is_idempotent_and_final(connect: Connect) -> None:
    session, _, stream = connect(silent)
    session.close()
    session.close()
    assert stream.closed == 1
    with pytest.raises(SandboxLost, match="closed"):
        drive(session.execute("1", timeout_s=5))


def test_close_during_a_request_ends_it(connect: Connect) -> None:
    session, _, _ = connect(silent)
    work = session.execute("1", timeout_s=5)
    next(work)
    session.close()
    with pytest.raises(SandboxLost, match="closed"):
        next(work)


def test_peer_that_never_greets_is_a_start_error() -> None:
    ours, theirs = socket.socketpair()
    stream = SocketStream(ours)
    with pytest.raises(SandboxStartError, match="last words"):
        drive(Session.connect(stream, config=CONFIG, deadline=time.monotonic() + 0.1))
    assert stream.closed == 1
    theirs.close()


def test_forgotten_session_is_closed_with_a_warning(connect: Connect) -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs, silent)
    stream = SocketStream(ours)
    session = drive(Session.connect(stream, config=CONFIG, deadline=time.monotonic() + 10))
    kept = [session]
    del session
    with pytest.warns(ResourceWarning, match="never closed"):
        kept.clear()
    assert stream.closed == 1
    peer.connection.close()


def test_forked_child_cannot_use_the_session_and_the_parent_can(connect: Connect) -> None:
    session, _, stream = connect(answer(**DONE))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            drive(session.execute("1", timeout_s=5))
        except ForkedProcessError:
            code = 0 if stream.fileno() == -1 and not registry.live() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert drive(session.execute("1", timeout_s=5)).status == "ok"


def test_paths_are_those_of_the_sandbox() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs, answer(type="done", exists=False, kind="none", size=0, mtime_ns=0))
    work = Session.connect(
        SocketStream(ours), config=CONFIG, deadline=time.monotonic() + 10, paths={"/content": "/tmp/q/work"}
    )
    with drive(work) as session:
        for path in ("/content", "/content/a", "/contents"):
            drive(session.stat(path))
    assert [frame.header["path"] for frame in peer.requests] == ["/tmp/q/work", "/tmp/q/work/a", "/contents"]
    theirs.close()
