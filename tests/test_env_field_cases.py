# ruff: noqa: E501  # the cells are what agents wrote, one line each
"""Bugs that people had elsewhere, by their ids in the field log, tried on a live kernel through `env.step`.

Always expected, so not repeated in the cases: no exception, an answer within timeout, grace and a fresh kernel, an observation inside the
space, reward 0, and a kernel that answers `print(1)` afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from research_gym.envs.research_env import ResearchEnv
from research_gym.testing.tasks import write_answer_task

TIMEOUT_S = 3.0
GRACE_S = 1.0
SLACK_S = 6.0
"""For a fresh kernel after a kill, on a machine with other work. What hangs takes for ever."""
FIGURE = "<Figure size 640x480 with 1 Axes>"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def env(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResearchEnv]:
    limits = {
        "cell_timeout_s": TIMEOUT_S, "grace_s": GRACE_S, "max_steps": 100_000, "kernel_restarts": 10_000,
        "memory_bytes": 1 << 30, "observation_chars": 8000,
    }  # fmt: skip
    env = ResearchEnv(write_answer_task(tmp_path_factory.mktemp("task")), sandbox=str(request.param), limits=limits)
    env.reset(seed=0)
    yield env
    env.close()


@dataclass(frozen=True)
class Case:
    """Cells, and what the last one must show."""

    id: str
    cells: tuple[str, ...]
    status: tuple[str, ...] = ("ok",)
    shows: tuple[str, ...] = ()
    hides: tuple[str, ...] = ("\x1b",)
    longest: int = 8000
    within_s: float | None = None
    info: dict[str, Any] = field(default_factory=dict)


def _c(case: str, *cells: str, **expected: Any) -> Case:
    return Case(case, cells, **expected)


CASES = [
    # B: death, exit, restart
    _c("F12 memory", "x = bytearray(4 << 30)", status=("died", "error"), shows=("emory",)),
    _c("F16 sys.exit", "import sys; sys.exit(0)", status=("error",), shows=("SystemExit: 0",), hides=("To exit: use",)),
    _c("F21 editor", "!git init -q r 2>/dev/null; cd r && touch a && git add a && git -c user.name=a -c user.email=a@b commit; true", within_s=2.5),
    _c("F22 timeout", "import time\nkept = 5\ntime.sleep(60)", status=("timeout",), shows=("timed out after 3 s", "kept")),
    _c("F22 state", "kept = 5", "while True: pass", "kept", shows=("5",)),
    _c("D12 hard exit", "import os; os._exit(0)", status=("died",), shows=("kernel died", "fresh kernel"), within_s=4.0),
    _c("D13 exit()", "exit()", status=("died",), shows=("fresh kernel",)),
    # C: hangs, stdin, interrupts
    _c("F24 read", "!read v; echo got=$v", status=("ok",), shows=("got=",), within_s=2.5),
    _c("F24 cat", "!cat", within_s=2.5),
    _c("F24 python input", "!python3 -c 'input(\"name? \")'", shows=("EOFError",), within_s=2.5),
    _c("F24 input", "input('x? ')", status=("error",), within_s=2.5),
    _c("F25 git asks", "!git clone http://127.0.0.1:9/x y", shows=("fatal",), within_s=2.9),
    _c("F26 await", "import asyncio\nawait asyncio.sleep(1e5)", status=("timeout",)),
    _c("F26 after await", "import asyncio\nawait asyncio.sleep(1e5)", "print(1)", shows=("1",), hides=("abort",)),
    _c("F28 shell loop", "while True:\n    !sleep 0.2", status=("timeout",)),
    _c("F29 ignored", "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile 1: pass", status=("timeout",), shows=("killed", "fresh kernel")),
    _c("F30 child", "import subprocess\nsubprocess.run('exec sleep 999', shell=True, start_new_session=True)", status=("timeout",)),
    _c("F32 stuck command", "x = 1", "!tail -f /dev/null", "print(x)", shows=("1",)),
    _c("D03 stopped", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", status=("timeout",)),
    # D: output
    _c("F34 small writes", "import sys\nfor _ in range(1000): sys.stdout.write('0' * 20); sys.stdout.flush()\nprint('\\nhi')", status=("ok", "timeout"), shows=("hi", "omitted")),
    _c("F36 surrogate", "print('\\ud800 tail')", shows=("\\ud800 tail",), hides=("Traceback",)),
    _c("F37 surrogate in the action", "print('\udc00')", status=("ok", "error"), hides=("\udc00",)),
    _c("F38 bytes", "import os\n_ = os.write(1, bytes(range(256)) + b'END\\n')", shows=("END",)),
    _c("F38 random bytes", "!head -c 4096 /dev/urandom; echo END", shows=("END",)),
    _c("F40 tqdm", "from tqdm import tqdm\nfor _ in tqdm(range(300), mininterval=0): pass", shows=("300/300",), longest=300),
    _c("F41 cursor", "for i in range(500): print('\\x1b[2K\\x1b[1A\\x1b[0GRetrieving %d%%' % (i // 5))", shows=("Retrieving 99%", "similar lines"), longest=300),
    _c("F42 colours", "!ls --color=always -la /", shows=("usr",)),
    _c("F42 split colour", "import sys, time\nsys.stdout.write('\\x1b[3'); sys.stdout.flush(); time.sleep(0.4); sys.stdout.write('1mred\\x1b[0m\\n')", shows=("red",), hides=("1m", "\x1b")),
    _c("F44 long", "!seq 1 300000", shows=("1\n2\n3\n", "300000", "omitted")),
    _c("F46 figure", "import matplotlib.pyplot as p\np.plot([1, 2]); p.show()", shows=(FIGURE, "[image/png 5", "kB]"), hides=("iVBOR",), longest=300),
    _c("F48 displays", "for i in range(20000): display(i)", status=("ok", "timeout", "interrupted"), shows=("omitted",)),
    _c("F48 after", "for i in range(20000): display(i)", "print('mine')", shows=("mine",), longest=30),
    _c("D08 one print", "print('y' * 20_000_000)", shows=("omitted",)),
    _c("D08 exception", "raise ValueError('z' * 2_000_000)", status=("error",), shows=("ValueError",)),
    _c("D08 recursion", "def f(): return f()\nf()", status=("error", "timeout")),  # thousands of frames take their time
    _c("D15 controls", "print('a\\x00b\\x07c\\u202ed\\x9be')", shows=("ab",), hides=("\x00", "\x07", "\u202e")),
    # E: processes, threads, async
    _c("F49 thread", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.6), print('T1', flush=True))).start()", "time.sleep(1.2)", shows=("(background output)", "T1")),
    _c("F52 spawn pool", "from multiprocessing import get_context as g\ndef f(x): return x\ng('spawn').Pool(2).map(f, [1])", status=("timeout", "error")),
    _c("F53 fork pool", "from multiprocessing import get_context as g\nfor _ in range(3):\n    with g('fork').Pool(2) as p: print(p.map(abs, [-1]))", shows=("[1]\n[1]\n[1]",)),
    _c("F54 asyncio.run", "import asyncio\nasync def m(): return 7\nasyncio.run(m())", status=("error",), shows=("RuntimeError",)),
    _c("F54 await", "import asyncio\nasync def m(): return 7\nawait m()", shows=("7",)),
    # F: processes that hold the cell, orphans, shared memory
    _c("F57 background", "!(sleep 30; echo late) >/dev/null 2>&1 & echo hi", status=("ok", "error"), within_s=2.5),
    _c("F57 bash", "%%bash\nsleep 30 >/dev/null 2>&1 &\necho hi", shows=("hi",), within_s=2.5),
    _c("F57 subprocess", "import subprocess\np = subprocess.Popen(['sleep', '30'])\nprint('hi')", shows=("hi", "background process"), within_s=2.5),
    _c("F69 orphans", "import subprocess as s\nfor _ in range(100): s.Popen('(true &)', shell=True).wait()", status=("ok", "timeout")),
    _c("F70 shared memory", "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=200 << 20)\nm.buf[:] = b'\\1' * (200 << 20)\nprint('ok'); m.close(); m.unlink()", shows=("ok",)),
    # N: the kernel's own wire
    _c("N06 no stdout", "import sys; sys.stdout = None", "x = 1", status=("ok", "error", "timeout", "died")),
    _c("N07 junk", "k = get_ipython().kernel\nfor j in ([b'x'], [b'<IDS|MSG>', b'bad', b'[' * 200000, b'{}', b'{}', b'{}']): k.iopub_socket.send_multipart(j)", "print('fine')", status=("ok", "died"), shows=()),
    _c("R09 patched", "import IPython.core.interactiveshell as I\nget_ipython().showtraceback = lambda *a, **k: None", "1 / 0", status=("ok", "error")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_kernel(env: ResearchEnv) -> Iterator[None]:
    """Cases that break their kernel do not touch the next one."""
    yield
    env.step("import os; os._exit(0)")


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_field_case(env: ResearchEnv, case: Case) -> None:
    for cell in case.cells:
        began = time.monotonic()
        observation, reward, terminated, truncated, info = env.step(cell)
        took_s = time.monotonic() - began
        assert observation in env.observation_space
        assert (reward, terminated, truncated, info["fault"]) == (0.0, False, False, "")
        assert took_s < TIMEOUT_S + GRACE_S + SLACK_S, f"{took_s:.1f} s: {observation}"
    assert info["cell"]["status"] in case.status, observation
    for text in case.shows:
        assert text in observation
    for text in case.hides:
        assert text not in observation
    assert len(observation) <= case.longest
    assert case.within_s is None or took_s < case.within_s, f"{took_s:.1f} s: {observation}"
    after = [env.step("import sys; sys.stdout = sys.stdout or sys.__stdout__; print(1)") for _ in range(2)]
    assert after[-1][0].startswith("1") or after[-1][4]["cell"]["status"] == "died", after[-1][0]


def test_the_wait_for_a_quiet_cell_costs_no_cpu(env: ResearchEnv) -> None:
    """F18: a client that spins at its deadline."""
    began = time.process_time()
    env.step("import time; time.sleep(2.5)")
    assert time.process_time() - began < 0.15


def test_time_is_counted_by_the_supervisor(env: ResearchEnv) -> None:
    """R15: a patched clock changes nothing."""
    env.step("import time\nnap = time.sleep\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0")
    _, _, _, _, info = env.step("nap(1.0)")
    assert 0.9 < info["cell"]["duration_s"] < 2.5


def test_background_processes_are_counted(env: ResearchEnv) -> None:
    """R13: what outlives its cell is known."""
    _, _, _, _, info = env.step("import subprocess\nps = [subprocess.Popen(['sleep', '60']) for _ in range(2)]")
    assert info["cell"]["background_processes"] == 2
