"""Work that waits without blocking: generators that yield what they wait for, and the loop that drives one of them.

Everything that takes time in this package (starting a container, running a cell, grading) is a generator of `Wait`s. A
single environment drives one with `drive`; a vector environment puts the waits of N of them into one selector; an
async shell registers the same descriptors with its event loop. No event loop of our own, no thread per environment, no
signal.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Wait:
    """Resume me when one of these descriptors is ready, or at `until`, whichever comes first.

    Guarantees nothing about why it was resumed: the generator looks for itself.
    """

    reads: tuple[int, ...] = ()
    """Descriptors to wait on for input (or end of stream)."""
    writes: tuple[int, ...] = ()
    """Descriptors to wait on for room to write."""
    until: float | None = None
    """`time.monotonic()` deadline; `None` waits for ever, which only makes sense with a descriptor."""


Steps: TypeAlias = Generator[Wait, None, T]
"""A piece of work: yields `Wait`s, returns its result."""


def drive(steps: Steps[T]) -> T:
    """Runs one piece of work to its end, blocking the calling thread; its exceptions come out unchanged.

    Example:
        >>> def nap():
        ...     yield Wait(until=time.monotonic() + 0.01)
        ...     return "rested"
        >>> drive(nap())
        'rested'
    """
    try:
        while True:
            block(next(steps))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        steps.close()
        raise


def block(wait: Wait) -> None:
    """Blocks until the wait is over. Uses `poll`, which has no limit on descriptor numbers."""
    poller = select.poll()
    masks: dict[int, int] = {}
    for fd in wait.reads:
        masks[fd] = masks.get(fd, 0) | select.POLLIN
    for fd in wait.writes:
        masks[fd] = masks.get(fd, 0) | select.POLLOUT
    for fd, mask in masks.items():
        poller.register(fd, mask)
    if wait.until is None:
        poller.poll()
    else:
        poller.poll(max(0.0, (wait.until - time.monotonic()) * 1000.0))
