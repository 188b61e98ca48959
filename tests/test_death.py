"""However the trainer dies, its sandboxes die within two seconds: nothing cleans up but the end of the stream."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import research_gym
from research_gym.testing.tasks import write_answer_task

WITHIN_S = 2.0
ENVS = 4

_TRAINER = r"""
import os, sys, time
sys.path.insert(0, sys.argv[1])
import research_gym
from research_gym.envs.research_env import ResearchEnv
from research_gym.sandbox.waiting import block

task, sandbox, mark, ending = sys.argv[2:]
cell = f'''
import subprocess
command = ["bash", "-c", "trap '' TERM HUP INT; exec -a {mark} sleep 999"]
subprocess.Popen(command); subprocess.Popen(command, start_new_session=True)
while True: print("y" * 100)
'''
envs = [ResearchEnv(task, sandbox=sandbox, limits={"memory_bytes": 1 << 29}) for _ in range(int(os.environ["ENVS"]))]
for env in envs:
    env.reset(seed=0)
cells = [env.step_steps(cell) for env in envs]
waits = [next(work) for work in cells]
until = time.monotonic() + 1.0
while time.monotonic() < until:
    for i, work in enumerate(cells):
        block(type(waits[i])(waits[i].reads, waits[i].writes, time.monotonic() + 0.02))
        waits[i] = next(work)
if ending == "fork":
    child = os.fork()
    if child == 0:
        os.write(1, f"child {os.getpid()}\n".encode())  # one write: the parent prints too
        time.sleep(60)
        os._exit(0)
os.write(1, b"ready\n")
sys.stdin.readline()
if ending == "exception":
    raise LookupError("a bug of the trainer")
if ending == "exit":
    os._exit(3)
time.sleep(60)
"""


@dataclass
class Trainer:
    """A trainer in the middle of its cells."""

    process: subprocess.Popen[str]
    mark: str
    child: int = 0
    inside: dict[int, str] = field(default_factory=dict)
    """Every process that belongs to its sandboxes, with its start time."""


def _start(folder: Path, *, sandbox: str, ending: str) -> Trainer:
    mark = f"rgdeath{os.getpid()}x{time.monotonic_ns()}"
    root = str(Path(research_gym.__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, root, str(write_answer_task(folder)), sandbox, mark, ending],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "stderr").open("w"), text=True,
        env=os.environ | {"ENVS": str(ENVS)}, cwd=folder,
    )  # fmt: skip
    trainer = Trainer(process, mark)
    assert process.stdout is not None
    ready = False
    for line in process.stdout:
        if line.startswith("child"):
            trainer.child = int(line.split()[1])
        ready = ready or line.startswith("ready")
        if ready and (trainer.child or ending != "fork"):
            break
    else:
        pytest.fail(f"the trainer did not come up: {(folder / 'stderr').read_text()}")
    until = time.monotonic() + 20
    while len(_marked(mark)) < 2 * ENVS and time.monotonic() < until:
        time.sleep(0.1)
    assert len(_marked(mark)) == 2 * ENVS, "every cell started its two processes"
    for pid in _descendants(process.pid) | _in_containers(_containers(mark)) | set(_marked(mark)):
        if pid not in (process.pid, trainer.child):
            trainer.inside[pid] = _started(pid)
    assert len(trainer.inside) >= 4 * ENVS
    return trainer


def _marked(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[0] == mark.encode():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _started(pid: int) -> str:
    """Start time of a live process; empty for a dead one or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _containers(mark: str) -> set[str]:
    """Ids of the containers that hold the marked processes, from their control groups."""
    found = set()
    for pid in _marked(mark):
        try:
            found |= set(re.findall(r"[0-9a-f]{64}", Path(f"/proc/{pid}/cgroup").read_text()))
        except OSError:
            continue
    return found


def _in_containers(ids: set[str]) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if any(container in text for container in ids):
            found.add(int(path.parent.name))
    return found


def _left_containers(ids: set[str]) -> list[str]:
    if not ids:
        return []
    import docker

    client = docker.from_env()
    try:
        return [c.id for c in client.containers.list(all=True, ignore_removed=True) if c.id in ids]
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["sigkill", "sigterm", "exception", "exit", "fork"])
def test_nothing_is_left_two_seconds_after_the_trainer(sandbox_name: str, ending: str, tmp_path: Path) -> None:
    trainer = _start(tmp_path, sandbox=sandbox_name, ending=ending)
    process = trainer.process
    containers = _containers(trainer.mark)
    assert process.stdin is not None
    try:
        assert len(containers) == (ENVS if sandbox_name == "docker" else 0)
        if ending in ("sigkill", "fork"):
            process.send_signal(signal.SIGKILL)
        elif ending == "sigterm":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(timeout=20)
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            alive = [pid for pid, began in trainer.inside.items() if began and _started(pid) == began]
            if not alive and not _left_containers(containers):
                break
            time.sleep(0.05)
        alive = [pid for pid, began in trainer.inside.items() if began and _started(pid) == began]
        assert not alive, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive]
        assert not _left_containers(containers)
        if ending == "fork":
            assert _started(trainer.child), "the forked child was alive all the time"
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if trainer.child and _started(trainer.child):
            os.kill(trainer.child, signal.SIGKILL)


@pytest.mark.slow
def test_close_is_quick_after_idling_under_a_flood(sandbox_name: str, tmp_path: Path) -> None:
    """Shorter than the soak of the release check, the same shape: a background flood, an idle trainer, then close."""
    from research_gym.envs.research_env import ResearchEnv

    env = ResearchEnv(write_answer_task(tmp_path), sandbox=sandbox_name)
    env.reset(seed=0)
    env.step(
        "import threading\ndef flood():\n    while True: print('y' * 1000)\n"
        "threading.Thread(target=flood, daemon=True).start()"
    )
    idle_s = float(os.environ.get("RESEARCH_GYM_TEST_IDLE_S", "8"))
    time.sleep(idle_s)
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 5
