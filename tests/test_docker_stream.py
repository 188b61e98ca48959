"""The attach stream without an engine: framing, partial writes, ends, and what a forked child may do with it."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.sandbox.docker_stream import Demultiplexer, DockerStream


def _framed(stream: int, payload: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(payload)) + payload


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))),
    st.lists(st.integers(min_value=1, max_value=50)),
)
def test_payload_is_the_same_however_the_chunks_fall(parts: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(_framed(stream, payload) for stream, payload in parts)
    demux, out, at = Demultiplexer(), b"", 0
    for cut in [*cuts, len(data)]:
        out += demux.feed(data[at : at + cut])
        at += cut
    assert out == b"".join(payload for stream, payload in parts if stream == 1)
    errors = b"".join(payload for stream, payload in parts if stream == 2)
    assert demux.tail == errors.decode("utf-8", "replace")


def test_payload_is_handed_out_before_its_frame_is_complete() -> None:
    demux = Demultiplexer()
    assert demux.feed(_framed(1, b"x" * 1000)[:108]) == b"x" * 100


def test_standard_error_is_bounded_to_its_end() -> None:
    demux = Demultiplexer()
    for number in range(5000):
        assert demux.feed(_framed(2, f"line {number}\n".encode())) == b""
    assert len(demux.tail) <= 8 << 10
    assert demux.tail.endswith("line 4999\n")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, engines = socket.socketpair()
    ours.setblocking(False)
    yield ours, engines
    ours.close()
    engines.close()


def test_nothing_read_ahead_is_lost(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    whole = _framed(1, b"hello world")
    stream = DockerStream(ours, leftover=whole[:13])
    engines.sendall(whole[13:])
    assert stream.receive() == b"hello"
    assert stream.receive() == b" world"
    assert stream.receive() is None


def test_receive_says_none_while_nothing_came_and_empty_at_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    stream = DockerStream(ours)
    assert stream.receive() is None
    engines.sendall(_framed(2, b"only an error"))
    assert stream.receive() is None
    engines.close()
    assert stream.receive() == b""
    assert stream.receive() == b""
    assert stream.diagnostics() == "only an error"


def test_send_is_partial_and_says_zero_when_full(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    stream = DockerStream(ours)
    block, sent = bytes(1 << 20), 0
    while count := stream.send(block):
        sent += count
    assert 0 < sent < 64 << 20
    while sent:
        sent -= len(engines.recv(1 << 20))
    assert select.select([], [stream], [], 1)[1]
    assert stream.send(b"more") == 4


def test_send_after_the_end_raises(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    engines.close()
    with pytest.raises(BrokenPipeError):
        DockerStream(ours).send(b"x")


def test_close_ends_the_connection_first_then_removes_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    seen: list[bytes] = []
    copy = ours.dup()  # what a forked child of somebody else's library would hold
    stream = DockerStream(ours, remove=lambda: seen.append(engines.recv(1)))
    stream.close()
    stream.close()
    assert seen == [b""]
    assert stream.fileno() == -1
    assert stream.receive() == b""
    copy.close()


def test_forked_child_drops_the_descriptor_and_leaves_the_stream_alone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, engines = pair
    removed: list[bool] = []
    stream = DockerStream(ours, remove=lambda: removed.append(True))
    child = os.fork()
    if child == 0:
        stream.close()
        os._exit(1 if removed else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engines.sendall(_framed(1, b"still here"))
    assert stream.receive() == b"still here"
    stream.close()
    assert removed == [True]


def test_the_engine_is_asked_only_for_diagnostics_and_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, engines = pair
    asked: list[int] = []

    def explain() -> str:
        asked.append(1)
        return "the engine says: gone"

    stream = DockerStream(ours, explain=explain)
    engines.sendall(_framed(2, b"last words\n"))
    engines.close()
    assert stream.receive() == b""
    assert asked == []
    assert stream.diagnostics() == "last words\nthe engine says: gone"
    assert stream.diagnostics() == "last words\nthe engine says: gone"
    assert asked == [1]
