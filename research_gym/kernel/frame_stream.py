"""Frames over non-blocking descriptors: used by pid 1 towards the host and towards a kernel process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from research_gym.kernel.frames import Decoder, Frame, FrameError, encode
from research_gym.kernel.loop import Loop

_READ_BYTES = 1 << 18


class FrameStream:
    """One peer. Reads whenever the peer wrote, queues what the peer does not take yet, never blocks.

    Guarantees: `on_end` is called at most once, never from inside `send`, with the reason in words (end of stream, a
    broken pipe, bytes that are not frames, a queue over `max_queued_bytes`); no `on_frame` after it.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        read_fd: int,
        write_fd: int,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
        max_queued_bytes: int = 64 << 20,
    ) -> None:
        self._loop = loop
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_frame = on_frame
        self._on_end = on_end
        self._max_queued_bytes = max_queued_bytes
        self._decoder = Decoder()
        self._queue: deque[memoryview] = deque()
        self.queued_bytes = 0
        self.on_room: Callable[[], None] | None = None
        """Called whenever the peer took bytes, for a sender that holds back while `queued_bytes` is high."""
        self.ended = False
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        loop.reader(read_fd, self._read)

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        """Queues one frame; after the end of the stream it is dropped."""
        self.send_raw(encode(header, data))

    def send_raw(self, data: bytes) -> None:
        """Queues bytes that are already frames."""
        if self.ended:
            return
        self._queue.append(memoryview(data))
        self.queued_bytes += len(data)
        if len(self._queue) == 1:
            self._write()
        if self.queued_bytes > self._max_queued_bytes:
            self._end("the peer does not read")

    def flush(self) -> None:
        """Writes what the peer takes right now."""
        self._write()

    def close(self) -> None:
        """Stops watching both descriptors; closing them is the owner's part. Idempotent."""
        self.ended = True
        self._queue.clear()
        self._loop.forget(self._read_fd)
        self._loop.forget(self._write_fd)

    def _read(self) -> None:
        try:
            chunk = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"read failed: {error}")
            return
        if not chunk:
            self._end("end of stream")
            return
        try:
            frames = self._decoder.feed(chunk)
        except FrameError as error:
            self._end(str(error))
            return
        for frame in frames:
            if self.ended:
                return
            self._on_frame(frame)

    def _write(self) -> None:
        while self._queue:
            try:
                count = os.write(self._write_fd, self._queue[0])
            except BlockingIOError:
                break
            except OSError as error:
                self._end(f"write failed: {error}")
                return
            self.queued_bytes -= count
            if count == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][count:]
        self._loop.writer(self._write_fd, self._room if self._queue else None)

    def _room(self) -> None:
        self._write()
        if self.on_room is not None and not self.ended:
            self.on_room()

    def _end(self, reason: str) -> None:
        if not self.ended:
            self.close()
            self._loop.after(0.0, lambda: self._on_end(reason))
