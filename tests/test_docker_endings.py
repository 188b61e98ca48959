"""Containers that do not start, get lost, are closed, or lose their owner: in time, in words, nothing left behind."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import research_gym
from research_gym.errors import SandboxError, SandboxLost, SandboxStartError, SandboxUnavailable
from research_gym.limits import Limits
from research_gym.sandbox.base import SandboxSpec
from research_gym.sandbox.docker import DockerSandbox
from research_gym.sandbox.docker_engine import Leftover, leftovers
from research_gym.sandbox.docker_settings import LABEL, machine_mark, owner_is_gone, owner_labels
from research_gym.sandbox.waiting import block, drive
from research_gym.testing.containers import LIMITS, SPEC, cell, marked, opened, text

docker = pytest.importorskip("docker", reason="the docker SDK is not installed: pip install 'research-gym[docker]'")


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    client = docker.APIClient(version="auto", timeout=30, **docker.utils.kwargs_from_env())
    yield client
    client.close()


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{abs(hash(request.node.nodeid))}"


# Failing to start -----------------------------------------------------------------------------------------------------


def _import_image(engine: Any, name: str, **changes: Any) -> None:
    """An image with one empty folder and nothing else."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"), io.BytesIO(b""))
    engine.import_image_from_data(data.getvalue(), repository=name, **changes)


@pytest.mark.docker
def test_absent_image_is_said_at_once(engine: Any, mark: str) -> None:
    with (
        pytest.raises(SandboxStartError, match=r"research-gym/no-such-image.*make docker"),
        opened(mark, image="research-gym/no-such-image:1"),
    ):
        pass
    assert marked(engine, mark) == []


@pytest.mark.docker
def test_image_without_python_fails_with_the_engines_words(engine: Any, mark: str) -> None:
    _import_image(engine, "research-gym/test-empty")
    try:
        with (
            pytest.raises(SandboxStartError, match=r"python3.*not found"),
            opened(mark, image="research-gym/test-empty"),
        ):
            pass
        assert marked(engine, mark) == []
    finally:
        engine.remove_image("research-gym/test-empty", force=True)


@pytest.mark.docker
def test_image_that_brings_a_writable_volume_is_refused(engine: Any, mark: str) -> None:
    _import_image(engine, "research-gym/test-volume", changes=["VOLUME /data"])
    before = {volume["Name"] for volume in engine.volumes()["Volumes"] or []}
    try:
        with pytest.raises(SandboxStartError, match="mount at /data"), opened(mark, image="research-gym/test-volume"):
            pass
        assert marked(engine, mark) == []
        assert {volume["Name"] for volume in engine.volumes()["Volumes"] or []} <= before
    finally:
        engine.remove_image("research-gym/test-volume", force=True)


@pytest.mark.docker
def test_image_without_ipykernel_fails_when_the_kernel_starts(engine: Any, mark: str) -> None:
    bases = [
        tag
        for row in engine.images()
        for tag in row["RepoTags"] or []
        if tag in ("research-gym/base:bookworm", "python:3.11-slim-bookworm")
    ]
    if not bases:
        pytest.fail("no base image is on the engine; `make docker` makes one")
    began = time.monotonic()
    with pytest.raises(SandboxError, match=r"ipykernel is missing|No module named"), opened(mark, image=bases[0]):
        pass
    assert time.monotonic() - began < LIMITS.start_timeout_s + 5
    assert marked(engine, mark) == []


@pytest.mark.docker
def test_unknown_runtime_fails_with_the_engines_words(engine: Any) -> None:
    with pytest.raises(SandboxStartError, match=r"(?i)runtime.*no-such-runtime"):
        drive(DockerSandbox(runtime="no-such-runtime").open(SPEC))


def test_no_engine_is_unavailable_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    began = time.monotonic()
    with pytest.raises(SandboxUnavailable, match="no engine answers"):
        drive(DockerSandbox().open(SPEC))
    assert time.monotonic() - began < 2
    with pytest.raises(SandboxUnavailable):
        leftovers()
    assert [finding.ok for finding in DockerSandbox().findings()] == [False]


def test_silent_engine_fails_within_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/silent.sock")
        listening.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
        began = time.monotonic()
        with pytest.raises((SandboxStartError, SandboxUnavailable)):
            drive(DockerSandbox().open(SandboxSpec(limits=Limits(start_timeout_s=1.0))))
        assert time.monotonic() - began < 2


@pytest.mark.docker
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.3])
def test_giving_up_while_a_container_starts_leaves_nothing(engine: Any, mark: str, after_s: float) -> None:
    work = DockerSandbox().open(SandboxSpec(limits=LIMITS, labels={"research_gym.test": mark}))
    until = time.monotonic() + after_s
    wait = next(work)
    while time.monotonic() < until:
        block(type(wait)(wait.reads, wait.writes, until))
        wait = next(work)
    work.close()
    gone_by = time.monotonic() + 5
    time.sleep(0.3)
    while marked(engine, mark) and time.monotonic() < gone_by:
        time.sleep(0.05)
    assert marked(engine, mark) == []


# Getting lost and going away ------------------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.parametrize("how", ["kill", "remove", "pause"])
def test_container_lost_from_outside_is_sandbox_lost_with_the_engines_word(
    engine: Any, mark: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("research_gym.sandbox.session.MARGIN_S", 1.0)  # only patience ends a paused one
    with opened(mark) as session:
        [container] = marked(engine, mark)
        act = {
            "kill": lambda: engine.kill(container),
            "remove": lambda: engine.remove_container(container, force=True),
            "pause": lambda: engine.pause(container),
        }[how]
        timer = threading.Timer(0.5, act)
        timer.start()
        began = time.monotonic()
        with pytest.raises(SandboxLost, match={"kill": "kill", "remove": "destroy|kill", "pause": "paused"}[how]):
            cell(session, "import time; time.sleep(60)", timeout_s=60 if how != "pause" else 2)
        timer.join()
        assert time.monotonic() - began < (3 if how != "pause" else 8)
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 5
    assert marked(engine, mark) == []


@pytest.mark.docker
def test_memory_of_a_child_ends_the_child_and_not_the_container(mark: str) -> None:
    with opened(mark) as session:
        out = text(
            session, "x = 1\n!tail -c 2G /dev/zero | wc -c\n!sh -c 'tail /dev/zero'; echo code $?\nprint('x is', x)"
        )
        assert out.endswith("x is 1")
        result = cell(session, "hog = [bytearray(64 << 20) for _ in range(100)]")
        assert result.status in ("error", "died")


@pytest.mark.docker
def test_fork_bomb_stays_inside_and_close_is_quick(engine: Any, mark: str) -> None:
    with opened(mark) as session:
        cell(session, "%%bash\nbomb() { bomb | bomb & }; bomb", timeout_s=3)
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 5
    assert marked(engine, mark) == []


@pytest.mark.docker
def test_close_is_quick_while_a_flood_is_not_read(engine: Any, mark: str) -> None:
    with opened(mark) as session:
        work = session.execute(
            "import os\nwhile True: os.write(1, b'y' * 65536); print('x' * 1000)", timeout_s=60, on_timeout="interrupt"
        )
        next(work)
        time.sleep(2)
        began = time.monotonic()
        session.close()
        session.close()
        assert time.monotonic() - began < 5
    assert marked(engine, mark) == []


_OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from research_gym.limits import Limits, MIB
from research_gym.sandbox.base import SandboxSpec
from research_gym.sandbox.docker import DockerSandbox
from research_gym.sandbox.waiting import drive
limits = Limits(memory_bytes=512 * MIB, disk_bytes=16 * MIB)
spec = SandboxSpec(limits=limits, labels={"research_gym.test": sys.argv[2]})
if sys.argv[3] == "fork-while-starting":
    starting = DockerSandbox().open(spec)
    next(starting)
    time.sleep(float(sys.argv[4]))
else:
    session = drive(DockerSandbox().open(spec))
child = os.fork() if sys.argv[3].startswith("fork") else 1
if child == 0:
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
time.sleep(30)
"""


@pytest.mark.docker
@pytest.mark.parametrize(
    ("ending", "after_s"), [("kill", 0.0), ("fork", 0.0), ("fork-while-starting", 0.05), ("fork-while-starting", 0.25)]
)
def test_container_dies_with_a_killed_owner_even_if_a_forked_child_lives(
    engine: Any, mark: str, ending: str, after_s: float
) -> None:
    root = str(Path(research_gym.__file__).resolve().parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, root, mark, ending, str(after_s)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until = time.monotonic() + 2
        time.sleep(0.2)
        while (left := marked(engine, mark)) and time.monotonic() < until:
            time.sleep(0.05)
        # Created but never started, a container has no life line yet: that is what `leftovers` is for.
        left = [container for container in left if engine.inspect_container(container)["State"]["Status"] != "created"]
        assert left == []
    finally:
        owner.stdout.close()
        if child > 1:
            os.kill(child, signal.SIGKILL)
        for container in marked(engine, mark):
            engine.remove_container(container, force=True)


@pytest.mark.docker
def test_leftovers_are_those_whose_owner_is_gone(engine: Any, mark: str) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    rows = {
        "gone": {**owner_labels(), "research_gym.owner": f"{gone.pid}@{machine_mark()}"},
        "elsewhere": {**owner_labels(), "research_gym.owner": f"{gone.pid}@another-host"},
        "mine": owner_labels(),
    }
    made = {}
    try:
        for name, labels in rows.items():
            made[name] = engine.create_container(
                "research-gym/kernel:latest", ["true"], labels={LABEL: "1", "research_gym.test": mark, **labels}
            )["Id"]
        found: list[Leftover] = [row for row in leftovers() if row.id in made.values()]
        assert [row.id for row in found] == [made["gone"]]
        assert found[0].owner.startswith(f"{gone.pid}@")
    finally:
        for container in made.values():
            engine.remove_container(container, force=True)


def test_a_reused_process_number_does_not_count_as_the_owner() -> None:
    labels = owner_labels()
    assert not owner_is_gone(labels)
    assert owner_is_gone({**labels, "research_gym.owner_started": "1"})
    assert not owner_is_gone({})


@pytest.mark.docker
def test_findings_are_all_well_and_name_what_is_not() -> None:
    findings = DockerSandbox().findings()
    assert all(finding.ok for finding in findings), findings
    assert {finding.topic for finding in findings} >= {
        "engine",
        "limits",
        "runtime",
        "security",
        "storage",
        "image",
        "container",
    }
    bad = {
        finding.topic: finding for finding in DockerSandbox(image="no-such-image", runtime="no-such-runtime").findings()
    }
    assert not bad["image"].ok
    assert bad["image"].mend
    assert not bad["runtime"].ok
    assert bad["runtime"].mend
