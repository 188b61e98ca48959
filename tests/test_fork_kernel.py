"""The forkable kernel, driven directly over its link: cells as in a notebook, interrupts, forks of a live state."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fork_kernel_peer import ForkRefusedByKernel, Peer, launch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the forkable kernel needs Linux")


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Peer]]:
    started = []

    def begin() -> Peer:
        peer, process = launch(tmp_path)
        started.append((peer, process))
        peer.wait_ready()
        return peer

    yield begin
    for peer, process in started:
        peer.close()
        process.wait(10)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer, process = launch(tmp_path_factory.mktemp("kernel"))
    peer.wait_ready()
    yield peer
    peer.close()
    process.wait(10)


def test_output_of_five_ways_to_print_keeps_the_program_order(kernel: Peer) -> None:
    code = "import os\nprint('1')\nos.write(1, b'2\\n')\nprint('3')\nos.system('echo 4')\n"
    code += "print('5')\ndisplay(6)\nprint('7')\n8"
    assert kernel.say(code).split() == ["1", "2", "3", "4", "5", "6", "7", "8"]


def test_order_holds_for_a_thousand_alternations_of_print_and_display(kernel: Peer) -> None:
    text = kernel.say("for i in range(1000):\n    print(2 * i)\n    display(2 * i + 1)")
    assert text.split() == [str(number) for number in range(2000)]


def test_c_stdio_reaches_the_cell_that_wrote_it(kernel: Peer) -> None:
    assert kernel.say("import ctypes; ctypes.CDLL(None).puts(b'from C');") == "from C"


def test_stderr_of_python_keeps_its_name(kernel: Peer) -> None:
    items = kernel.run(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.buffer.write(b'raw')\nNone"
    ).items
    assert [(item["name"], item["text"]) for item in items if item["text"].strip()] == [
        ("stdout", "out\n"),
        ("stderr", "err"),
        ("stdout", "raw"),
    ]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", "2"),
        ("1 + 1;", ""),
        ("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", "'awaited'"),
        ("%%bash\necho from bash", "from bash"),
        ("!echo from shell", "from shell"),
        ("x = !echo captured\nx", "['captured']"),
        ("name = 'value'\n!echo {name} $name", "value value"),
        ("%%capture caught\nprint('hidden')", ""),
        ("caught.stdout", "'hidden\\n'"),
        ("print('\\udc80')", "\\udc80"),
        (
            "input()",
            "StdinNotImplementedError: raw_input was called, but this frontend does not support input requests.",
        ),
        ("print('a', end=''); 1/0", "aZeroDivisionError: division by zero"),
        ("from IPython.display import HTML\nHTML('<b>x</b>')", "<IPython.core.display.HTML object>"),
        ("In[-1], type(Out).__name__", "('In[-1], type(Out).__name__', 'dict')"),
        ("__name__", "'__main__'"),
    ],
)
def test_cells_behave_as_in_a_notebook(kernel: Peer, code: str, shown: str) -> None:
    assert kernel.say(code) == shown


def test_pickle_finds_classes_of_the_notebook(kernel: Peer) -> None:
    assert kernel.say("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A") == "True"


def test_status_and_execution_count_are_reported(kernel: Peer) -> None:
    first = kernel.run("1").final
    second = kernel.run("1/0").final
    assert (first["status"], second["status"]) == ("ok", "error")
    assert second["execution_count"] == first["execution_count"] + 1


@needs("matplotlib")
def test_figures_arrive_as_images_at_the_end_of_the_cell(kernel: Peer) -> None:
    items = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('before the figure')").items
    assert [item["kind"] for item in items] == ["stream", "result", "display"] or "image/png" in items[-1]["data"]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import time\ntime.sleep(30)", "KeyboardInterrupt"),
        ("while True: pass", "KeyboardInterrupt"),
        ("import asyncio\nawait asyncio.sleep(30)", "CancelledError"),
        ("import subprocess\nsubprocess.run(['sleep', '30'])", "KeyboardInterrupt"),
        ("!sleep 30", "KeyboardInterrupt"),
    ],
)
def test_interrupt_ends_the_cell_and_keeps_the_state(kernel: Peer, code: str, shown: str) -> None:
    kernel.run("kept = 41")
    start = time.monotonic()
    assert shown in kernel.say(code, interrupt_after_s=0.2, timeout_s=5)
    assert time.monotonic() - start < 3
    assert kernel.say("kept + 1") == "42"


def test_interrupt_between_cells_does_nothing(kernel: Peer) -> None:
    os.kill(kernel.pid, 2)
    time.sleep(0.05)
    assert kernel.say("'alive'") == "'alive'"


def test_large_display_is_cut_to_a_frame(kernel: Peer) -> None:
    answer = kernel.run("from IPython.display import display\ndisplay({'text/plain': 'x' * 5_000_000}, raw=True)")
    assert answer.final["status"] == "ok"
    assert len(answer.items[-1]["data"]["text/plain"]) < 1 << 20


def test_exit_ends_the_kernel(start: Callable[[], Peer]) -> None:
    peer = start()
    peer.run("exit")
    with pytest.raises(EOFError):
        peer.run("1")


def test_children_continue_the_state_and_do_not_see_each_other(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.run(
        "import random\nrandom.seed(5)\nitems = [1]\ndef grow(): items.append(random.random()); return len(items)"
    )
    first, second = parent.fork(2)
    assert first.say("grow()") == "2"
    assert first.say("items[-1]") == second.say("grow(); items[-1]"), (
        "children that act alike must see equal random numbers"
    )
    assert parent.say("len(items)") == "1"
    assert int(first.run("1").final["execution_count"]) > int(parent.run("1").final["execution_count"]) - 1


@needs("numpy")
def test_random_states_are_the_parents_or_reseeded(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.run("import random, numpy as np\nrandom.seed(1); np.random.seed(1); g = np.random.default_rng(1)")
    code = "(random.random(), float(np.random.rand()), float(g.random()))"
    same = [child.say(code) for child in parent.fork(2)]
    assert same[0] == same[1] == parent.say(code)
    seeded = [child.say("(random.random(), float(np.random.rand()))") for child in parent.fork(3, seeds=[7, 7, 8])]
    assert seeded[0] == seeded[1] != seeded[2]


def test_child_is_interrupted_alone(start: Callable[[], Peer]) -> None:
    parent = start()
    child = parent.fork()[0]
    assert "KeyboardInterrupt" in child.say("import time; time.sleep(30)", interrupt_after_s=0.2, timeout_s=5)
    assert "CancelledError" in child.say("import asyncio; await asyncio.sleep(30)", interrupt_after_s=0.2, timeout_s=5)
    assert parent.say("1") == "1"


def test_tasks_of_the_agent_live_on_in_the_child(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.run(
        "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n"
        "    while True: ticks += 1; await asyncio.sleep(0.01)"
    )
    parent.run("task = asyncio.ensure_future(tick())")
    child = parent.fork()[0]
    assert child.say("before = ticks\nawait asyncio.sleep(0.2)\nticks - before > 3, task.done()") == "(True, False)"


def test_open_files_have_their_own_offset_in_each_child(start: Callable[[], Peer], tmp_path: Path) -> None:
    parent = start()
    parent.run(
        "log = open('log.txt', 'w+'); log.write('parent '); log.flush()\nreader = open('log.txt'); reader.read(3)"
    )
    child = parent.fork(roots=[str(tmp_path)])[0]
    assert child.say("reader.read()") == "'ent '"
    assert parent.say("reader.read()") == "'ent '"
    parent.run("import tempfile; gone = tempfile.TemporaryFile(dir='.'); gone.write(b'ab'); gone.flush()")
    other = parent.fork(roots=[str(tmp_path)])[0]
    other.run("gone.write(b'CD'); gone.flush()")
    assert parent.say("gone.write(b'x'); gone.flush(); gone.seek(0); gone.read()") == "b'abx'"


def test_pipes_and_shared_memory_are_not_shared_with_siblings(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.run("import os, mmap\nr, w = os.pipe()\nm = mmap.mmap(-1, 4096)\nm[:1] = b'p'")
    first, second = parent.fork(2)
    assert first.say("m[:1]") == "b'p'"
    first.run("os.write(w, b'secret'); m[:1] = b'1'")
    second.run("os.set_blocking(r, False)")
    assert "BlockingIOError" in second.say("os.read(r, 10)")
    assert second.say("m[:1]") == "b'p'"
    assert first.say("os.read(r, 10)") == "b'secret'"


@pytest.mark.parametrize(
    ("code", "what", "named"),
    [
        (
            "import threading as t, time\nt.Thread(target=time.sleep, args=(30,), name='loader', daemon=True).start()",
            "threads",
            "loader",
        ),
        ("import subprocess\np = subprocess.Popen(['sleep', '30'])", "subprocesses", "sleep 30"),
        ("import socket\ns = socket.socket()", "sockets", "descriptors"),
    ],
)
def test_refusals_name_the_thing_and_the_kernel_goes_on(
    start: Callable[[], Peer], code: str, what: str, named: str
) -> None:
    parent = start()
    parent.run(code)
    with pytest.raises(ForkRefusedByKernel, match=named) as refused:
        parent.fork()
    assert refused.value.what == what
    assert parent.say("'goes on'") == "'goes on'"
    parent.run("p.kill()" if what == "subprocesses" else "s.close()" if what == "sockets" else "")


def test_fork_during_an_await_is_refused(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.send({"type": "execute", "cell": 1, "code": "import asyncio; await asyncio.sleep(0.5)"})
    time.sleep(0.1)
    with pytest.raises(ForkRefusedByKernel, match="still running"):
        parent.fork()


@needs("tqdm")
def test_a_progress_bar_and_a_bash_cell_do_not_forbid_forks(start: Callable[[], Peer]) -> None:
    parent = start()
    parent.run("from tqdm.auto import tqdm\nfrom tqdm import tqdm as plain\nbar = plain(total=9); bar.update(1)")
    parent.run("%%bash\necho x")
    child = parent.fork()[0]
    assert child.say("%%bash\necho again") == "again"
    assert parent.say("%%bash\necho again") == "again"


SURVIVORS = {
    "openblas": (
        "numpy",
        "import numpy as np\na = np.random.rand(600, 600)\nprint((a @ a).sum() > 0, np.linalg.svd(a[:50])[1][0] > 0)",
    ),
    "kmeans": (
        "sklearn",
        "from sklearn.cluster import KMeans\nimport numpy as np\nX = np.random.rand(4000, 4)\n"
        "print(KMeans(4, n_init=1).fit(X).inertia_ > 0)",
    ),
    "histgb": (
        "sklearn",
        "from sklearn.ensemble import HistGradientBoostingClassifier as H\nimport numpy as np\n"
        "X = np.random.rand(4000, 4)\nprint(H(max_iter=3).fit(X, X[:, 0] > .5).score(X, X[:, 0] > .5) > .9)",
    ),
    "forest": (
        "sklearn",
        "from sklearn.ensemble import RandomForestClassifier as R\nimport numpy as np\n"
        "X = np.random.rand(500, 4)\nprint(R(4, n_jobs=2).fit(X, X[:, 0] > .5).score(X, X[:, 0] > .5) > .9)",
    ),
    "loky": (
        "joblib",
        "from joblib import Parallel, delayed\nprint(Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(4)))",
    ),
    "pool": ("numpy", "import multiprocessing as mp\nwith mp.Pool(2) as p: print(p.map(abs, [-1, -2]))"),
    "pandas": ("pandas", "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2]}).groupby('a').size().sum() == 2)"),
    "sqlite": (
        "sqlite3",
        "import sqlite3\nif 'db' not in globals(): db = sqlite3.connect(':memory:'); db.execute('create table t(a)')\n"
        "db.execute('insert into t values(1)'); print(db.execute('select count(*) from t').fetchone()[0] > 0)",
    ),
    "logging": (
        "logging",
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, force=True)\nlogging.warning('x')",
    ),
    "torch": (
        "torch",
        "import torch\nm = torch.nn.Linear(64, 1); o = torch.optim.Adam(m.parameters())\n"
        "for _ in range(3):\n    l = m(torch.rand(4096, 64)).pow(2).mean(); o.zero_grad(); l.backward(); o.step()\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.rand(8, 4)), batch_size=2, num_workers=2)\n"
        "print(sum(len(b[0]) for b in loader), l.item() < 10)",
    ),
    "pyarrow": ("pyarrow", "import pyarrow.compute as pc, pyarrow as pa\nprint(pc.sum(pa.array(range(100000))))"),
    "tokenizers": (
        "tokenizers",
        "from tokenizers import Tokenizer, models\nprint(len(Tokenizer(models.BPE()).encode_batch(['a b'] * 100)))",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(SURVIVORS[name][0])) for name in SURVIVORS])
def test_library_works_in_children_after_the_parent_used_it(start: Callable[[], Peer], name: str) -> None:
    code = SURVIVORS[name][1]
    parent = start()
    expected = parent.say(code, timeout_s=60)
    assert "Error" not in expected
    child = parent.fork()[0]
    assert child.say(code, timeout_s=20) == expected
    grandchild = child.fork()[0]
    assert grandchild.say(code, timeout_s=20) == expected
    assert parent.say(code, timeout_s=20) == expected


def test_three_hundred_forks_leave_nothing_behind(start: Callable[[], Peer]) -> None:
    parent = start()
    count = "import os\nlen(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))"
    parent.fork()[0].close()
    before = parent.say(count)
    ours = len(os.listdir("/proc/self/fd"))
    for _ in range(60):
        children = parent.fork(5)
        for child in children:
            child.close()
    assert parent.say(count) == before
    assert len(os.listdir("/proc/self/fd")) == ours
    assert parent.fork()[0].say(count) == before
    assert parent.say("open('/proc/self/task/%d/children' % os.getpid()).read()") == "''"
