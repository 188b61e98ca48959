"""The byte stream to a local sandbox: a socket pair to a process, and the end of what it says on standard error."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_READ_BYTES = 1 << 18
_TAIL_BYTES = 8 << 10
_END_WITHIN_S = 2.0


class LocalStream:
    """Starts a program whose descriptors 0 and 1 are one socket, and is the other end of it.

    The program gets an empty session of its own, no environment but `env`, and nothing else of this process.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cleanup: Callable[[], None] | None = None
    ) -> None:
        """Starts the program.

        Args:
            argv: What to start.
            env: Its whole environment.
            cleanup: Called once after the program has ended, by `close`; must not raise.

        Raises:
            OSError: it did not start.
        """
        self._cleanup = cleanup
        self._owner_pid = os.getpid()
        self._tail = bytearray()
        self._connection, theirs = socket.socketpair()
        self._error_fd, error_end = os.pipe()
        try:
            # Nobody reads it while no request is pending: a full pipe must lose words rather than stop the supervisor.
            os.set_blocking(error_end, False)
            os.set_blocking(self._error_fd, False)
            self._connection.setblocking(False)
            self._process = subprocess.Popen(
                list(argv),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=error_end,
                env=dict(env),
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._connection.close()
            os.close(self._error_fd)
            raise
        finally:
            theirs.close()
            os.close(error_end)

    def fileno(self) -> int:
        """The descriptor to wait on; -1 after `close`."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """Bytes that came; `None` if there are none yet, empty at the end."""
        try:
            return self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            self._drain()
            return None
        except ConnectionError:
            return b""

    def send(self, data: bytes) -> int:
        """Writes what there is room for and says how many bytes that was.

        Raises:
            OSError: the other end is gone.
        """
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Ends the stream and with it the sandbox, waits for the process and kills it if it stays. Idempotent."""
        if self._connection.fileno() < 0:
            return
        mine = os.getpid() == self._owner_pid
        if mine:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # also if a forked child still holds a copy
        self._connection.close()
        if mine:
            self._reap()
            self._drain()
        else:
            self._process.returncode = 0  # somebody else's child: its collection here must neither warn nor wait
        with contextlib.suppress(OSError):
            os.close(self._error_fd)
        if mine and self._cleanup is not None:
            self._cleanup()

    def diagnostics(self) -> str:
        """The end of what the launcher and the supervisor said on standard error, and how they ended."""
        if self._connection.fileno() >= 0:
            code = None
            # The stream may end a moment before the process does.
            until = time.monotonic() + 0.5
            while code is None and time.monotonic() < until and self._stream_ended():
                code = self._process.poll()
                time.sleep(0.01)
            self._drain()
            if code is not None:
                return f"{self._tail.decode('utf-8', 'replace').strip()} (it ended with code {code})".strip()
        return self._tail.decode("utf-8", "replace").strip()

    def _stream_ended(self) -> bool:
        try:
            return self._connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _drain(self) -> None:
        for _ in range(16):
            try:
                chunk = os.read(self._error_fd, 1 << 16)
            except OSError:
                return
            if not chunk:
                return
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]

    def _reap(self) -> None:
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the supervisor dies with its parent, all else with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WITHIN_S)
