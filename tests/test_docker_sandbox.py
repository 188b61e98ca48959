"""Containers: what the engine really made, and what can be done in them."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from research_gym.sandbox.base import Bind, SandboxSpec
from research_gym.sandbox.docker_settings import LABEL, audit, machine_mark, writable_areas
from research_gym.sandbox.waiting import drive
from research_gym.testing.containers import LIMITS, SPEC, marked, opened, text

HOME = "/home/agent"
docker = pytest.importorskip("docker", reason="the docker SDK is not installed: pip install 'research-gym[docker]'")


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    client = docker.APIClient(version="auto", timeout=30, **docker.utils.kwargs_from_env())
    yield client
    client.close()


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{abs(hash(request.node.nodeid))}"


@pytest.mark.docker
def test_container_is_what_was_asked_and_every_deviation_is_seen(engine: Any, mark: str) -> None:
    with opened(mark, kernel=False):
        [container] = marked(engine, mark)
        inspected = engine.inspect_container(container)
    areas = writable_areas(SPEC, home=HOME)
    assert audit(inspected, spec=SPEC, areas=areas) == []
    changes: list[Callable[[Any], object]] = [
        lambda c: c["HostConfig"].update(NetworkMode="bridge"),
        lambda c: c["HostConfig"].update(Privileged=True),
        lambda c: c["HostConfig"].update(ReadonlyRootfs=False),
        lambda c: c["HostConfig"].update(CapAdd=["SYS_ADMIN"]),
        lambda c: c["HostConfig"].update(CapDrop=None),
        lambda c: c["HostConfig"].update(PidsLimit=None),
        lambda c: c["HostConfig"].update(Memory=0),
        lambda c: c["HostConfig"].update(NanoCpus=0),
        lambda c: c["HostConfig"].update(PidMode="host"),
        lambda c: c["HostConfig"].update(IpcMode="host"),
        lambda c: c["HostConfig"].update(SecurityOpt=[]),
        lambda c: c["HostConfig"].update(SecurityOpt=["no-new-privileges:true", "seccomp=unconfined"]),
        lambda c: c["HostConfig"].update(LogConfig={"Type": "json-file"}),
        lambda c: c["HostConfig"].update(AutoRemove=False),
        lambda c: c["HostConfig"].update(Devices=[{"PathOnHost": "/dev/kvm"}]),
        lambda c: c["HostConfig"].update(Tmpfs={}),
        lambda c: c["Config"].update(StdinOnce=False),
        lambda c: c["Config"].update(Tty=True),
        lambda c: c.update(Mounts=[{"Type": "volume", "Destination": "/data", "RW": True}]),
        lambda c: c.update(
            Mounts=[
                {"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/var/run/docker.sock", "RW": False}
            ]
        ),
    ]
    for number, change in enumerate(changes):
        changed = copy.deepcopy(inspected)
        change(changed)
        assert len(audit(changed, spec=SPEC, areas=areas)) == 1, f"change {number} was not seen"


@pytest.mark.docker
def test_container_carries_its_owner_and_no_host_environment(
    engine: Any, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-in-the-trainer")
    monkeypatch.setenv("http_proxy", "http://canary.invalid:1")
    with opened(mark) as session:
        [container] = marked(engine, mark)
        inspected = engine.inspect_container(container)
        inside = text(session, "import os; print(dict(os.environ))\n!cat /proc/self/environ /etc/hostname")
    labels = inspected["Config"]["Labels"]
    assert labels[LABEL] == "1"
    assert labels["research_gym.owner"] == f"{os.getpid()}@{machine_mark()}"
    assert "canary" not in str(inspected["Config"]["Env"])
    assert "canary" not in inside
    assert socket.gethostname() not in inside.split()


@pytest.mark.docker
def test_agent_has_no_privileges_seen_from_the_kernel(mark: str) -> None:
    with opened(mark) as session:
        status = dict(
            line.split(":", 1) for line in text(session, "print(open('/proc/self/status').read())").splitlines()
        )
        assert status["Uid"].split() == ["1000"] * 4
        assert status["Gid"].split() == ["1000"] * 4
        assert status["Groups"].strip() in ("", "1000")
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"
        found = text(
            session, "!find / -xdev -perm /6000 -type f 2>/dev/null; ls /sys/class/net; ls /var/run/docker.sock"
        )
        assert found.split()[0] == "lo", found


@pytest.mark.docker
def test_binds_are_readable_and_read_only_inside_a_writable_area(mark: str, tmp_path: Path) -> None:
    """The work directory is a tmpfs at the parent of the data: the data must not be hidden by it."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "rows.csv").write_text("a,b\n1,2\n")
    for path in (tmp_path, tmp_path / "train"):
        path.chmod(0o755)
    spec = SandboxSpec(workdir="/home/ubuntu", limits=LIMITS, binds=(Bind(tmp_path, "/home/ubuntu/data"),))
    with opened(mark, spec=spec) as session:
        assert text(session, "!pwd; cat data/train/rows.csv") == "/home/ubuntu\r\na,b\r\n1,2" or "a,b" in text(
            session, "print(open('data/train/rows.csv').read())"
        )
        out = text(
            session,
            "import os\n"
            "for path in ('data/new', 'data/train/rows.csv', '/usr/new', '/new', '/opt/kernel/new', '/etc/passwd'):\n"
            "    try: open(path, 'a'); print('opened', path)\n"
            "    except OSError: pass\n"
            "for path in ('new', '/tmp/new', os.path.expanduser('~/new'), '/dev/shm/new'):\n"
            "    print(open(path, 'w').write('x'), end='')",
        )
        assert out == "1111"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["rows.csv", "train"]


@pytest.mark.docker
def test_scripts_in_every_writable_area_can_be_executed(mark: str) -> None:
    with opened(mark) as session:
        out = text(
            session,
            "import os, subprocess\n"
            "for folder in ('.', '/tmp', os.path.expanduser('~')):\n"
            "    path = os.path.join(os.path.abspath(folder), 'tool')\n"
            "    open(path, 'w').write('#!/bin/sh\\necho ran'); os.chmod(path, 0o755)\n"
            "    print(subprocess.run([path], capture_output=True, text=True).stdout.strip())",
        )
    assert out.split() == ["ran"] * 3


@pytest.mark.docker
def test_disk_is_full_at_its_size_and_works_again(mark: str) -> None:
    with opened(mark) as session:
        out = text(
            session,
            "import os\n"
            "for folder in ('/content', '/tmp', os.path.expanduser('~'), '/dev/shm'):\n"
            "    paths, written = [os.path.join(folder, f'fill{n}') for n in range(10)], 0\n"
            "    try:\n"
            "        for path in paths:\n"
            "            with open(path, 'wb', buffering=0) as file:\n"
            "                for _ in range(40): written += file.write(bytes(1 << 18))\n"
            "    except OSError as error: print(error.errno, written >> 20)\n"
            "    for path in paths:\n"
            "        if os.path.exists(path): os.remove(path)\n"
            "count = 0\n"
            "try:\n"
            "    while count < 20000: open(f'/tmp/{count}', 'w').close(); count += 1\n"
            "except OSError as error: print(error.errno, count < 5000)",
        )
        filled = [tuple(line.split()) for line in out.splitlines()]
        assert [error for error, _ in filled] == ["28"] * 5
        # A kernel keeps a little of its own in /tmp and at home.
        assert [int(size) for _, size in filled[:4]] in ([16, a, b, 16] for a in (3, 4) for b in (3, 4))
        assert filled[4][1] == "True"
        drive(session.write_file("/content/after", b"x"))
        assert drive(session.read_file("/content/after", max_bytes=10)) == b"x"


@pytest.mark.docker
def test_data_sets_of_packages_are_not_in_the_image(mark: str) -> None:
    with opened(mark) as session:
        out = text(
            session,
            "import sklearn.datasets as d\n"
            "for load in (d.load_digits, d.load_iris, d.load_wine, d.load_breast_cancer, d.load_diabetes):\n"
            "    try: load(); print('loaded', load.__name__)\n"
            "    except (FileNotFoundError, ModuleNotFoundError): pass\n"
            "import pandas, scipy, matplotlib.pyplot, tqdm, sklearn.linear_model; print('imports')",
        )
        assert out == "imports"
        names = "digits|iris|wine_data|breast_cancer|diabetes|linnerud"
        search = f"find / -xdev -type f -size +1k | grep -E '/[^/]*({names})[^/]*$' | grep -vE '[.](py|pyc|so)$'"
        found = drive(session.run(["sh", "-c", search], user="root"))
        assert found.stdout.strip() == b""
        assert drive(session.run(["git", "--version"])).exit_code == 0
