"""One kernel as pid 1 sees it: started, running a cell under clocks and budgets, interrupted, killed, found dead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from research_gym.kernel import items as output_items
from research_gym.kernel.kernel_link import KernelLink
from research_gym.kernel.killing import kill_chosen
from research_gym.kernel.loop import Loop, Timer
from research_gym.kernel.meter import StepMeter
from research_gym.kernel.output import OutputBudget
from research_gym.kernel.procfs import Process, ProcessTable, in_sessions, now_ticks
from research_gym.kernel.slot_parts import Cell, Ending, Host, Launch

MALFORMED_BUDGET = 100
_FLUSH_S = 0.02
_LAST_WORDS_S = 0.5
_SECOND_INTERRUPT = 0.8  # of the grace: earlier, it would hit kernels that are still formatting the first traceback


class KernelSlot:
    """Owns the life of one kernel. Requests come as methods; each answers with exactly one terminal frame per id."""

    def __init__(
        self, name: str, loop: Loop, table: ProcessTable, *, host: Host, limits: Mapping[str, Any], launch: Launch
    ) -> None:
        self.name = name
        self._loop = loop
        self._table = table
        self._host = host
        self._limits = limits
        self._launch = launch
        self._link: KernelLink | None = None
        self.state = "none"  # starting, idle, running, killing
        self._start_id: int | None = None
        self._start_began = 0.0
        self._start_timer: Timer | None = None
        self._waiters: list[int] = []
        self._cell: Cell | None = None
        self._cells = 0
        self._ended: dict[str, Any] | None = None
        self._dead_unreported = False
        self._next: dict[str, Any] | None = None
        self._flush_timer: Timer | None = None
        self._execution_count = 0
        self._malformed = 0
        self._malformed_told = 0
        self._meter = StepMeter(table)
        self._output = self._new_budget()

    def describe(self) -> dict[str, Any]:
        """For `stat`."""
        return {"kernel": self.name, "pid": self._link.pid if self._link else 0, "state": self.state}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are the kernel, as opposed to what its cells started."""
        return self._link.pids if self._link is not None else frozenset()

    @property
    def compute_s(self) -> float:
        """Wall seconds of cells so far, the running one included."""
        return self._meter.total_s + (0.0 if self._cell is None else self._meter.elapsed_s)

    def process_ended(self, pid: int) -> None:
        """Told about each reaped process."""
        if self._link is not None:
            self._link.process_ended(pid)

    def start(self, request: dict[str, Any]) -> None:
        """Answers when the kernel has run its first silent cell, or has failed to."""
        if self.state != "none":
            self._refuse(request["id"], "busy", f"start: kernel {self.name!r} is {self.state}; end it first")
            return
        kernelspec = request.get("kernelspec", "python3")
        if not isinstance(kernelspec, str):
            self._refuse(request["id"], "bad_request", "start: kernelspec must be a string")
            return
        self.state = "starting"
        self._dead_unreported = False
        self._ended = None
        self._start_id = request["id"]
        self._start_began = time.monotonic()
        self._malformed = self._malformed_told = 0
        try:
            self._link = self._launch(kernelspec, self._frame, self._died)
        except OSError as error:
            self._start_failed(str(error))
            return
        limit_s = float(self._limits["start_timeout_s"])
        self._start_timer = self._loop.after(limit_s, lambda: self._start_failed(f"no answer within {limit_s:g} s"))

    def execute(self, request: dict[str, Any]) -> None:
        """Runs a cell; a cell that still runs is interrupted first."""
        if self._waiters or self._next is not None or self.state == "starting":
            self._refuse(request["id"], "busy", f"execute: kernel {self.name!r} is {self.state} and owes an answer")
        elif self.state == "killing":
            self._next = request  # answered when that is over
        elif self._cell is not None:
            self._next = request
            self._interrupt("interrupted")
        elif self.state == "none":
            if self._dead_unreported:
                self._dead_unreported = False
                self._answer_dead(request, killed=False)
            else:
                self._refuse(request["id"], "not_running", f"execute: kernel {self.name!r} is dead; start it")
        else:
            self._begin(request)

    def wait(self, request: dict[str, Any]) -> None:
        """Answers at the end of the running cell or at its own timeout, with what is new since the last answer."""
        if self._waiters or self._next is not None:
            self._refuse(request["id"], "busy", f"wait: kernel {self.name!r} owes an answer")
        elif self._cell is not None:
            self._waiters.append(request["id"])
            self._schedule_flush()
            timer = self._loop.after(request["timeout_s"], self._pause)
            self._cell.timers.append(timer)
        elif self._ended is not None:
            self._waiters.append(request["id"])
            self._answer(self._ended)
            self._ended = None
            self._dead_unreported = False
        else:
            self._refuse(request["id"], "not_running", f"wait: kernel {self.name!r} runs no cell")

    def interrupt(self, request: dict[str, Any]) -> None:
        """Interrupts the running cell: SIGINT, again late in the grace, then the kill."""
        if self._cell is None:
            self._refuse(request["id"], "not_running", f"interrupt: kernel {self.name!r} runs no cell")
            return
        self._waiters.append(request["id"])
        self._schedule_flush()
        self._interrupt("interrupted")

    def _begin(self, request: dict[str, Any]) -> None:
        assert self._link is not None
        left_s = float(self._limits["compute_s"]) - self._meter.total_s
        self._output.mark_late()
        self._waiters.append(request["id"])
        self._ended = None
        self._cells += 1
        self._cell = cell = Cell(self._cells, request["on_timeout"], now_ticks(), self._output.seen_bytes)
        self.state = "running"
        if left_s <= 0:
            self._meter.mark()
            self._kill("timeout")
            return
        self._link.send({"type": "execute", "cell": cell.number, "code": request["code"]})
        self._meter.mark()  # after the send: the kernel is already at work while pid 1 looks
        self._schedule_flush()
        cell.timers = [
            self._loop.after(request["timeout_s"], self._timed_out),
            self._loop.after(left_s, lambda: self._kill("timeout")),
        ]

    def _timed_out(self) -> None:
        if self._cell is not None and not self._cell.reason:
            if self._cell.on_timeout == "keep":
                self._pause()
            else:
                self._interrupt("timeout")

    def _pause(self) -> None:
        """Ends the step, not the cell."""
        if self._cell is not None and self._waiters and not self._cell.reason:
            self._answer(self._measure(Ending("timeout", running=True)))

    def _interrupt(self, reason: str, *, kill_status: str = "") -> None:
        cell, link = self._cell, self._link
        if cell is None or link is None or self.state != "running" or cell.reason:
            return
        cell.reason = reason
        grace_s = float(self._limits["grace_s"])
        link.interrupt()
        cell.timers.append(self._loop.after(grace_s * _SECOND_INTERRUPT, link.interrupt))
        cell.timers.append(self._loop.after(grace_s, lambda: self._kill(kill_status or reason)))

    def _finished(self, header: dict[str, Any]) -> None:
        cell = self._cell
        if cell is None or header.get("cell") != cell.number or self.state != "running":
            return
        self._execution_count = output_items.count(header.get("execution_count"))
        if header.get("broken") is True:
            self._kill("died")
        elif cell.reason == "timeout":
            for timer in cell.timers:
                timer.cancel()
            self.state = "killing"
            kill_chosen(
                self._loop,
                lambda: [process for process in self._others() if process.started_ticks >= cell.started_ticks],
                self._end_timed_out,
            )
        else:
            self._end_cell(Ending(cell.reason or ("ok" if header.get("status") == "ok" else "error")))

    def _end_timed_out(self) -> None:
        if self._link is None or self._link.dead:
            self.state = "running"
            self._kill("timeout")
        else:
            self._end_cell(Ending("timeout"))

    def _end_cell(self, ending: Ending) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            for timer in cell.timers:
                timer.cancel()
        alive = self._link is not None
        self.state = "idle" if alive else "none"
        follower, self._next = self._next, None
        done = self._measure(ending)
        if self._waiters:
            self._answer(done)
        else:
            self._ended = done
            self._dead_unreported = not alive
        if follower is not None and alive:
            self._begin(follower)
        elif follower is not None:
            self._answer_dead(follower, killed=ending.killed)

    def _kill(self, status: str) -> None:
        """Kills the kernel and everything its cells started; the cell ends with `status` once all of it is gone."""
        if self.state in ("none", "killing"):
            return
        self.state = "killing"
        kill_chosen(self._loop, self._everything, lambda: self._killed(Ending(status, killed=True)))

    def _killed(self, ending: Ending) -> None:
        self._drop_link()
        if self._cell is not None:
            self._end_cell(ending)
        else:
            self.state = "none"
            follower, self._next = self._next, None
            self._dead_unreported = follower is None
            if follower is not None:
                self._answer_dead(follower, killed=False)

    def _died(self, reason: str) -> None:
        if self.state == "starting":
            self._start_failed(reason)
        elif self.state in ("idle", "running"):
            # The kernel's last output may still be on its way through the driver.
            link = self._link
            self._loop.after(_LAST_WORDS_S, lambda: self._bury(link))

    def _bury(self, link: object) -> None:
        if self._link is not link or self.state not in ("idle", "running"):
            return  # the news is of a kernel that has been replaced since
        self.state = "killing"
        ending = Ending(self._cell.reason, killed=True) if self._cell and self._cell.reason else Ending("died")
        kill_chosen(self._loop, self._everything, lambda: self._killed(ending))

    def _start_failed(self, reason: str) -> None:
        if self.state != "starting" or self._start_id is None:
            return
        request_id, self._start_id = self._start_id, None
        self.state = "killing"
        if self._start_timer is not None:
            self._start_timer.cancel()
        tail = self._link.stderr_tail() if self._link is not None else ""
        message = f"kernel {self.name!r} did not start: {reason}" + (f"; its stderr ends: {tail}" if tail else "")

        def gone() -> None:
            self._drop_link()
            self.state = "none"
            self._refuse(request_id, "start_failed", message)

        kill_chosen(self._loop, self._everything, gone)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _everything(self) -> list[Process]:
        spared = self._host.run_sessions()
        return [process for process in self._table.read().values() if not in_sessions(process, spared)]

    def _others(self) -> list[Process]:
        return [process for process in self._everything() if process.live and process.pid not in self.pids]

    # -- what the kernel's process says -------------------------------------------------------------------------------

    def _frame(self, header: dict[str, Any]) -> None:
        kind = header.get("type")
        self._malformed += output_items.count(header.get("malformed"))
        if kind == "items":
            self._take(header)
        elif kind == "finished":
            self._finished(header)
        elif kind == "ready" and self.state == "starting":
            self._ready(header)
        elif kind == "failed" and self.state == "starting":
            self._start_failed(output_items.cut(f"{header.get('message')!s:.100000}", max_chars=4096))
        elif kind == "gone":
            self._bury(self._link)
        else:
            self._malformed += 1
        if self._malformed > MALFORMED_BUDGET and self.state in ("idle", "running"):
            self._kill("died")

    def _ready(self, header: dict[str, Any]) -> None:
        assert self._link is not None
        pid, interrupt = header.get("pid"), header.get("interrupt")
        if isinstance(pid, bool) or not isinstance(pid, int) or not self._link.adopt(pid, interrupt=str(interrupt)):
            self._start_failed("its driver named no kernel process of its own")
            return
        if self._start_timer is not None:
            self._start_timer.cancel()
        self.state = "idle"
        request_id, self._start_id = self._start_id, None
        done = {"startup_s": time.monotonic() - self._start_began, "pid": self._link.pid}
        self._host.send({"id": request_id, "type": "done", "kernel": self.name, **done})

    def _take(self, header: dict[str, Any]) -> None:
        values = header.get("items")
        if not isinstance(values, list):
            self._malformed += 1
            return
        for value in values:
            found = output_items.checked(value)
            self._malformed += not found
            if self._cell is None:
                for item in found:
                    item["late"] = True
            self._output.add(found)
        self._output.omit(
            omitted_bytes=output_items.count(header.get("omitted_bytes")),
            omitted_messages=output_items.count(header.get("omitted_messages")),
        )
        self._schedule_flush()
        cell = self._cell
        if cell is not None and self._output.seen_bytes - cell.seen_bytes > int(self._limits["output_kill_bytes"]):
            self._interrupt("interrupted", kill_status="died")

    def _schedule_flush(self) -> None:
        if self._waiters and self._flush_timer is None:
            self._flush_timer = self._loop.after(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._waiters:
            self._send_items(self._output.take_head())

    def _send_items(self, items: list[output_items.Item]) -> None:
        for group in output_items.packs(items):
            self._host.send({"id": self._waiters[0], "kernel": self.name, "type": "output", "items": group})

    def _answer(self, done: dict[str, Any]) -> None:
        """Sends what is left of the output and the terminal frame to everybody who waits."""
        self._send_items(self._output.take_head() + self._output.take_tail())
        done["omitted_bytes"] = self._output.omitted_bytes
        done["omitted_messages"] = self._output.omitted_messages
        done["malformed"] = self._malformed - self._malformed_told
        for waiter in self._waiters:
            self._host.send({"id": waiter, **done})
        self._waiters.clear()
        self._malformed_told = self._malformed
        self._output = self._new_budget()
        if self._cell is not None:
            self._cell.seen_bytes = 0

    def _answer_dead(self, request: dict[str, Any], *, killed: bool) -> None:
        """Tells a cell that came too late that there is no kernel any more."""
        self._meter.mark()
        self._waiters.append(request["id"])
        self._answer(self._measure(Ending("died", killed=killed)))

    def _measure(self, ending: Ending) -> dict[str, Any]:
        """Ends a step: the terminal frame, but for what is counted while the last output is sent."""
        used = self._meter.measure(kernel_pids=self.pids, spared_sessions=self._host.run_sessions())
        return {
            "kernel": self.name,
            "type": "done",
            "status": ending.status,
            "execution_count": self._execution_count,
            "duration_s": used.duration_s,
            "cpu_s": used.cpu_s,
            "oom_kills": used.oom_kills,
            "background_processes": used.background_processes,
            "running": ending.running,
            "killed": ending.killed,
        }

    def _new_budget(self) -> OutputBudget:
        limits = self._limits
        return OutputBudget(max_bytes=int(limits["output_bytes"]), max_messages=int(limits["output_messages"]))

    def _refuse(self, request_id: int, code: str, message: str) -> None:
        self._host.send({"id": request_id, "kernel": self.name, "type": "error", "code": code, "message": message})
