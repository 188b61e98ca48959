"""The byte stream to a container: Docker's hijacked attach connection, never blocking, without the engine's framing."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import weakref
from collections.abc import Callable
from typing import Any

_READ_BYTES = 1 << 18
_TAIL_BYTES = 8 << 10
_HEADER = struct.Struct(">BxxxL")
_STDOUT, _STDERR = 1, 2


class Demultiplexer:
    """Takes Docker's frames apart: 8 bytes of header (which stream, how many bytes), then the payload.

    Incremental: payload is handed out as it comes, however the chunks fall. Standard output is returned, of
    everything else the last 8 KiB are kept. https://docs.docker.com/reference/api/engine/ (ContainerAttach, "Stream
    format").

    Example:
        >>> demux = Demultiplexer()
        >>> demux.feed(bytes([1, 0, 0, 0, 0, 0, 0, 3]) + b"ab")
        b'ab'
        >>> demux.feed(b"c" + bytes([2, 0, 0, 0, 0, 0, 0, 4]) + b"oops")
        b'c'
        >>> demux.tail
        'oops'
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0
        self._tail = bytearray()

    @property
    def tail(self) -> str:
        """The end of what came on standard error."""
        return self._tail.decode("utf-8", "replace")

    def feed(self, chunk: bytes) -> bytes:
        """Adds bytes and returns the standard output among them."""
        out: list[bytes] = []
        at, end = 0, len(chunk)
        while at < end:
            if self._left == 0:
                take = min(_HEADER.size - len(self._header), end - at)
                self._header += chunk[at : at + take]
                at += take
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header.clear()
                continue
            piece = chunk[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                out.append(piece)
            else:
                self._tail += piece[-_TAIL_BYTES:]
                del self._tail[:-_TAIL_BYTES]
        return out[0] if len(out) == 1 else b"".join(out)


def take_socket(response: Any) -> tuple[socket.socket, bytes]:
    """Takes the connection out of a hijacked response of the docker SDK: the socket, and bytes that were read ahead.

    A plain socket is duplicated, so that nothing of the SDK owns it any more and the response may be closed. A TLS
    socket cannot be duplicated: it is taken as it is, and must be kept together with the response.

    Raises:
        OSError: the SDK's connection is none of the kinds known (a socket, TLS over a socket).
    """
    reader = getattr(getattr(response.raw, "_fp", None), "fp", None)
    inner = getattr(getattr(reader, "raw", None), "_sock", None)
    if reader is None or not isinstance(inner, socket.socket):
        raise OSError(f"attach: expected a socket below the engine's response, found {type(inner).__name__}")
    inner.setblocking(False)
    leftover = b""
    # Reading ahead of the headers is the buffered reader's right; what it holds is the beginning of the stream.
    while piece := reader.peek(1):
        leftover += reader.read1(len(piece))
    if isinstance(inner, ssl.SSLSocket):
        return inner, leftover
    own = socket.socket(fileno=os.dup(inner.fileno()))
    own.setblocking(False)
    return own, leftover


class DockerStream:
    """One container's standard input and output, and its life line. `receive` and `send` never block.

    The container's standard input ends when this connection does, so `close` and the death of this process have the
    same effect: pid 1 in the container exits and everything there dies with it.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        name: str = "",
        leftover: bytes = b"",
        keep: Any = None,
        remove: Callable[[], object] | None = None,
        explain: Callable[[], str] | None = None,
    ) -> None:
        """Takes over the connection.

        Args:
            connection: Non-blocking socket that carries the attach stream.
            name: Name of the container, for messages.
            leftover: Bytes of the stream that were read already.
            keep: Whatever must stay alive as long as the connection.
            remove: Removes the container; called by `close`, once, after the connection is shut; must not raise.
            explain: What the engine says happened to the container, for the message after the stream ended; bounded
            in time.
        """
        self._connection = connection
        self._demultiplexer = Demultiplexer()
        self._ready = self._demultiplexer.feed(leftover)
        self._keep = keep
        self._remove = remove
        self._explain = explain
        self._explained: str | None = None
        self._owner_pid = os.getpid()
        self._ended = False
        self._closed = False
        self.name = name
        _streams.add(self)

    def fileno(self) -> int:
        """The descriptor to wait on; -1 after `close`."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """The next bytes of standard output; `None` if there are none yet, empty at the end of the stream.

        Call it until it says `None`: TLS may hold bytes that the descriptor does not announce.
        """
        if self._ready:
            ready, self._ready = self._ready, b""
            return ready
        while not self._ended:
            try:
                chunk = self._connection.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            except OSError:
                chunk = b""
            if not chunk:
                self._ended = True
            elif out := self._demultiplexer.feed(chunk):
                return out
        return b""

    def send(self, data: bytes) -> int:
        """Writes what there is room for and says how many bytes that was; 0 if there is no room now.

        Raises:
            OSError: the connection is gone.
        """
        try:
            return self._connection.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def close(self) -> None:
        """Ends the stream, then removes the container. Idempotent; bounded by `remove`.

        In a forked child it only drops the descriptor.
        """
        if self._closed:
            return
        self._closed = True
        self._ended = True
        if os.getpid() == self._owner_pid:
            # Closing alone leaves the connection open as long as any copy of the descriptor lives, also a forked
            # child's.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()
        self._keep = None
        if self._remove is not None and os.getpid() == self._owner_pid:
            self._remove()

    def diagnostics(self) -> str:
        """The end of standard error, and what the engine says of the container; it is asked, so for faults only."""
        if self._explained is None and not self._closed and self._explain is not None:
            self._explained = self._explain()
        parts = (self._demultiplexer.tail.strip(), self._explained or "")
        return "\n".join(part for part in parts if part)


_streams: weakref.WeakSet[DockerStream] = weakref.WeakSet()


def _drop_all() -> None:
    """In a forked child: also a stream that no session has taken over yet must not be held open from here."""
    for stream in list(_streams):
        stream.close()


os.register_at_fork(after_in_child=_drop_all)
