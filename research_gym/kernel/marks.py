"""Marks in a kernel's output pipe: how text, displays and the end of a cell keep the program's order over two channels.

A forkable kernel writes all its text (`sys.stdout`, `sys.stderr`, descriptors 1 and 2, every command it starts) into
one pipe and sends displays, results and errors as frames. Before each frame it writes a mark into the pipe and puts
the mark's number into the frame, so the reader knows which bytes come before it. A mark is shorter than `PIPE_BUF`,
hence never torn, whoever else writes. Two more marks name the stream (`stdout`, `stderr`) of what follows. The nonce
is no secret from the agent: a forged mark reorders the agent's own text and does nothing else.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, NamedTuple

STREAMS = {"o": "stdout", "e": "stderr"}
_MAX_NUMBER_DIGITS = 12


class Piece(NamedTuple):
    """A run of bytes of one stream."""

    stream: str
    data: bytes


def stream_mark(nonce: str, stream: Literal["stdout", "stderr"]) -> bytes:
    """The mark after which bytes belong to `stream`."""
    return b"\0rg%s%s\0" % (nonce.encode("ascii"), b"e" if stream == "stderr" else b"o")


def numbered_mark(nonce: str, number: int) -> bytes:
    """The mark that a frame with this `mark` number refers to."""
    return b"\0rg%s:%d\0" % (nonce.encode("ascii"), number)


class MarkReader:
    """Cuts the bytes of one pipe at its marks, whatever the chunking. Total: all is text but for whole marks.

    Text after a numbered mark is held until the frame with that number came (`reach`), at most `max_held_bytes` of
    it: a forged mark delays text, it cannot swallow any.
    """

    def __init__(self, nonce: str, *, max_held_bytes: int = 1 << 20) -> None:
        self._head = b"\0rg" + nonce.encode("ascii")
        self._mark = re.compile(re.escape(self._head) + rb"(?:([oe])|:(\d{1,%d}))\0" % _MAX_NUMBER_DIGITS)
        self._start = re.compile(rb"[oe]|:\d{0,%d}" % _MAX_NUMBER_DIGITS)
        self._longest = len(self._head) + _MAX_NUMBER_DIGITS + 2
        self._max_held_bytes = max_held_bytes
        self._tail = b""
        self._stream = "stdout"
        self._reached = 0
        self._held: deque[Piece | int] = deque()
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[Piece]:
        """Returns the text that may be shown now, in order."""
        data = self._tail + chunk
        start = 0
        for match in self._mark.finditer(data):
            self._hold(data[start : match.start()])
            if match[1]:
                self._stream = STREAMS[match[1].decode("ascii")]
            else:
                self._held.append(int(match[2]))
            start = match.end()
        end = self._incomplete_mark(data, start)
        self._hold(data[start:end])
        self._tail = data[end:]
        return self._release() if self._held_bytes <= self._max_held_bytes else self.flush()

    def reach(self, number: int) -> list[Piece]:
        """The text before a frame's mark. Call it when the frame came and what waited in the pipe then has been fed."""
        if number <= self._reached:
            return []
        before: list[Piece] = []
        while self._held:
            piece = self._held.popleft()
            if isinstance(piece, int):
                if piece >= number:
                    break
            else:
                self._held_bytes -= len(piece.data)
                before.append(piece)
        self._reached = number
        return before

    def flush(self) -> list[Piece]:
        """Gives up on marks that wait for their frames and on an incomplete one: the pipe or the kernel ended."""
        self._hold(self._tail)
        self._tail = b""
        pieces = [piece for piece in self._held if isinstance(piece, Piece)]
        self._held.clear()
        self._held_bytes = 0
        return pieces

    def _release(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._held:
            first = self._held[0]
            if isinstance(first, Piece):
                self._held_bytes -= len(first.data)
                pieces.append(first)
            elif first > self._reached:
                break
            self._held.popleft()
        return pieces

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(Piece(self._stream, data))
            self._held_bytes += len(data)

    def _incomplete_mark(self, data: bytes, start: int) -> int:
        """Where a mark that may still become whole begins, else the end of the data."""
        at = data.find(b"\0", max(start, len(data) - self._longest))
        while at >= 0:
            tail = data[at:]
            if self._head.startswith(tail) or (
                tail.startswith(self._head) and self._start.fullmatch(tail[len(self._head) :])
            ):
                return at
            at = data.find(b"\0", at + 1)
        return len(data)
