"""The process behind pid 1's kernel link: runs a stock Jupyter kernel, translates between frames and messages.

It runs as the agent, so pid 1 believes nothing it says but the text. It drains the kernel's sockets without pause (a
reader that stops loses messages for ever) and never polls with a sleep.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from research_gym.kernel import items as output_items
from research_gym.kernel.frames import Decoder, encode
from research_gym.kernel.items import Item
from research_gym.kernel.jupyter_process import StartError, find_program, launch, private_folder
from research_gym.kernel.jupyter_wire import Malformed, Message, Wire, items_of

try:
    zmq: Any = importlib.import_module("zmq")  # its stubs re-export nothing that mypy can follow
except ImportError:
    zmq = None

_LINK_FD = 0
_SETTLE_S = 3.0
"""Silence on iopub after only one of reply and idle came, before the cell counts as over and the kernel as broken."""
_EXIT_WAIT_S = 5.0
_RETRY_S = 0.2
_TURN_MESSAGES = 256
_MAX_QUEUED_BYTES = 16 << 20


@dataclass
class Cell:
    """The execute request under way."""

    number: int
    code: str
    message_id: str = ""
    reply: dict[str, Any] | None = None
    idle: bool = False
    reissued: bool = False
    exit_by: float = 0.0
    quiet_since: float = 0.0


@dataclass
class Report:
    """What the next `items` frame will say."""

    items: list[Item] = field(default_factory=list)
    omitted_bytes: int = 0
    omitted_messages: int = 0
    malformed: int = 0


class Driver:
    """One kernel, one link."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._max_bytes = int(config["output_bytes"])
        self._decoder = Decoder()
        self._queue = bytearray()
        self._cell: Cell | None = None
        self._report = Report()
        self._ready = False
        self._heard = False
        self._program = find_program(str(config["kernelspec"]))
        if zmq is None:
            raise StartError(f"pyzmq is missing from this image or environment: {sys.executable} cannot import zmq")
        self._folder = private_folder()
        key = secrets.token_hex(16)
        self._process = launch(self._program, folder=self._folder, key=key)
        self._wire = Wire(key)
        self._context = zmq.Context(io_threads=1)
        self._shell = self._connect(zmq.DEALER, 1)
        self._iopub = self._connect(zmq.SUB, 2)
        self._control = self._connect(zmq.DEALER, 4)
        self._exit_fd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else -1
        os.set_blocking(_LINK_FD, False)
        self._poller = zmq.Poller()
        for socket in (self._shell, self._iopub, self._control):
            self._poller.register(socket, zmq.POLLIN)
        if self._exit_fd >= 0:
            self._poller.register(self._exit_fd, zmq.POLLIN)
        self._poller.register(_LINK_FD, zmq.POLLIN)

    def _connect(self, kind: int, port: int) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(
            zmq.RCVHWM, 0
        )  # the default drops messages of a fast kernel, among them the one that ends a cell
        socket.setsockopt(zmq.RECONNECT_IVL, 5)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"ipc://{self._folder}/k-{port}")
        return socket

    def _alive(self) -> bool:
        return self._process.poll() is None

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Waits until the kernel answers and its output arrives, then runs the silent start cell.

        Subscribing takes effect late: before some message has come through iopub, the end of a cell could be lost.
        """
        answered = False
        while not (answered and self._heard):
            self._shell.send_multipart(self._wire.pack("kernel_info_request", {})[1])
            end = time.monotonic() + _RETRY_S
            while time.monotonic() < end and not (answered and self._heard):
                if not self._alive():
                    raise StartError(f"the kernel ended with status {self._process.returncode} before it answered")
                self._poller.poll(max(1, int((end - time.monotonic()) * 1000)))
                for message in self._receive(self._shell):
                    answered = answered or message.type == "kernel_info_reply"
                for _ in self._receive(self._iopub):
                    self._heard = True
                if not self._read_link():
                    return
        if self._program.is_python:
            self._begin(Cell(-1, _start_cell()), silent=True)
        else:
            self._announce()

    def _announce(self) -> None:
        self._ready = True
        self._report = Report()
        # Everything is connected: nobody needs the names of the sockets or the key any more.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._send({"type": "ready", "pid": self._process.pid, "interrupt": self._program.interrupt_mode})

    # -- the loop -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Translates until the kernel or the link ends."""
        while True:
            events = dict(self._poller.poll(self._wait_ms()))
            dead = not self._alive() if self._exit_fd < 0 or self._exit_fd in events else False
            if _LINK_FD in events and not self._read_link():
                return
            for _ in self._receive(self._control):
                pass
            more = True
            while more:
                more = dead and self._iopub.poll(50) != 0
                for message in self._receive(self._iopub):
                    self._on_iopub(message)
            for message in self._receive(self._shell):
                self._on_shell(message)
            self._check_end()
            self._flush_report()
            if dead:
                self._process.wait()
                self._send({"type": "gone"})
                os.set_blocking(_LINK_FD, True)
                self._write()
                return
            self._write()

    def _wait_ms(self) -> int:
        cell = self._cell
        if self._exit_fd < 0:
            return 200
        if cell is None or (cell.reply is None and not cell.idle):
            return -1
        end = cell.exit_by or cell.quiet_since + _SETTLE_S
        return max(1, int((end - time.monotonic()) * 1000) + 1)

    def _receive(self, socket: Any) -> Iterator[Message]:
        for _ in range(_TURN_MESSAGES):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield self._wire.unpack(parts)
            except Malformed:
                self._report.malformed += 1

    def _read_link(self) -> bool:
        try:
            data = os.read(_LINK_FD, 1 << 18)
        except BlockingIOError:
            return True
        if not data:
            return False
        for frame in self._decoder.feed(data):
            header = frame.header
            if header.get("type") == "execute":
                self._begin(Cell(header["cell"], header["code"]))
            elif header.get("type") == "interrupt":
                self._interrupt()
        return True

    # -- cells --------------------------------------------------------------------------------------------------------

    def _begin(self, cell: Cell, *, silent: bool = False) -> None:
        content = {
            "code": cell.code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        cell.message_id, parts = self._wire.pack("execute_request", content)
        self._cell = cell
        self._shell.send_multipart(parts)

    def _interrupt(self) -> None:
        if self._program.interrupt_mode == "message":
            self._control.send_multipart(self._wire.pack("interrupt_request", {})[1])
        # A kernel that waits in its event loop notices the interrupt only when some request wakes it.
        self._shell.send_multipart(self._wire.pack("kernel_info_request", {})[1])

    def _on_iopub(self, message: Message) -> None:
        cell = self._cell
        own = cell is not None and message.parent == cell.message_id
        if cell is not None:
            cell.quiet_since = time.monotonic()
            if own and message.type == "status" and message.content.get("execution_state") == "idle":
                cell.idle = True
        if not self._ready:
            return
        try:
            found, omitted = items_of(message, max_bytes=self._max_bytes)
        except Malformed:
            self._report.malformed += 1
            return
        self._report.omitted_bytes += omitted
        for item in found:
            if not own:
                item["late"] = True
            if not output_items.merge(self._report.items, item):
                self._report.items.append(item)

    def _on_shell(self, message: Message) -> None:
        cell = self._cell
        if cell is None or message.type != "execute_reply" or message.parent != cell.message_id:
            return
        if message.content.get("status") == "aborted" and not cell.reissued:
            # The kernel aborts what was queued when an interrupt or an error struck; that was not this cell's fault.
            cell.reissued, cell.idle = True, False
            self._begin(cell)
            return
        cell.reply = message.content
        cell.quiet_since = time.monotonic()
        payload = message.content.get("payload")
        if isinstance(payload, list) and any(_asks_exit(entry) for entry in payload):
            cell.exit_by = time.monotonic() + _EXIT_WAIT_S

    def _check_end(self) -> None:
        cell = self._cell
        if cell is None or (cell.reply is None and not cell.idle):
            return
        now = time.monotonic()
        complete = cell.reply is not None and cell.idle
        if cell.exit_by:
            if now < cell.exit_by:
                return  # `exit` was called: the kernel is about to end, and that is how this cell ends
        elif not complete and now < cell.quiet_since + _SETTLE_S:
            return
        self._cell = None
        if not self._ready:
            self._announce()
            return
        self._flush_report()
        reply = cell.reply or {}
        self._send(
            {
                "type": "finished",
                "cell": cell.number,
                "status": "ok" if reply.get("status") == "ok" else "error",
                "execution_count": output_items.count(reply.get("execution_count")),
                "broken": not complete,
            }
        )

    # -- the link -----------------------------------------------------------------------------------------------------

    def _flush_report(self) -> None:
        report, self._report = self._report, Report()
        if len(self._queue) > _MAX_QUEUED_BYTES:
            report.omitted_bytes += sum(map(output_items.item_bytes, report.items))
            report.omitted_messages += len(report.items)
            report.items = []
        counts = {
            "omitted_bytes": report.omitted_bytes,
            "omitted_messages": report.omitted_messages,
            "malformed": report.malformed,
        }
        for group in output_items.packs(report.items):
            self._send({"type": "items", "items": group, **counts})
            counts = {}
        if any(counts.values()):
            self._send({"type": "items", "items": [], **counts})

    def _send(self, header: dict[str, Any]) -> None:
        self._queue += encode(header)

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._queue:
                del self._queue[: os.write(_LINK_FD, self._queue)]
        self._poller.modify(_LINK_FD, zmq.POLLIN | (zmq.POLLOUT if self._queue else 0))

    def close(self) -> None:
        """Ends the kernel and removes the private folder."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def _start_cell() -> str:
    """The silent first cell: runs the hook's source in a namespace of its own."""
    source = sys.modules["research_gym.kernel"].__dict__.get("sources", {}).get("research_gym.kernel.shell_hook")
    if source is None:
        from research_gym.kernel import shell_hook

        source = inspect.getsource(shell_hook)
    return (
        "def _research_gym_start(shell):\n"
        "    names = {'__name__': 'research_gym_shell_hook'}\n"
        f"    exec(compile({source!r}, '<research_gym shell hook>', 'exec'), names)\n"
        "    names['install'](shell)\n"
        "_research_gym_start(get_ipython())\n"
        "del _research_gym_start\n"
    )


def _asks_exit(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("source") == "ask_exit" and not entry.get("keepkernel")


def main(config: dict[str, Any]) -> None:
    """Entry of the bootstrap: serves until the kernel or the link ends."""
    try:
        driver = Driver(config)
    except StartError as error:
        _fail(str(error))
        return
    try:
        driver.start()
        driver.serve()
    except StartError as error:
        _fail(str(error))
    finally:
        driver.close()


def _fail(message: str) -> None:
    os.set_blocking(_LINK_FD, True)
    data = encode({"type": "failed", "message": message})
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(_LINK_FD, data) :]
