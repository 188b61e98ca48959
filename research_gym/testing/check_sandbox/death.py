"""A kernel that ends is noticed within a second, and a fresh one starts over the same files."""

from __future__ import annotations

import time

from research_gym.testing.check_sandbox.kit import Box, expect, probe, token


def _dies(box: Box, code: str, *, within_s: float = 1.0) -> None:
    box.write("survives.txt", b"still here")
    seen = box.cell(code, timeout_s=20)
    expect(seen.result.status == "died", f"expected status died, found {seen}")
    expect(seen.wall_s < within_s + 0.5, f"expected it to be noticed within {within_s:g} s, found {seen.wall_s:.1f} s")
    expect(not seen.result.running, "expected nothing to run any more")
    out = box.text("print(open('survives.txt').read(), 'gone' in globals())")
    expect(out == "still here False", f"expected a fresh kernel over the same files, found {out!r}")


@probe("death")
def leaving_python_hard_is_noticed(box: Box) -> None:
    """`os._exit(0)`."""
    _dies(box, "gone = 1\nimport os; os._exit(0)")


@probe("death")
def killing_itself_is_noticed(box: Box) -> None:
    """SIGKILL by its own hand."""
    _dies(box, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


@probe("death")
def being_killed_by_a_child_is_noticed(box: Box) -> None:
    """From a shell line, output before it included."""
    _dies(box, "import os\nprint('last words', flush=True)\nos.system(f'kill -9 {os.getpid()}')")


@probe("death")
def a_crash_in_c_is_noticed(box: Box) -> None:
    """A segmentation fault."""
    _dies(box, "import ctypes; ctypes.string_at(0)", within_s=2.0)


@probe("death")
def exit_is_a_death_of_the_cell_that_said_it(box: Box) -> None:
    """A stock kernel replies ok and dies half a second later, in the next cell."""
    _dies(box, "exit()", within_s=2.5)


@probe("death")
def last_words_are_kept(box: Box) -> None:
    """Output before the death is shown."""
    seen = box.cell(
        "import os, sys, time\nprint('last words'); sys.stdout.flush(); time.sleep(0.3); os._exit(1)", timeout_s=20
    )
    expect("last words" in seen.text, f"expected the output before the death, found {seen}")


@probe("death")
def sys_exit_is_an_error_not_a_death(box: Box) -> None:
    """The kernel lives, without IPython's advice on stderr."""
    box.text("kept = 'kept'")
    seen = box.cell("import sys; sys.exit(0)")
    expect(seen.result.status == "error" and seen.error == "SystemExit", f"expected SystemExit, found {seen}")
    expect(box.text("print(kept)") == "kept", "expected the kernel to live")


@probe("death")
def a_death_between_cells_is_noticed(box: Box) -> None:
    """The next cell says so, or runs in a fresh kernel; it does not hang."""
    box.text("import os, threading; threading.Timer(0.3, lambda: os._exit(0)).start()")
    time.sleep(1.0)
    seen = box.cell("print('alive')", timeout_s=20)
    expect(seen.result.status == "died", f"expected status died, found {seen}")
    expect(seen.wall_s < 2, f"expected it at once, found {seen.wall_s:.1f} s")
    expect(box.text("print('alive')") == "alive", "expected a fresh kernel")


@probe("death")
def children_die_with_a_dead_kernel(box: Box) -> None:
    """What a dead kernel leaves behind does not run on beside the fresh one."""
    mark = token()
    box.cell(
        f"import os, subprocess\n"
        f"subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999'], start_new_session=True)\n"
        f"os._exit(0)"
    )
    box.text("print(1)")
    box.gone(mark)


@probe("death")
def five_deaths_in_a_row_are_five_fresh_kernels(box: Box) -> None:
    """The sandbox itself sets no limit; the environment does."""
    for _ in range(5):
        seen = box.cell("import os; os._exit(3)")
        expect(seen.result.status == "died", f"expected status died, found {seen}")
    expect(box.text("print(1)") == "1", "expected a sixth kernel")
