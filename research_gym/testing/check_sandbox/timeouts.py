"""A cell ends when its time is up, whatever it does, and nothing of it lives on where the kernel had to be killed."""

from __future__ import annotations

from research_gym.errors import ResearchGymError
from research_gym.sandbox.waiting import drive
from research_gym.testing.check_sandbox.kit import Box, CheckFailed, Seen, expect, probe, token

_TIME_S = 1.0


def _times_out(box: Box, code: str, *, killed: bool | None = False, timeout_s: float = _TIME_S) -> Seen:
    """Runs a cell that never ends; expects `timeout` in time and the kernel kept or killed as said (`None`: either)."""
    box.text("kept = 'kept'")
    seen = box.cell(code, timeout_s=timeout_s)
    expect(seen.result.status == "timeout", f"expected status timeout, found {seen}")
    expect(not seen.result.running, "expected the cell not to be running any more")
    expect(
        seen.wall_s < timeout_s + box.limits.grace_s + 2, f"expected the end within timeout + grace + 2 s, found {seen}"
    )
    if killed is not None:
        expect(seen.result.killed == killed, f"expected killed={killed}, found {seen.result.killed}")
    after = box.cell("print('kept' in globals())")
    expect(after.result.status == "ok", f"expected the next cell to run, found {after}")
    if not seen.result.killed:
        expect(after.text == "True", f"expected variables to be kept, found {after}")
    return seen


@probe("timeouts")
def a_python_loop_is_interrupted(box: Box) -> None:
    """And the agent sees the KeyboardInterrupt."""
    seen = _times_out(box, "while True: pass")
    expect(seen.error == "KeyboardInterrupt", f"expected KeyboardInterrupt, found {seen}")


@probe("timeouts")
def a_sleep_is_interrupted(box: Box) -> None:
    """At once, not when the sleep ends."""
    _times_out(box, "import time; time.sleep(1e5)")


@probe("timeouts")
def a_top_level_await_is_interrupted(box: Box) -> None:
    """A stock kernel takes the interrupt only with the next request, which it then answers `aborted`."""
    _times_out(box, "import asyncio\nawait asyncio.sleep(1e5)")
    seen = box.cell("print(1)")
    expect(seen.result.status == "ok" and seen.text == "1", f"expected 1, found {seen}")


@probe("timeouts")
def a_loop_in_c_is_ended(box: Box) -> None:
    """C code that never looks at signals can only be killed."""
    _times_out(box, "sum(range(10 ** 12))", killed=None)


@probe("timeouts")
def a_big_number_is_ended(box: Box) -> None:
    """One bytecode that runs for hours."""
    _times_out(box, "x = 7 ** (10 ** 9)", killed=None)


@probe("timeouts")
def ignoring_sigint_does_not_help(box: Box) -> None:
    """The kernel is killed after the grace."""
    _times_out(box, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", killed=True)


@probe("timeouts")
def catching_keyboard_interrupt_does_not_help(box: Box) -> None:
    """`except BaseException` in a loop, the everyday form of the same."""
    _times_out(
        box,
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0.1)\n    except BaseException: pass",
        killed=True,
    )


@probe("timeouts")
def stopping_itself_does_not_help(box: Box) -> None:
    """SIGSTOP makes a kernel silent, not immortal."""
    _times_out(box, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", killed=None)


@probe("timeouts")
def a_deadlock_is_ended(box: Box) -> None:
    """Waiting for a lock nobody frees."""
    _times_out(box, "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()", killed=None)


@probe("timeouts")
def a_shell_command_is_ended(box: Box) -> None:
    """`!sleep`, and a loop of them, where the interrupt goes to the child."""
    mark = token()
    _times_out(box, f"!bash -c 'exec -a {mark} sleep 999'", killed=None)
    box.gone(mark)
    _times_out(box, "while True:\n    !sleep 0.2", killed=None)


@probe("timeouts")
def a_waiting_subprocess_is_ended(box: Box) -> None:
    """`subprocess.run` of something in a session of its own."""
    mark = token()
    _times_out(
        box,
        f"import subprocess\nsubprocess.run(['bash', '-c', 'exec -a {mark} sleep 999'], start_new_session=True)",
        killed=None,
    )
    box.gone(mark)


@probe("timeouts")
def children_die_with_a_killed_kernel(box: Box) -> None:
    """A child, one in a session of its own, and a daemon that nobody is the parent of."""
    mark = token()
    _times_out(
        box,
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"command = ['bash', '-c', 'trap \"\" TERM HUP INT; exec -a {mark} sleep 999']\n"
        "subprocess.Popen(command); subprocess.Popen(command, start_new_session=True)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        f"    os.execvp('bash', ['bash', '-c', 'exec -a {mark} sleep 999'])\n"
        "os.waitpid(pid, 0)\n"
        "while True: time.sleep(0.1)",
        killed=True,
        timeout_s=1.5,
    )
    box.gone(mark)


@probe("timeouts")
def output_before_the_timeout_is_kept(box: Box) -> None:
    """What was printed is shown, and nothing of it comes again."""
    seen = _times_out(box, "import time\nprint('before')\nwhile True: time.sleep(0.1)")
    expect(seen.text == "before", f"expected 'before', found {seen}")
    expect(box.text("print('next')") == "next", "expected only the next cell's output")


@probe("timeouts")
def a_cell_may_be_kept_and_waited_for(box: Box) -> None:
    """`on_timeout="keep"`: the step ends, the cell goes on, waiting shows what is new and in the end its status."""
    seen = box.cell("import time\nfor i in range(6):\n    print('tick', i, flush=True)\n    time.sleep(0.5)\n"
                    "kept = 'through'",
                    timeout_s=0.8, on_timeout="keep")  # fmt: skip
    expect(seen.result.status == "timeout" and seen.result.running, f"expected timeout and running, found {seen}")
    expect("tick 0" in seen.text, f"expected the first output, found {seen}")
    more = box.wait(timeout_s=0.6)
    expect(more.result.running, f"expected it to run on, found {more}")
    expect("tick 0" not in more.text, f"expected only new output, found {more}")
    last = box.wait(timeout_s=20)
    expect(last.result.status == "ok" and not last.result.running, f"expected status ok at the end, found {last}")
    every = [f"tick {i}" for i in range(6)]
    shown = "\n".join([seen.text, more.text, last.text]).split("\n")
    expect([line for line in shown if line] == every, f"expected every tick once, found {shown}")
    expect(box.text("print(kept)") == "through", "expected the cell to have run to its end")


@probe("timeouts")
def a_kept_cell_can_be_interrupted(box: Box) -> None:
    """By a request of its own."""
    box.cell("import time\nwhile True: time.sleep(0.1)", timeout_s=0.5, on_timeout="keep")
    seen = box.interrupt()
    expect(seen.result.status == "interrupted" and not seen.result.running, f"expected interrupted, found {seen}")
    expect(box.text("print(1)") == "1", "expected the next cell to run")


@probe("timeouts")
def a_new_cell_interrupts_a_kept_one(box: Box) -> None:
    """And its own output comes through clean of it."""
    box.text("kept = 'kept'")
    box.cell("import time\nwhile True: time.sleep(0.1)", timeout_s=0.5, on_timeout="keep")
    seen = box.cell("print(kept)")
    expect(seen.result.status == "ok", f"expected the new cell to run, found {seen}")
    expect("kept" in seen.text, f"expected variables to be kept, found {seen}")


@probe("timeouts")
def waiting_for_nothing_is_refused(box: Box) -> None:
    """With the code `not_running`, not with a hang."""
    for work in (box.session.wait_cell(timeout_s=5), box.session.interrupt()):
        try:
            drive(work)
        except ResearchGymError as error:
            expect(getattr(error, "code", "") == "not_running", f"expected not_running, found {error!r}")
        else:
            raise CheckFailed("expected a refusal with the code not_running")


@probe("timeouts")
def times_are_the_supervisors_own(box: Box) -> None:
    """A kernel that patches its clocks changes no figure."""
    seen = box.cell(
        "import time\nreal = time.sleep\nreal(1.0)\n"
        "time.time = time.monotonic = time.perf_counter = time.process_time = lambda: 0.0"
    )
    seen = box.cell("real(1.0)")
    expect(0.9 < seen.result.duration_s < 3, f"expected about 1 s, found {seen.result.duration_s}")
    seen = box.cell("import os\nwhile os.times().user < 0: pass\nx = 0\nfor i in range(3_000_000): x += i")
    expect(seen.result.cpu_s > 0.02, f"expected CPU seconds to be counted, found {seen.result.cpu_s}")
    box.cell("import importlib, os; os._exit(0)")
