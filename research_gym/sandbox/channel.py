"""Requests and answers over one stream: sends frames, sorts what comes back, and knows when the other side is lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from research_gym.errors import SandboxLost
from research_gym.kernel.frames import Decoder, Frame, FrameError, encode
from research_gym.sandbox.base import Stream
from research_gym.sandbox.registry import Holding
from research_gym.sandbox.waiting import Steps, Wait

_ROUNDS = 64
"""Reads in a row before other work gets its turn: a flood must not hold the caller."""
SLACK_BYTES = 8 << 20
"""What an answer may weigh beyond its stated size: JSON around the data, and late frames of earlier requests."""


class Refusal(Exception):
    """The supervisor answered a request with `error`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Channel:
    """One request at a time. Work that is given up leaves its request owed: late answers are known and dropped."""

    def __init__(self, stream: Stream, *, what: str) -> None:
        self._stream = stream
        self._holding = Holding(stream, what=what)
        self._decoder = Decoder()
        self._outbox: deque[memoryview] = deque()
        self._inbox: deque[Frame] = deque()
        self._current: int | None = None
        self._last_id = 0
        self._received_bytes = 0
        self._lost = ""
        self.owed: dict[int, str] = {}
        """Requests that were given up and are not answered yet: id -> type."""

    @property
    def what(self) -> str:
        """Name of the sandbox, for messages."""
        return self._holding.what

    def fileno(self) -> int:
        """The descriptor to wait on.

        Raises:
            ForkedProcessError: in a forked child.
        """
        self._holding.check()
        return self._stream.fileno()

    def watch(self, owner: object) -> None:
        """Closes the stream with a `ResourceWarning` when the owner is collected unclosed."""
        self._holding.watch(owner)

    def close(self) -> None:
        """Ends the stream; whatever is asked afterwards raises `SandboxLost`. Idempotent."""
        self._lost = self._lost or f"{self.what} was closed"
        self._holding.close()
        self._outbox.clear()
        self._inbox.clear()

    def lose(self, reason: str) -> SandboxLost:
        """Marks the other side as lost for good; returns the error to raise."""
        if not self._lost:
            said = self._stream.diagnostics().strip()
            self._lost = f"{self.what}: {reason}" + (f"; it said: {said[-2000:]}" if said else "; it said nothing")
        return SandboxLost(self._lost)

    def check(self) -> None:
        """Refuses use of what is gone.

        Raises:
            ForkedProcessError: in a forked child.
            SandboxLost: closed, or lost before.
        """
        self._holding.check()
        if self._lost:
            raise SandboxLost(self._lost)

    def greet(self, program: bytes, *, deadline: float) -> Steps[dict[str, Any]]:
        """Sends the program that will speak the protocol and waits for its `hello`.

        Raises:
            SandboxLost: it ended, or did not greet before the deadline (`time.monotonic()`).
        """
        self.check()
        self._outbox.append(memoryview(program))
        return (yield from self._answer(0, ends=("hello",), deadline=deadline, max_bytes=SLACK_BYTES, on_frame=None))

    def request(
        self,
        header: Mapping[str, Any],
        *,
        timeout_s: float,
        body: Iterable[bytes] = (),
        max_bytes: int = 0,
        on_frame: Callable[[Frame], None] | None = None,
    ) -> Steps[dict[str, Any]]:
        """Asks, and returns the terminal frame.

        Args:
            header: The request without its id.
            timeout_s: The host's patience; a sandbox that says nothing for so long is lost, whatever it may do later.
            body: Data that follows in `chunk` frames.
            max_bytes: What the answer may weigh; a sandbox that sends more is lost.
            on_frame: Takes each frame before the terminal one.

        Raises:
            Refusal: the answer was `error`.
            SandboxLost: end of stream, broken frames, too much, or no answer in time.
            FrameError: the request does not fit a frame; nothing was sent.
        """
        self.check()
        if self._current is not None:
            raise RuntimeError(f"{self.what}: {header.get('type')!r} was asked while another request is being answered")
        ident = self._last_id + 1
        frames = [encode({**header, "id": ident})]
        if body:
            chunks = list(body)
            about = {"id": ident, "kernel": header.get("kernel", ""), "type": "chunk"}
            frames += [encode({**about, "last": chunk is chunks[-1]}, chunk) for chunk in chunks]
        self._last_id = ident
        self._outbox.extend(memoryview(frame) for frame in frames)
        self.owed[ident] = str(header.get("type"))
        return (
            yield from self._answer(
                ident,
                ends=("done", "error"),
                deadline=time.monotonic() + timeout_s,
                max_bytes=max_bytes,
                on_frame=on_frame,
            )
        )

    def settle(self, *, timeout_s: float) -> Steps[None]:
        """Waits until everything owed is answered.

        Raises:
            SandboxLost: it is not, in time.
        """
        deadline = time.monotonic() + timeout_s
        while self.owed:
            more = self._exchange()
            if self._lost:
                raise SandboxLost(self._lost)
            if time.monotonic() >= deadline:
                raise self.lose(f"no answer to {', '.join(self.owed.values())} within {timeout_s:g} s")
            if self.owed:
                yield self._wait(deadline, more=more)

    def _answer(
        self,
        ident: int,
        *,
        ends: tuple[str, ...],
        deadline: float,
        max_bytes: int,
        on_frame: Callable[[Frame], None] | None,
    ) -> Steps[dict[str, Any]]:
        began = time.monotonic()
        self._current = ident
        self._received_bytes = 0
        try:
            while True:
                more = self._exchange()
                while self._inbox:
                    frame = self._inbox.popleft()
                    kind = frame.header.get("type")
                    if kind == "error" and kind in ends:
                        raise Refusal(_text(frame.header.get("code")), _text(frame.header.get("message")))
                    if kind in ends:
                        return frame.header
                    if on_frame is None:
                        raise self.lose(f"expected {' or '.join(ends)}, found a frame {kind!r:.40}")
                    on_frame(frame)
                self.check()
                if self._received_bytes > max_bytes + SLACK_BYTES:
                    raise self.lose(f"sent {self._received_bytes} bytes in answer to a request that allows {max_bytes}")
                if time.monotonic() >= deadline:
                    raise self.lose(f"expected {' or '.join(ends)}, found no answer within {deadline - began:.3g} s")
                yield self._wait(deadline, more=more)
        finally:
            self._current = None
            self._inbox.clear()

    def _wait(self, deadline: float, *, more: bool) -> Wait:
        fd = self._stream.fileno()
        if more or fd < 0:
            return Wait(until=0.0)
        return Wait(reads=(fd,), writes=(fd,) if self._outbox else (), until=deadline)

    def _exchange(self) -> bool:
        """Sends and receives what there is room and data for; says whether there may be more to read at once."""
        self._holding.check()
        try:
            while self._outbox:
                sent = self._stream.send(bytes(self._outbox[0][: 1 << 18]))
                if sent == 0:
                    break
                self._outbox[0] = self._outbox[0][sent:]
                if not self._outbox[0]:
                    self._outbox.popleft()
        except OSError:
            self._outbox.clear()  # the end of the stream will be read; what came before it still counts
        for _ in range(_ROUNDS):
            if self._lost:
                return False
            try:
                chunk = self._stream.receive()
            except OSError as error:
                self.lose(f"the stream broke: {error}")
                return False
            if chunk is None:
                return False
            if not chunk:
                self.lose("the stream ended")
                return False
            self._received_bytes += len(chunk)
            try:
                frames = self._decoder.feed(chunk)
            except FrameError as error:
                self.lose(f"broke the protocol: {error}")
                return False
            for frame in frames:
                self._sort(frame)
        return True

    def _sort(self, frame: Frame) -> None:
        ident = frame.header.get("id")
        if isinstance(ident, bool) or not isinstance(ident, int) or not 0 <= ident <= self._last_id:
            self.lose(f"broke the protocol: a frame for request {ident!r:.40}, which was never made")
            return
        if frame.header.get("type") in ("done", "error"):
            self.owed.pop(ident, None)
        if ident == self._current:
            self._inbox.append(frame)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
