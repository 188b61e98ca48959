"""The real supervisor as pid 1 of its own namespace, with an agent that is another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("supervisor_client")

from supervisor_client import Client, ename, write  # noqa: E402

pytest_plugins = ["supervisor_client"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the supervisor needs Linux")


# -- isolation ------------------------------------------------------------------------------------------------------

NAMESPACES = {
    "root": ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
    "leaf": ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"],
}


def reveal_python(prefix: list[str], aside: Path) -> list[str]:
    """For an interpreter in a closed home: opens that folder in the mount namespace, empty otherwise."""
    base = Path(sys.base_prefix).resolve()
    closed = next((p for p in reversed(base.parents) if not p.stat().st_mode & 0o001), None)
    if closed is None:
        return prefix
    aside.mkdir()
    script = (
        f"mount --bind {base} {aside} && mount -t tmpfs -o mode=755 none {closed} && mkdir -p {base} && "
        f'mount --bind {aside} {base} && exec "$@"'
    )
    return [*prefix, "sh", "-c", script, "sh"]


@pytest.fixture(scope="module", params=["root", "leaf"])
def caged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A supervisor that is pid 1: as root with an agent uid, or with one mapped uid and a leaf user namespace."""
    prefix = NAMESPACES[request.param]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip(f"{' '.join(prefix)} does not work here")
    work = Path(tempfile.mkdtemp(prefix="rg-test-"))  # pytest's own folders are closed to other users
    work.chmod(0o777)
    if request.param == "root":
        prefix = reveal_python(prefix, work / "python")
    try:
        with Client(
            work / "work",
            prefix=prefix,
            isolated=True,
            userns_leaf=request.param == "leaf",
            agent_uid=1000,
            agent_gid=1000,
            limits={"processes": 100},
        ) as client:
            assert client.hello["pid"] == 1
            reply = client.start()
            assert reply.last["type"] == "done", reply.last
            yield client
    finally:
        if not os.path.ismount(work / "python"):  # the mount is private to the namespace; never delete through it
            shutil.rmtree(work, ignore_errors=True)


def test_the_agent_is_unprivileged(caged: Client) -> None:
    status = caged.cell("print(open('/proc/self/status').read())").text
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert facts["Uid"].split() == ["1000"] * 4
    assert facts["Gid"].split() == ["1000"] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    caged.cell(
        "import os\nfor number in (2, 9, 15, 19): os.kill(1, number)"
    )  # same host uid in a leaf: allowed, no effect
    assert caged.ask("stat").last["type"] == "done"
    for code in ("open('/proc/1/mem', 'rb')", "import os; os.readlink('/proc/1/fd/0')"):
        assert ename(caged.cell(code)) == "PermissionError"
    assert ename(caged.cell("x = bytearray(3 << 30)")) == "MemoryError"
    assert caged.ask("run", argv=["id", "-u"]).text == "1000\n"
    assert caged.ask("run", argv=["id", "-u"], user="root").text == "0\n"


def test_files_belong_to_the_agent(caged: Client) -> None:
    assert write(caged, "new/file", b"data").last["type"] == "done"
    assert caged.cell("open('new/file', 'a').write('more'); print(open('new/file').read())").text == "datamore\n"
    assert caged.ask("read_file", path="new/file", max_bytes=100).data == b"datamore"
    assert caged.cell("import os; os.chmod('new/file', 0)").last["status"] == "ok"
    assert caged.ask("read_file", path="new/file", max_bytes=100).last.get("code") in ("denied", None)


def test_a_kill_reaches_everything_in_the_namespace(caged: Client) -> None:
    code = (
        "import subprocess, signal\n"
        "for _ in range(5): subprocess.Popen('(sleep 99 &)', shell=True, start_new_session=True)\n"
    )
    reply = caged.cell(code + "signal.signal(2, signal.SIG_IGN)\nwhile True: pass", timeout_s=0.7)
    assert (reply.last["status"], reply.last["killed"]) == ("timeout", True)
    assert caged.ask("stat").last["processes"] == 0
    assert caged.start().last["type"] == "done"


def test_a_fork_bomb_is_bounded_and_cleared(caged: Client) -> None:
    if caged.settings["userns_leaf"] and os.getuid() == 0:
        pytest.skip(
            "as root the kernel does not enforce RLIMIT_NPROC in a leaf; real sandboxes of root use an agent uid"
        )
    bomb = caged.cell("!f() { f | f & }; f; sleep 5", timeout_s=1.5)
    assert bomb.last["status"] in ("timeout", "died", "ok")
    end = time.monotonic() + 5
    while caged.ask("stat").last["processes"] > 2 and time.monotonic() < end:
        time.sleep(0.1)
    if caged.ask("stat").last["kernels"][0]["state"] == "none":
        caged.start()
    assert caged.cell("print(1)").text == "1\n"
