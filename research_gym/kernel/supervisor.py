"""Pid 1 of a sandbox: the only program the host talks to. Standard library, one thread, one selector, never blocks.

It owns every clock and budget, starts kernels and commands as the unprivileged agent, reaps everything, and takes the
whole sandbox down at the end of its input, at `life_s` and on `close`. Nothing the agent's processes say is believed
beyond its text.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from research_gym.kernel import requests
from research_gym.kernel.command import Command
from research_gym.kernel.files import Files, Reading, Refused, Writing
from research_gym.kernel.frame_stream import FrameStream
from research_gym.kernel.frames import Frame, FrameError
from research_gym.kernel.kernel_link import KernelLink, start_jupyter
from research_gym.kernel.killing import continue_all, kill_everything, stop_chosen
from research_gym.kernel.loop import Loop
from research_gym.kernel.process import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, Spawner, prctl
from research_gym.kernel.procfs import Process, ProcessTable
from research_gym.kernel.requests import BadRequest
from research_gym.kernel.slot import KernelSlot

_READ_AHEAD_BYTES = 2 << 20
_MAX_WRITINGS = 16


class Supervisor:
    """Serves one host over descriptors 0 and 1 until there is no reason to live."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._limits: dict[str, Any] = config["limits"]
        self._isolated = bool(config["isolated"])
        self._loop = Loop()
        self._spawner = Spawner(config)
        self._table = ProcessTable(isolated=self._isolated)
        self._born = time.monotonic()
        user = (self._spawner.uid, self._spawner.gid) if self._spawner.changes_user else None
        roots = config.get("writable_roots") or [config["workdir"], "/tmp"]
        self._files = Files(workdir=config["workdir"], writable_roots=roots, user=user)
        self._slots: dict[str, KernelSlot] = {}
        self._commands: list[Command] = []
        self._writings: dict[int, Writing] = {}
        self._readings: dict[int, tuple[str, Reading]] = {}
        self._frozen = False
        self._sources: dict[str, str] = getattr(sys.modules["research_gym.kernel"], "sources", {})
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "execute": self._execute,
            "wait": self._wait,
            "interrupt": self._interrupt,
            "write_file": self._write_file,
            "read_file": self._read_file,
            "run": self._run,
            "stat": self._stat,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "close": self._close,
        }
        self._host = FrameStream(
            self._loop, read_fd=0, write_fd=1, on_frame=self._request, on_end=lambda reason: self._loop.stop()
        )
        self._host.on_room = self._pump

    def serve(self) -> None:
        """Runs until the end of the input, `close`, SIGTERM or `life_s`, then kills everything."""
        wake, wake_end = socket.socketpair()
        for end in (wake, wake_end):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if os.getpid() != 1:  # pid 1 is immune to signals from inside its namespace as long as it does not handle them
            signal.signal(signal.SIGTERM, lambda *_: self._loop.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._loop.reader(wake.fileno(), lambda: self._reap(wake))
        self._loop.after(float(self._limits["life_s"]), self._loop.stop)
        hello = {"pid": os.getpid(), "python": platform.python_version(), "machine": platform.machine()}
        self._host.send({"id": 0, "kernel": "", "type": "hello", **hello})
        try:
            self._loop.run()
        finally:
            kill_everything(self._table, isolated=self._isolated)

    # -- for the kernel slots -----------------------------------------------------------------------------------------

    def send(self, header: dict[str, Any]) -> None:
        """Sends a frame to the host."""
        self._host.send(header)

    def run_sessions(self) -> frozenset[int]:
        """Sessions of the commands that a kernel kill spares."""
        return frozenset(command.session for command in self._commands)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _request(self, frame: Frame) -> None:
        header = dict(frame.header)
        header["id"], header["kernel"] = requests.identity(header), requests.kernel_name(header)
        kind = header.get("type")
        try:
            if kind == "chunk":
                self._chunk(header, frame.data)
            elif isinstance(kind, str) and kind in self._handlers:
                self._handlers[kind](header)
            else:
                raise BadRequest(f"type: expected one of {', '.join(self._handlers)}, found {kind!r:.40}")
        except BadRequest as error:
            self._refuse(header, "bad_request", str(error))
        except Refused as error:
            self._refuse(header, error.code, str(error))

    def _refuse(self, header: dict[str, Any], code: str, message: str) -> None:
        answer = {"id": header["id"], "kernel": header["kernel"], "type": "error", "code": code, "message": message}
        self._host.send(answer)

    def _done(self, header: dict[str, Any], **fields: Any) -> None:
        self._host.send({"id": header["id"], "kernel": header["kernel"], "type": "done", **fields})

    def _slot(self, header: dict[str, Any]) -> KernelSlot | None:
        slot = self._slots.get(header["kernel"])
        if slot is None:
            self._refuse(header, "unknown_kernel", f"kernel {header['kernel']!r:.60} was never started here")
        elif self._frozen:
            self._refuse(header, "busy", "the agent's processes are frozen; thaw them first")
        else:
            return slot
        return None

    def _start(self, header: dict[str, Any]) -> None:
        name = header["kernel"]
        if not name or len(name) > 64:
            raise BadRequest("kernel: expected a name of 1 to 64 characters")
        if self._frozen or any(s.state != "none" for n, s in self._slots.items() if n != name):
            self._refuse(header, "busy", "start: another kernel lives in this sandbox, or its processes are frozen")
            return
        if name not in self._slots:
            self._slots = {name: self._new_slot(name)}
        self._slots[name].start(header)

    def _new_slot(self, name: str) -> KernelSlot:
        def launch(
            kernelspec: str, on_frame: Callable[[dict[str, Any]], None], on_death: Callable[[str], None]
        ) -> KernelLink:
            return start_jupyter(
                self._loop,
                self._table,
                self._spawner,
                config=self._config,
                kernelspec=kernelspec,
                sources=self._sources,
                on_frame=on_frame,
                on_death=on_death,
            )

        return KernelSlot(name, self._loop, self._table, host=self, limits=self._limits, launch=launch)

    def _execute(self, header: dict[str, Any]) -> None:
        header["code"] = requests.text(header, "code")
        header["timeout_s"] = requests.seconds(header, "timeout_s", default=self._limits["cell_timeout_s"])
        words = ("interrupt", "keep")
        header["on_timeout"] = requests.choice(header, "on_timeout", words, default=self._limits["on_timeout"])
        slot = self._slot(header)
        if slot is not None:
            slot.execute(header)

    def _wait(self, header: dict[str, Any]) -> None:
        header["timeout_s"] = requests.seconds(header, "timeout_s", default=self._limits["cell_timeout_s"])
        slot = self._slot(header)
        if slot is not None:
            slot.wait(header)

    def _interrupt(self, header: dict[str, Any]) -> None:
        slot = self._slot(header)
        if slot is not None:
            slot.interrupt(header)

    def _write_file(self, header: dict[str, Any]) -> None:
        if header["id"] in self._writings or len(self._writings) >= _MAX_WRITINGS:
            raise BadRequest(f"write_file: id {header['id']} is in use, or {_MAX_WRITINGS} files are being written")
        mode, size = requests.whole(header, "mode", default=0o644), requests.whole(header, "size")
        self._writings[header["id"]] = self._files.create(header.get("path"), mode=mode, size=size)

    def _chunk(self, header: dict[str, Any], data: bytes) -> None:
        writing = self._writings.get(header["id"])
        if writing is None:
            return  # the rest of a write that was refused and answered already
        try:
            writing.write(data)
            if header.get("last") is True:
                writing.finish()
        except Refused:
            del self._writings[header["id"]]
            raise
        if header.get("last") is True:
            del self._writings[header["id"]]
            self._done(header)

    def _read_file(self, header: dict[str, Any]) -> None:
        if header["id"] in self._readings:
            raise BadRequest(f"read_file: id {header['id']} is in use")
        max_bytes = requests.whole(header, "max_bytes")
        fd = self._files.open_regular(header.get("path"), max_bytes=max_bytes)
        self._readings[header["id"]] = (header["kernel"], Reading(fd, max_bytes=max_bytes))
        self._loop.after(0.0, self._pump)

    def _pump(self) -> None:
        """Sends file data while the host takes it; called again whenever it has taken some."""
        for request_id, (kernel, reading) in list(self._readings.items()):
            header: dict[str, Any] = {"id": request_id, "kernel": kernel}
            while self._host.queued_bytes < _READ_AHEAD_BYTES and not self._host.ended:
                try:
                    data = reading.read()
                except Refused as error:
                    self._refuse(header, error.code, str(error))
                else:
                    if data:
                        self._host.send({**header, "type": "data"}, data)
                        continue
                    self._done(header, size=reading.size, sha256=reading.sha256)
                reading.close()
                del self._readings[request_id]
                break

    def _run(self, header: dict[str, Any]) -> None:
        header["argv"] = requests.words(header, "argv")
        header["env"] = requests.environment(header, "env")
        header["cwd"] = header.get("cwd") or self._config["workdir"]
        requests.text(header, "cwd")
        header["user"] = requests.choice(header, "user", ("agent", "root"), default="agent")
        header["timeout_s"] = requests.seconds(header, "timeout_s", default=60.0)
        header["max_output_bytes"] = requests.whole(header, "max_output_bytes", default=1 << 20)
        try:
            command = Command(
                header,
                loop=self._loop,
                table=self._table,
                spawner=self._spawner,
                agent_env=self._config["agent_env"],
                send=self._host.send,
                spared=self._not_of,
                on_end=self._commands.remove,
            )
        except OSError as error:
            self._refuse(header, "exec_failed", f"run: no process could be made: {error}")
        else:
            self._commands.append(command)

    def _not_of(self, command: Command) -> frozenset[int]:
        others = frozenset(other.session for other in self._commands if other is not command)
        return others.union(*(slot.pids for slot in self._slots.values()))

    def _stat(self, header: dict[str, Any]) -> None:
        if header.get("path") is not None:
            self._done(header, **self._files.stat(header["path"]))
            return
        processes = self._table.read()
        self._done(
            header,
            uptime_s=time.monotonic() - self._born,
            processes=sum(process.live for process in processes.values()),
            memory_bytes=self._table.memory_bytes(processes),
            kernels=[slot.describe() for slot in self._slots.values()],
            compute_s=sum(slot.compute_s for slot in self._slots.values()),
        )

    def _freeze(self, header: dict[str, Any]) -> None:
        def stopped(processes: list[Process], complete: bool) -> None:
            if complete:
                self._frozen = True
                self._done(header, stopped=len(processes))
            else:
                continue_all(self._table)
                self._refuse(header, "busy", "freeze: some processes did not stop within 2 s")

        stop_chosen(self._loop, lambda: list(self._table.read().values()), stopped)

    def _thaw(self, header: dict[str, Any]) -> None:
        self._frozen = False
        continue_all(self._table)
        self._done(header)

    def _close(self, header: dict[str, Any]) -> None:
        self._done(header)
        end = time.monotonic() + 1.0
        while self._host.queued_bytes and not self._host.ended and time.monotonic() < end:
            poller = select.poll()
            poller.register(1, select.POLLOUT)
            poller.poll(50)
            self._host.flush()
        self._loop.stop()

    # -- children -----------------------------------------------------------------------------------------------------

    def _reap(self, wake: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wake.recv(4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            cpu_s = usage.ru_utime + usage.ru_stime
            self._table.reaped_cpu_s += cpu_s
            for command in list(self._commands):
                command.process_ended(pid, exit_code=os.waitstatus_to_exitcode(status), cpu_s=cpu_s)
            for slot in self._slots.values():
                slot.process_ended(pid)


def main(config: dict[str, Any]) -> None:
    """Entry of the bootstrap."""
    os.umask(0o022)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(FrameError):
        Supervisor(config).serve()
