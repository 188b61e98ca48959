"""The live streams of this process: closed at its exit, dropped in forked children, missed when nobody closed them."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref

from research_gym.errors import ForkedProcessError
from research_gym.sandbox.base import Stream


class Holding:
    """One live stream. Whoever uses the stream asks `check` first; whoever is done with it calls `close`."""

    def __init__(self, stream: Stream, *, what: str) -> None:
        """Starts to look after a stream.

        Args:
            stream: Closed at exit unless it was closed before.
            what: What it is, for messages: "docker sandbox 3f2a".
        """
        self.stream = stream
        self.what = what
        self._owner_pid = os.getpid()
        self._open = True
        self._forked = False
        _live[id(self)] = self

    @property
    def open(self) -> bool:
        """Not closed, and not in a forked child."""
        return self._open

    def check(self) -> None:
        """Refuses use in a forked child.

        Raises:
            ForkedProcessError: the stream was opened before `os.fork()` in another process.
        """
        if self._forked or self._owner_pid != os.getpid():
            raise ForkedProcessError(
                f"{self.what} was opened in process {self._owner_pid} and belongs to it, but is used in its forked "
                f"child {os.getpid()}; open environments in the process that uses them (for workers: 'spawn')"
            )

    def close(self) -> None:
        """Closes the stream, once. In a forked child it was dropped at the fork already."""
        _live.pop(id(self), None)
        if self._open:
            self._open = False
            self.stream.close()

    def watch(self, owner: object) -> None:
        """Closes the stream, with a `ResourceWarning`, should the owner be collected without having closed it."""
        finalizer = weakref.finalize(owner, _abandon, self)
        finalizer.atexit = False  # at exit the registry closes everything itself, without a word

    def drop(self) -> None:
        """In a forked child: gives up the descriptor and marks the stream unusable."""
        self._forked = True
        if self._open:
            self._open = False
            self.stream.close()


_live: dict[int, Holding] = {}


def live() -> list[Holding]:
    """The streams open in this process."""
    return list(_live.values())


def close_all() -> None:
    """Closes every stream. Runs at exit; synchronous, so that nothing outlives the process that opened it."""
    for holding in live():
        holding.close()


def _abandon(holding: Holding) -> None:
    if holding.open and holding._owner_pid == os.getpid():
        warnings.warn(
            f"{holding.what} was never closed; call close() or use a with statement", ResourceWarning, stacklevel=2
        )
        holding.close()


def _drop_all() -> None:
    holdings = live()
    _live.clear()
    for holding in holdings:
        holding.drop()


os.register_at_fork(after_in_child=_drop_all)
atexit.register(close_all)
