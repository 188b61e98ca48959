"""One `run` request: a command beside the kernel, with its own session, deadline and output budget."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from research_gym.kernel.items import packs, streams
from research_gym.kernel.killing import kill_chosen
from research_gym.kernel.loop import Loop
from research_gym.kernel.output import OutputBudget
from research_gym.kernel.process import Spawner
from research_gym.kernel.procfs import Process, ProcessTable, descendants, now_ticks

_FLUSH_S = 0.02


class Command:
    """Runs one command to its end and answers its request with `output` frames and one terminal frame.

    The command has ended when its first process has: what it left behind is killed then, as at the timeout. A process
    that left the command's session is known by its age: whatever was born since the command began and descends from
    neither a kernel nor another command goes too, even if a cell that ran meanwhile set it free.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        *,
        loop: Loop,
        table: ProcessTable,
        spawner: Spawner,
        agent_env: Mapping[str, str],
        send: Callable[[dict[str, Any]], None],
        spared: Callable[[Command], frozenset[int]],
        on_end: Callable[[Command], None],
    ) -> None:
        """Starts it.

        Args:
            spared: Given this command, the processes that, with their descendants, are not its own to kill.
        """
        self._id = request["id"]
        self._kernel = request["kernel"]
        self._loop = loop
        self._table = table
        self._send = send
        self._spared = spared
        self._on_end = on_end
        self._budget = OutputBudget(max_bytes=request["max_output_bytes"], max_messages=1 << 20)
        self._began = time.monotonic()
        self._born_ticks = now_ticks()
        self._timed_out = False
        self._exit_code = 0
        self._cpu_s = 0.0
        self._error = ""
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        pipes = [(name, *os.pipe2(os.O_CLOEXEC)) for name in ("stdout", "stderr")]
        try:
            self._child = spawner.spawn(
                request["argv"],
                env={**agent_env, **request["env"]},
                cwd=request["cwd"],
                stdin=null_fd,
                stdout=pipes[0][2],
                stderr=pipes[1][2],
                root=request["user"] == "root",
            )
        except OSError:
            for _, read_fd, _ in pipes:
                os.close(read_fd)
            raise
        finally:
            os.close(null_fd)
            for _, _, write_fd in pipes:
                os.close(write_fd)
        self.session = self._child.pid
        self._pipes: dict[int, tuple[str, codecs.IncrementalDecoder]] = {}
        for name, read_fd, _ in pipes:
            os.set_blocking(read_fd, False)
            self._pipes[read_fd] = (name, codecs.getincrementaldecoder("utf-8")("replace"))
            loop.reader(read_fd, partial(self._on_output, read_fd))
        self._flush_timer = loop.after(_FLUSH_S, self._flush)
        self._timer = loop.after(request["timeout_s"], self._expire)

    def process_ended(self, pid: int, *, exit_code: int, cpu_s: float) -> None:
        """Told by the reaper about each process."""
        if pid != self._child.pid:
            return
        self._timer.cancel()
        self._exit_code = exit_code
        self._cpu_s = cpu_s
        self._error = self._child.read_error()
        kill_chosen(self._loop, self._members, self._finish)

    def _expire(self) -> None:
        self._timed_out = True
        with contextlib.suppress(OSError):
            os.kill(self._child.pid, signal.SIGKILL)  # its end leads to `process_ended`

    def _members(self) -> list[Process]:
        processes = self._table.read()
        spared = self._spared(self)
        others = spared | descendants(processes, *spared).keys()
        return [
            process
            for process in processes.values()
            if process.session == self.session
            or (process.started_ticks >= self._born_ticks and process.pid not in others)
        ]

    def _read(self, fd: int) -> bool:
        name, decoder = self._pipes[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        self._budget.add(streams(name, decoder.decode(data, final=not data)))
        if not data:
            self._loop.forget(fd)
        return bool(data)

    def _on_output(self, fd: int) -> None:
        self._read(fd)

    def _flush(self) -> None:
        self._emit(self._budget.take_head())
        self._flush_timer = self._loop.after(_FLUSH_S, self._flush)

    def _emit(self, items: list[dict[str, Any]]) -> None:
        for group in packs(items):
            self._send({"id": self._id, "kernel": self._kernel, "type": "output", "items": group})

    def _finish(self) -> None:
        for fd in self._pipes:
            rounds = 0
            while rounds < 64 and self._read(fd):  # what the pipe holds; a survivor elsewhere may go on writing
                rounds += 1
            self._loop.forget(fd)
            os.close(fd)
        self._flush_timer.cancel()
        self._emit(self._budget.take_head() + self._budget.take_tail())
        answer: dict[str, Any] = {"id": self._id, "kernel": self._kernel}
        if self._error:
            answer |= {
                "type": "error",
                "code": "exec_failed",
                "message": f"run: the program did not start: {self._error}",
            }
        else:
            answer |= {
                "type": "done",
                "exit_code": self._exit_code,
                "duration_s": time.monotonic() - self._began,
                "cpu_s": self._cpu_s,
                "timed_out": self._timed_out,
                "omitted_bytes": self._budget.omitted_bytes,
            }
        self._on_end(self)
        self._send(answer)
