"""The one selector of pid 1: callbacks for descriptors and for moments of the monotonic clock."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    """A callback that waits for its moment; `cancel` is idempotent and safe after it ran."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Forgets the callback; the moment then passes without effect."""
        self.callback = None


class Loop:
    """Runs callbacks in one thread until `stop`. Callbacks must not block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False

    def reader(self, fd: int, callback: Callback | None) -> None:
        """Calls back whenever `fd` can be read or has ended; `None` stops that."""
        _set(self._readers, fd, callback)
        self._update(fd)

    def writer(self, fd: int, callback: Callback | None) -> None:
        """Calls back whenever `fd` takes bytes; `None` stops that."""
        _set(self._writers, fd, callback)
        self._update(fd)

    def forget(self, fd: int) -> None:
        """Stops both kinds of callbacks of a descriptor that is about to be closed."""
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)
        self._update(fd)

    def after(self, delay_s: float, callback: Callback) -> Timer:
        """Calls back once, `delay_s` seconds from now (0: on the next turn)."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), timer))
        return timer

    def stop(self) -> None:
        """Makes `run` return after the current callback."""
        self._running = False

    def run(self) -> None:
        """Serves callbacks until `stop`."""
        self._running = True
        while self._running:
            wait_s: float | None = None
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
            if self._timers:
                wait_s = max(0.0, self._timers[0][0] - time.monotonic())
            for key, mask in self._selector.select(wait_s):
                fd = key.fd
                if mask & selectors.EVENT_WRITE and fd in self._writers:
                    self._writers[fd]()
                if mask & selectors.EVENT_READ and fd in self._readers:
                    self._readers[fd]()
                if not self._running:
                    return
            now = time.monotonic()
            while self._running and self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if timer.callback is not None:
                    callback, timer.callback = timer.callback, None
                    callback()

    def _update(self, fd: int) -> None:
        mask = (selectors.EVENT_READ if fd in self._readers else 0) | (
            selectors.EVENT_WRITE if fd in self._writers else 0
        )
        known = fd in self._selector.get_map()
        if mask and known:
            self._selector.modify(fd, mask)
        elif mask:
            self._selector.register(fd, mask)
        elif known:
            self._selector.unregister(fd)


def _set(table: dict[int, Callback], fd: int, callback: Callback | None) -> None:
    if callback is None:
        table.pop(fd, None)
    else:
        table[fd] = callback
