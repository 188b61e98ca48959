"""A kernel keeps its state, counts what runs beside it, and leaves no zombies."""

from __future__ import annotations

import time

from research_gym.sandbox.waiting import drive
from research_gym.testing.check_sandbox.kit import Box, expect, probe, token


@probe("state")
def variables_imports_and_folder_persist(box: Box) -> None:
    """From cell to cell."""
    box.text("import math, os\nx = {'a': [1]}\nos.makedirs('moved', exist_ok=True)\nos.chdir('moved')")
    out = box.text("x['a'].append(math.floor(2.5)); print(x, os.path.basename(os.getcwd())); os.chdir('..')")
    expect(out == "{'a': [1, 2]} moved", f"expected the state of the cell before, found {out!r}")


@probe("state")
def executions_are_counted(box: Box) -> None:
    """By one each."""
    first = box.cell("1").result.execution_count
    second = box.cell("2").result.execution_count
    expect(second == first + 1, f"expected {first + 1}, found {second}")


@probe("state")
def magics_shell_and_await_work(box: Box) -> None:
    """What makes a cell a notebook cell."""
    expect(box.text("!echo shell") == "shell", "expected !shell to work")
    expect(box.text("%%bash\necho bash") == "bash", "expected %%bash to work")
    expect(
        box.text("import asyncio\nasync def f(): return 7\nprint(await f())") == "7", "expected top-level await to work"
    )
    expect(box.text("%pwd\nprint('magic')") == "magic", "expected line magics to work")
    expect(box.text("files = !echo a b\nprint(files)") == "['a b']", "expected shell capture to work")


@probe("state")
def a_syntax_error_is_an_error(box: Box) -> None:
    """And empty cells are fine."""
    seen = box.cell("def (")
    expect(seen.result.status == "error" and seen.error == "SyntaxError", f"expected SyntaxError, found {seen}")
    for code in ("", "   \n", "# only a comment"):
        seen = box.cell(code)
        expect(seen.result.status == "ok" and not seen.text, f"expected nothing from {code!r}, found {seen}")


@probe("state")
def background_processes_are_counted(box: Box) -> None:
    """What a cell left running is known from outside the kernel."""
    mark = token()
    base = box.cell("1").result.background_processes
    seen = box.cell(
        f"import subprocess\nps = [subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999']) for _ in range(3)]"
    )
    expect(
        seen.result.background_processes == base + 3, f"expected {base + 3}, found {seen.result.background_processes}"
    )
    seen = box.cell("for p in ps: p.kill(); p.wait()")
    expect(seen.result.background_processes == base, f"expected {base}, found {seen.result.background_processes}")


@probe("state")
def a_background_child_does_not_hold_the_cell(box: Box) -> None:
    """Also where it keeps the cell's stdout."""
    mark = token()
    for code in (
        f"!(bash -c 'exec -a {mark} sleep 300' >/dev/null 2>&1) & echo hi",
        f"%%bash\nbash -c 'exec -a {mark} sleep 300' >/dev/null 2>&1 &\necho hi",
        f"import subprocess; _ = subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 300'])\nprint('hi')",
    ):
        seen = box.cell(code, timeout_s=8)
        expect(seen.result.status in ("ok", "error"), f"expected the cell to end, found {seen}; cell: {code!r}")
        expect("hi" in seen.all_text or "background" in seen.all_text.lower(), f"expected 'hi', found {seen}")
    box.cell(f"!pkill -f {mark}; true", timeout_s=8)
    box.cell("import os; os._exit(0)")


@probe("state")
def orphans_are_reaped(box: Box) -> None:
    """300 of them; a pid 1 that does not reap ends in `fork: retry`."""
    box.text("import subprocess\nfor _ in range(300): subprocess.Popen('(true &)', shell=True).wait()", timeout_s=60)
    time.sleep(0.5)
    out = box.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' ; true", timeout_s=20).stdout
    count = int(out.strip() or b"0") if box.isolated else 0
    expect(count == 0, f"expected no zombie, found {count}")


@probe("state")
def a_forked_kernel_confuses_nobody(box: Box) -> None:
    """`os.fork()` in a cell: the child shares the kernel's sockets and must not end or answer a cell of the parent."""
    seen = box.cell(
        "import os\npid = os.fork()\nif pid == 0: os._exit(0)\n_ = os.waitpid(pid, 0)\nprint('parent')", timeout_s=10
    )
    expect("parent" in seen.text, f"expected the parent's output, found {seen}")
    box.cell("import os\npid = os.fork()", timeout_s=10)
    seen = box.cell("print('once')", timeout_s=10)
    expect(seen.wall_s < 14 and seen.text.count("once") <= 2, f"expected one answer, found {seen}")
    box.cell("import os; os._exit(0)")
    expect(box.text("print(1)") == "1", "expected the box to go on")


@probe("state")
def worker_pools_work(box: Box) -> None:
    """Forked workers inherit the kernel's sockets; the wire stays whole."""
    out = box.text(
        "from multiprocessing import get_context\nfor _ in range(3):\n"
        "    with get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1]))"
    )
    expect(out.split("\n") == ["[1]"] * 3, f"expected [1] three times, found {out!r}")


@probe("state")
def freezing_stops_every_process_and_thawing_lets_it_go_on(box: Box) -> None:
    """A submission is read while nothing can change it."""
    box.text(
        "import subprocess, sys\n"
        "ticker = subprocess.Popen([sys.executable, '-c', 'import time\\nn = 0\\nwhile True:\\n    n += 1\\n"
        '    open("ticks", "w").write(str(n)); time.sleep(0.01)\'], start_new_session=True)\n'
        "import time; time.sleep(0.7)"
    )
    stopped = drive(box.session.freeze())
    expect(stopped >= 1, f"expected processes to be stopped, found {stopped}")
    first = box.read("ticks")
    time.sleep(0.4)
    expect(box.read("ticks") == first, "expected the ticker to stand still")
    drive(box.session.thaw())
    time.sleep(0.4)
    expect(box.read("ticks") != first, "expected the ticker to go on")
    expect(box.text("ticker.kill(); ticker.wait(); print('ok')") == "ok", "expected the kernel to go on")
