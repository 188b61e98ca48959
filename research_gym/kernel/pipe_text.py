"""`sys.stdout` and `sys.stderr` of a forkable kernel: unbuffered text into the pipe that descriptors 1 and 2 are.

Nothing is held back in the process, so what Python prints, what `os.write` writes and what a command prints keep
their order, and a fork (of the kernel, or of a worker that the agent's code starts) duplicates no text.
"""

from __future__ import annotations

import io
import os
import select
from typing import Literal

from research_gym.kernel.marks import numbered_mark, stream_mark

_ATOMIC_BYTES = 4096
"""PIPE_BUF on Linux: a write of at most this many bytes is never torn."""


class OutputPipe:
    """The write end of the pipe to the supervisor, and the marks in it."""

    def __init__(self, *, nonce: str, fd: int) -> None:
        self.nonce = nonce
        self.fd = fd
        self._number = 0
        self._err_on, self._err_off = stream_mark(nonce, "stderr"), stream_mark(nonce, "stdout")

    def mark(self) -> int | None:
        """Writes the next numbered mark; `None` if the agent closed the pipe: order is then best effort."""
        self._number += 1
        return self._number if write_all(self.fd, numbered_mark(self.nonce, self._number)) else None

    def renew(self, *, nonce: str, fd: int) -> None:
        """Makes this object, which the streams hold, the pipe of a forked child."""
        self.__init__(nonce=nonce, fd=fd)  # type: ignore[misc]  # the identity must stay, the state must not

    def wrap_stderr(self, data: bytes) -> list[bytes]:
        """Puts the stream marks around error text, in one piece where a pipe write is atomic."""
        if len(data) + len(self._err_on) + len(self._err_off) <= _ATOMIC_BYTES:
            return [self._err_on + data + self._err_off]
        return [self._err_on, data, self._err_off]


class PipeText(io.TextIOBase):
    """A text stream over descriptor 1 or 2. Lone surrogates are written as backslash escapes."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, pipe: OutputPipe, name: Literal["stdout", "stderr"]) -> None:
        self._pipe = pipe
        self._name = name
        self.mode = "w"
        self.buffer = _Bytes(self)

    @property
    def name(self) -> str:
        return f"<{self._name}>"

    def fileno(self) -> int:
        return 1 if self._name == "stdout" else 2

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Writes bytes as they are; a stream whose reader is gone swallows them."""
        if not data:
            return
        if self._name == "stdout":
            write_all(1, data)
            return
        for part in self._pipe.wrap_stderr(data):
            write_all(2, part)

    def flush(self) -> None:
        """Nothing is ever held back."""

    def close(self) -> None:
        """Stays open: a kernel without streams could not say what happened."""

    def set_parent(self, parent: object) -> None:
        """ipykernel's streams have it; text is attributed to cells by the supervisor."""


class _Bytes(io.RawIOBase):
    """The `buffer` that code writing bytes expects."""

    def __init__(self, text: PipeText) -> None:
        self._text = text

    def fileno(self) -> int:
        return self._text.fileno()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]  # any buffer, as RawIOBase has it
        raw = bytes(data)
        self._text.write_bytes(raw)
        return len(raw)

    def close(self) -> None:
        """Stays open, as its text stream does."""


def write_all(fd: int, data: bytes) -> bool:
    """Writes all of it, waiting where the pipe is non-blocking; False if it is closed or has no reader.

    A signal handler that raises (an interrupt) ends it early, as it ends every write.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True
