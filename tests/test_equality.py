"""The same episode reads the same in every sandbox: byte for byte once times and addresses are taken out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from research_gym.envs.research_env import ResearchEnv
from research_gym.testing.tasks import write_answer_task

CELLS = [
    "x = 1",
    "x",
    "print('hello')",
    "print('a\\nb')\n2 + 2",
    "import sys\nprint('to stderr', file=sys.stderr)",
    "print('out'); sys.stdout.flush(); print('err', file=sys.stderr); 'value'",
    "1 / 0",
    "no_such_name",
    "def f(): return g()\ndef g(): raise ValueError('deep')\nf()",
    "def (",
    "raise RuntimeError('two\\nlines')",
    "!echo shell; echo more >&2",
    "!exit 3",
    "!pwd",
    "%%bash\nfor i in 1 2 3; do echo $i; done\npwd",
    "%pwd",
    "out = !printf 'a\\nb\\n'\nout",
    "{'a': [1, 2, {'b': 'c' * 30}], 'long': list(range(40))}",
    "from IPython.display import HTML, Markdown, display\n"
    "display(HTML('<b>bold</b>')); display(Markdown('*it*')); display({'k': 1})",
    "import numpy\nnumpy.arange(12).reshape(3, 4)",
    "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2, 4])\nplt.show()",
    "print('é 数学 שלום 🙂🏽 │└─')",
    "print('\\ud800 tail')",
    "import os\n_ = os.write(1, bytes(range(256)) + b'END\\n')",
    "print('\\x1b[31mred\\x1b[0m and \\x1b[1mbold\\x1b[0m')",
    "!printf '\\033[32mgreen\\033[0m\\n'",
    "for i in range(50): print(f'\\rstep {i}', end='')\nprint()",
    "from tqdm import tqdm\nfor _ in tqdm(range(2000), mininterval=0, "
    "bar_format='{percentage:3.0f}%|{bar:20}| {n_fmt}'): pass",
    "import asyncio\nasync def seven():\n    await asyncio.sleep(0.01)\n    return 7\nawait seven()",
    "asyncio.run(seven())",
    "input('name? ')",
    "!cat",
    "%%bash\ncat\necho done",
    "from IPython.display import clear_output\nprint('gone'); clear_output(); print('stays')",
    "import sys; sys.exit(0)",
    "x",
    "print('y' * 3_000_000)",
    "for i in range(3): display(i)",
    "object()",
    "print(*range(20000), sep='\\n')",
    "open('note.txt', 'w').write('first line\\nsecond line\\n')",
    "%%edit note.txt\n<<<BEFORE_EDIT>>>\nsecond line\n<<<AFTER_EDIT>>>\nchanged line",
    "!cat note.txt",
    "%%edit note.txt\n<<<BEFORE_EDIT>>>\nno such line\n<<<AFTER_EDIT>>>\nx",
    "import os; os._exit(1)",
    "x",
    "!ls",
    "%wait",
    "%submit not json",
    '%submit {"value": 42.0}',
]
TIMED_CELLS = [
    "x = 1",
    "print('before the sleep', flush=True)\nimport time\ntime.sleep(60)",
    "x",
    "import asyncio\ntry: await asyncio.sleep(60)\nexcept asyncio.CancelledError: print('cancelled')",
    "while True: pass",
    "x",
    "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass",
    "x",
]
EPISODES = {"cells": (CELLS, 60.0), "timeouts": (TIMED_CELLS, 2.0)}
"""Cells and their timeout."""


def _normal(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)
    text = re.sub(r"\d+(?:\.\d+)?(?:it/s|s/it)", "RATE", text)
    text = re.sub(r"\d\d:\d\d(?:<\d\d:\d\d)?", "CLOCK", text)
    text = re.sub(r"after \d+(?:\.\d+)? s", "after N s", text)
    text = re.sub(r"\bpid[ =:]*\d+", "pid N", text)
    return re.sub(r"(?:/[\w.+-]+)+/lib/python3\.\d+/", "/LIB/", text)


def _play(task: Path, sandbox: str, episode: str) -> list[tuple[str, str, float, bool, str]]:
    cells, timeout_s = EPISODES[episode]
    env = ResearchEnv(task, sandbox=sandbox, limits={"cell_timeout_s": timeout_s, "grace_s": 1.0})
    try:
        prompt, _ = env.reset(seed=0)
        rows: list[tuple[str, str, float, bool, str]] = [("", prompt, 0.0, False, "")]
        for cell in cells:
            observation, reward, terminated, truncated, info = env.step(cell)
            assert observation in env.observation_space
            assert not truncated
            status: dict[str, Any] = info["cell"]
            rows.append((cell, _normal(observation), reward, terminated, str(status["status"])))
        return rows
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("episode", EPISODES)
def test_the_same_episode_reads_the_same_in_both_sandboxes(tmp_path: Path, episode: str) -> None:
    task = write_answer_task(tmp_path)
    for local, docker in zip(_play(task, "local", episode), _play(task, "docker", episode), strict=True):
        assert local == docker


@pytest.mark.slow
def test_the_same_episode_reads_the_same_twice(tmp_path: Path) -> None:
    task = write_answer_task(tmp_path)
    first = _play(task, "local", "cells")
    assert first == _play(task, "local", "cells")
    assert len(first) > 30
    assert first[-1][3], "the submission ends the episode"
