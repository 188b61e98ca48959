"""A Jupyter Python kernel in one thread, made to be forked between cells.

It is ipykernel's own `IPythonKernel` and shell (magics, rich display, matplotlib inline, top-level await, `%%bash`,
`!`) without ZeroMQ and without helper threads. Pid 1 starts it with the link (one end of a socket pair) as descriptor
0 and the write end of one pipe as descriptors 1 and 2. It never trusts this process: output is text, status is this
process's word.

Frames, as on every kernel link, plus `fork`:
    to the kernel    execute {cell, code} · interrupt {} (SIGINT did it) · fork {id, children: [{name, nonce, roots:
    [path],
                     enter: [kind], seed: int | null, moved: {old: new}}]} with the descriptors [link, pipe, namespace
                     of each kind to join, in order] for each child
    from the kernel  ready {pid, interrupt} · items {items, mark} · finished {cell, status, execution_count, mark} ·
                     forked {id, pids} · refused {id, what, message}
A child says `ready {name, lost}` on its own link, or `failed {message}` and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import fcntl
import importlib
import logging
import os
import signal
import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from tornado.ioloop import IOLoop
from traitlets.config import Config

from research_gym.kernel import fork_child, shell_hook
from research_gym.kernel.fork_link import KernelLink, LinkSession
from research_gym.kernel.fork_refusal import Refusal
from research_gym.kernel.frames import FrameError
from research_gym.kernel.items import error
from research_gym.kernel.pipe_text import OutputPipe, PipeText

INLINE_BACKEND = "module://matplotlib_inline.backend_inline"


class OneThreadKernel(IPythonKernel):  # type: ignore[misc]  # ipykernel is untyped
    """`IPythonKernel` without subshells and debugger: both need threads."""

    @property
    def _supports_kernel_subshells(self) -> bool:
        return False


class ForkKernel:
    """The kernel, its link and its loop. One per process; a forked child goes on with the same object."""

    def __init__(self, *, link_fd: int, nonce: str) -> None:
        self.link = KernelLink(link_fd)
        self.pipe = OutputPipe(nonce=nonce, fd=_private_copy(1))
        sys.stdout, sys.stderr = PipeText(self.pipe, "stdout"), PipeText(self.pipe, "stderr")
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.session = LinkSession(key=b"", config=Config())
        self.session.link, self.session.pipe = self.link, self.pipe
        self.kernel = self._make_kernel()
        self._libc = ctypes.CDLL(None)
        self._cells = asyncio.Lock()
        self._context = contextvars.copy_context()
        self._running = False
        self._closing = False
        self._fork_request: dict[str, Any] | None = None

    def _make_kernel(self) -> OneThreadKernel:
        config = Config()
        config.HistoryManager.enabled = False  # its writer is a thread, its database a shared file
        config.Completer.use_jedi = False
        kernel: OneThreadKernel = OneThreadKernel.instance(
            config=config,
            session=self.session,
            iopub_socket="iopub",
            shell_stream=None,
            user_ns=None,
            profile_dir=None,
            log=logging.getLogger("research_gym.kernel"),
        )
        kernel.shell_channel_thread = SimpleNamespace(parent_thread=threading.main_thread())
        shell_hook.install(kernel.shell)
        kernel.io_loop = IOLoop.current(instance=False) or IOLoop(asyncio_loop=self.loop, make_current=False)
        return kernel

    def run(self) -> None:
        """Serves until the link ends or a cell asks to exit. A fork happens between two rounds of the loop."""
        self.listen()
        self.link.send({"type": "ready", "pid": os.getpid(), "interrupt": "signal"})
        while not self._closing:
            self.loop.run_forever()
            if self._fork_request is None:
                return
            request, self._fork_request = self._fork_request, None
            fork_child.fork_children(self, request)

    def listen(self) -> None:
        """Watches the link and takes interrupts; again in each forked child, on its own link."""
        self.loop.add_reader(self.link.fileno(), self._read)
        signal.signal(signal.SIGINT, self._interrupt)
        signal.set_wakeup_fd(self.loop._csock.fileno())  # type: ignore[attr-defined]  # else a waiting `await` sleeps on

    def renew_locks(self) -> None:
        """Replaces what may be held by nobody in a forked child."""
        self._cells = asyncio.Lock()

    def flush(self) -> None:
        """Brings text that C libraries hold back into the pipe."""
        self._libc.fflush(None)

    def _read(self) -> None:
        try:
            frames = self.link.receive()
        except FrameError:
            frames = None
        if frames is None:
            self._closing = True
            self.loop.stop()
            return
        for frame in frames:
            kind = frame.header.get("type")
            if kind == "execute":
                self.loop.create_task(self._execute(frame.header), context=self._context)
            elif kind == "fork":
                self._fork(frame.header)

    def _fork(self, request: dict[str, Any]) -> None:
        refusal = Refusal("cell", "a cell is still running") if self._cells.locked() else fork_child.refusal(self)
        if refusal is None:
            self._fork_request = request
            self.loop.stop()
            return
        for _ in range(min(len(self.link.fds), fork_child.count_fds(request))):
            os.close(self.link.fds.popleft())
        self.link.send({"type": "refused", "id": request["id"], "what": refusal.what, "message": refusal.message})

    async def _execute(self, request: dict[str, Any]) -> None:
        async with self._cells:
            kernel = self.kernel
            message = self.session.msg("execute_request", {"code": request["code"]})
            kernel.set_parent([], message, channel="shell")
            status = "error"
            try:
                self._running = True
                reply = await kernel.do_execute(request["code"], silent=False, store_history=True, user_expressions={})
                status = "ok" if reply["status"] == "ok" else "error"
            except (KeyboardInterrupt, asyncio.CancelledError) as interrupt:  # raised outside the user's own frames
                self._say(interrupt)
            finally:
                self._running = False
                signal.signal(signal.SIGINT, self._interrupt)
                signal.set_wakeup_fd(self.loop._csock.fileno())  # type: ignore[attr-defined]
            self.flush()
            count = kernel.shell.execution_count - 1
            done = {"type": "finished", "cell": request["cell"], "status": status, "execution_count": count}
            self.link.send({**done, "mark": self.pipe.mark()})
            if kernel.shell.exit_now:
                self._closing = True
                self.loop.stop()

    def _say(self, interrupt: BaseException) -> None:
        name = type(interrupt).__name__
        self.link.send_items([error(name, str(interrupt), [name])], mark=self.pipe.mark())

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._running:
            raise KeyboardInterrupt


def _private_copy(fd: int) -> int:
    """A close-on-exec copy out of the way of the agent's `os.dup2` and of the standard descriptors."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)


def main(config: dict[str, Any]) -> None:
    """Entry of the kernel process, in the directory and with the environment of the agent.

    Args:
        config: `nonce` of the output pipe; `imports`, the modules to import before `ready` (optional).
    """
    link_fd = _private_copy(0)
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)
    os.environ.setdefault("MPLBACKEND", INLINE_BACKEND)
    os.environ["PYTHONUNBUFFERED"] = "1"
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # a file of the agent must not stand for a module of the kernel; IPython puts it back
    kernel = ForkKernel(link_fd=link_fd, nonce=str(config["nonce"]))
    for name in config.get("imports", ()):
        with contextlib.suppress(ImportError):  # a stack that is not installed shows in the cell that needs it
            importlib.import_module(name)
    kernel.run()
    os._exit(0)
