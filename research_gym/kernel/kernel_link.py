"""The seam between pid 1 and a kernel of any kind: frames over a socket pair, a way to interrupt, the processes.

A kernel process (the Jupyter driver here, a forked kernel later) speaks these frames on its end of the pair:

    to the kernel    execute {cell, code} · interrupt {}
    from the kernel  ready {pid, interrupt: "signal"|"message"} · failed {message} · gone {}
                     items {items, omitted_bytes, omitted_messages, malformed}
                     finished {cell, status, execution_count, malformed, broken}

Nothing that comes from it is trusted: frames are parsed totally, and death, times and budgets are pid 1's own business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from research_gym.kernel.bootstrap import BOOTSTRAP, bundle
from research_gym.kernel.frame_stream import FrameStream
from research_gym.kernel.frames import Frame
from research_gym.kernel.loop import Loop
from research_gym.kernel.process import Child, Spawner
from research_gym.kernel.procfs import ProcessTable, read_process

_POLL_S = 0.25
_REAP_S = 0.1
_TAIL_BYTES = 4096


class KernelLink:
    """One live kernel process.

    Args:
        child: The process pid 1 started (the driver, or the kernel itself).
        sock: Pid 1's end of the socket pair; the link closes it.
        stderr_fd: Read end of the process's stderr; the link drains it and keeps its last 4 KiB.
        on_frame: Called for each frame, with its header.
        on_death: Called once, with the reason, when the kernel, its process or the stream is gone.
    """

    def __init__(
        self,
        loop: Loop,
        table: ProcessTable,
        *,
        child: Child,
        sock: socket.socket,
        stderr_fd: int,
        on_frame: Callable[[dict[str, Any]], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._table = table
        self._child = child
        self._sock = sock
        self._stderr_fd = stderr_fd
        self._on_death = on_death
        self._pidfd = -1
        self._signal = True
        self._closed = False
        self._stderr = b""
        self.dead = False
        """Whether `on_death` was called."""
        self.pid = 0
        """The kernel's process, once `adopt` has accepted it."""
        self._stream = FrameStream(
            loop,
            read_fd=sock.fileno(),
            write_fd=sock.fileno(),
            on_frame=lambda frame: self._frame(frame, on_frame),
            on_end=self._later,
        )
        os.set_blocking(stderr_fd, False)
        loop.reader(stderr_fd, self._drain)

    @property
    def process_pid(self) -> int:
        """The process that pid 1 started."""
        return self._child.pid

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are the kernel, as opposed to what its cells started."""
        return frozenset((self._child.pid, self.pid)) - {0}

    def send(self, header: dict[str, Any], *, raw: bytes = b"") -> None:
        """Queues a frame for the kernel, after `raw` bytes if there are any."""
        if raw:
            self._stream.send_raw(raw)
        if header:
            self._stream.send(header)

    def adopt(self, pid: int, *, interrupt: str) -> bool:
        """Accepts the process that a `ready` frame named as the kernel, after a look at it; watches it from then on."""
        process = self._table.read().get(pid)
        if process is None or not process.live or (pid != self._child.pid and process.parent != self._child.pid):
            return False
        self.pid = pid
        self._signal = interrupt != "message"
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # an old kernel or seccomp profile: look now and then
            self._poll(process.started_ticks)
        else:
            self._loop.reader(self._pidfd, lambda: self._die("the kernel process ended"))
        return True

    def interrupt(self) -> None:
        """Sends SIGINT to the kernel's process group, then tells its process, which can wake a waiting event loop."""
        if self.pid and self._signal:
            with contextlib.suppress(OSError):
                if os.getpgid(self.pid) == self.pid:
                    os.killpg(self.pid, signal.SIGINT)
                else:
                    os.kill(self.pid, signal.SIGINT)
        self._stream.send({"type": "interrupt"})

    def process_ended(self, pid: int) -> None:
        """Told by the reaper about each process that ended."""
        if pid == self._child.pid:
            self._drain()
            self._die(self._child.read_error() or "the kernel's process ended")

    def stderr_tail(self) -> str:
        """The last that the process and its kernel wrote to stderr."""
        return self._stderr.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Closes every descriptor of the link; kills nothing. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        for fd in (self._stderr_fd, self._pidfd):
            if fd >= 0:
                self._loop.forget(fd)
                os.close(fd)
        self._sock.close()

    def _frame(self, frame: Frame, on_frame: Callable[[dict[str, Any]], None]) -> None:
        if not self._closed:
            on_frame(frame.header)

    def _drain(self) -> None:
        try:
            data = os.read(self._stderr_fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.forget(self._stderr_fd)
        self._stderr = (self._stderr + data)[-_TAIL_BYTES:]

    def _later(self, reason: str) -> None:
        """The stream ended: the reaper, which knows why, speaks first if the process ended too."""
        self._loop.after(_REAP_S, lambda: self._die(reason))

    def _poll(self, started_ticks: int) -> None:
        if self._closed:
            return
        process = read_process(self.pid)
        if process is None or not process.live or process.started_ticks != started_ticks:
            self._die("the kernel process ended")
        else:
            self._loop.after(_POLL_S, lambda: self._poll(started_ticks))

    def _die(self, reason: str) -> None:
        if self._pidfd >= 0:
            self._loop.forget(self._pidfd)
        if not self.dead and not self._closed:
            self.dead = True
            self._on_death(reason)


def start_jupyter(
    loop: Loop,
    table: ProcessTable,
    spawner: Spawner,
    *,
    config: Mapping[str, Any],
    kernelspec: str,
    sources: Mapping[str, str],
    on_frame: Callable[[dict[str, Any]], None],
    on_death: Callable[[str], None],
) -> KernelLink:
    """Starts the Jupyter driver as the agent and returns the link to it; `ready` or `failed` comes as a frame.

    Raises:
        OSError: no process or socket could be made.
    """
    ours, theirs = socket.socketpair()
    stderr_fd, stderr_end = os.pipe2(os.O_CLOEXEC)
    null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        child = spawner.spawn(
            [config["python"], "-I", "-c", BOOTSTRAP],
            env=config["agent_env"],
            cwd=config["workdir"],
            stdin=theirs.fileno(),
            stdout=null_fd,
            stderr=stderr_end,
        )
    except OSError:
        ours.close()
        os.close(stderr_fd)
        raise
    finally:
        theirs.close()
        os.close(stderr_end)
        os.close(null_fd)
    link = KernelLink(loop, table, child=child, sock=ours, stderr_fd=stderr_fd, on_frame=on_frame, on_death=on_death)
    driver = {"kernelspec": kernelspec, "output_bytes": int(config["limits"]["output_bytes"])}
    link.send({}, raw=bundle(driver, entry="research_gym.kernel.jupyter_kernel", sources=sources))
    return link
