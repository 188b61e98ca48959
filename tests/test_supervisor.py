"""The real supervisor as a child of the test: commands, files, processes, and how everything ends."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("supervisor_client")

from supervisor_client import Client, alive, gone_within, result, write  # noqa: E402

pytest_plugins = ["supervisor_client"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the supervisor needs Linux")


# -- processes ------------------------------------------------------------------------------------------------------


def test_f69_orphans_are_reaped(box: Client) -> None:
    code = "import subprocess as s\nfor _ in range(100): s.Popen('(true &)', shell=True).wait()"
    assert box.cell(code, timeout_s=30).last["status"] == "ok"
    time.sleep(0.3)
    zombies = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            zombies += fields[0] == "Z" and int(fields[1]) == box.process.pid
    assert zombies == 0


def test_freeze_stops_everything_and_thaw_goes_on(box: Client) -> None:
    box.cell("import subprocess\np = subprocess.Popen(['sleep', '60'])")
    pid = int(result(box.cell("p.pid")))
    assert box.ask("freeze").last["stopped"] >= 3
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
    assert box.cell("1").last["code"] == "busy"
    assert box.ask("thaw").last["type"] == "done"
    assert result(box.cell("p.kill(); p.wait()")) == "-9"


def test_stat_describes_the_sandbox(box: Client) -> None:
    box.cell("1")
    facts = box.ask("stat").last
    assert facts["kernels"][0]["state"] == "idle"
    assert alive(facts["kernels"][0]["pid"])
    assert facts["processes"] >= 2
    assert facts["memory_bytes"] > 10 << 20
    assert facts["compute_s"] > 0


def test_the_kernel_sees_only_its_own_environment(box: Client) -> None:
    names = result(box.cell("import os; sorted(os.environ)"))
    for name in ("JPY_PARENT_PID", "PYTEST_CURRENT_TEST"):
        assert name not in names


# -- run ------------------------------------------------------------------------------------------------------------


def test_run_separates_streams_and_returns_the_status(bare: Client) -> None:
    reply = bare.ask("run", argv=["sh", "-c", "echo $X; echo e >&2; cat; exit 5"], env={"X": "y"}, timeout_s=10)
    assert {(i["name"], i["text"]) for i in reply.items} == {("stdout", "y\n"), ("stderr", "e\n")}
    assert (reply.last["exit_code"], reply.last["timed_out"]) == (5, False)
    assert bare.ask("run", argv=["no-such-program"], timeout_s=10).last["code"] == "exec_failed"
    assert bare.ask("run", argv=["sh", "-c", "kill -9 $$"], timeout_s=10).last["exit_code"] == -9
    assert bare.ask("run", argv=[], timeout_s=10).last["code"] == "bad_request"


def test_run_timeout_kills_the_whole_session(bare: Client) -> None:
    reply = bare.ask("run", argv=["sh", "-c", "sleep 555 & echo $!; sleep 555"], timeout_s=0.5)
    assert reply.last["timed_out"]
    assert not alive(int(reply.text))
    assert reply.last["duration_s"] < 2


def test_run_survives_the_end_of_a_kernel(box: Client) -> None:
    request = box.send("run", argv=["sh", "-c", "sleep 1.5; echo done"], timeout_s=10)
    assert box.cell("import os; os._exit(1)").last["status"] == "died"
    reply = box.reply(request)
    assert (reply.last["exit_code"], reply.text) == (0, "done\n")


def test_run_output_is_bounded(bare: Client) -> None:
    argv = ["sh", "-c", "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last"]
    reply = bare.ask("run", argv=argv, timeout_s=20, max_output_bytes=100_000)
    assert reply.text.startswith("first\n")
    assert reply.text.endswith("last\n")
    assert len(reply.text) <= 100_000
    assert len(reply.text) + reply.last["omitted_bytes"] == 3_000_011


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_go_in_and_come_out(bare: Client, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    assert write(bare, "deep/er/file.bin", data).last["type"] == "done"
    target = tmp_path / "work/deep/er/file.bin"
    assert target.read_bytes() == data
    assert target.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in target.parent.iterdir()] == ["file.bin"]
    reply = bare.ask("read_file", path="deep/er/file.bin", max_bytes=3_000_000)
    assert reply.data == data
    assert (reply.last["size"], reply.last["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert write(bare, str(target), b"").last["type"] == "done"
    assert bare.ask("read_file", path=str(target), max_bytes=10).data == b""


def test_writes_stay_beneath_the_roots(bare: Client, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "outside")
    (tmp_path / "work/file-link").symlink_to(tmp_path / "outside/target")
    (tmp_path / "work/folder").mkdir()
    assert write(bare, "link/x", b"1").last["code"] == "link"
    assert write(bare, str(tmp_path / "outside/x"), b"1").last["code"] == "denied"
    assert write(bare, "../outside/x", b"1").last["code"] == "bad_request"
    assert write(bare, "a\0b", b"1").last["code"] == "bad_request"
    assert write(bare, "folder", b"1").last["code"] == "not_regular"
    assert write(bare, "short", b"1", size=5).last["code"] == "bad_request"
    assert write(bare, "long", b"123", size=1).last["code"] == "bad_request"
    assert write(bare, "file-link", b"1").last["type"] == "done"  # the link itself is replaced
    assert list((tmp_path / "outside").iterdir()) == []
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == ["file-link", "folder", "link"]


def test_reads_refuse_what_is_not_a_plain_file(bare: Client, tmp_path: Path) -> None:
    work = tmp_path / "work"
    os.mkfifo(work / "fifo")
    (work / "link").symlink_to("/etc/passwd")
    (work / "dir-link").symlink_to("/etc")
    (work / "folder").mkdir()
    with open(work / "sparse", "wb") as file:
        file.truncate(3 << 30)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(work / "socket"))
    codes = {
        name: bare.ask("read_file", path=name, max_bytes=1 << 20, within_s=3).last.get("code")
        for name in ("fifo", "link", "dir-link/passwd", "folder", "sparse", "socket", "absent", "/dev/zero", "absent/x")
    }
    listener.close()
    assert codes == {
        "fifo": "not_regular",
        "link": "link",
        "dir-link/passwd": "link",
        "folder": "not_regular",
        "sparse": "too_large",
        "socket": "not_regular",
        "absent": "missing",
        "/dev/zero": "not_regular",
        "absent/x": "missing",
    }
    names = ("fifo", "link", "folder", "sparse", "socket", "absent")
    kinds = {name: bare.ask("stat", path=name).last.get("kind") for name in names}
    assert kinds == {
        "fifo": "fifo",
        "link": "link",
        "folder": "directory",
        "sparse": "regular",
        "socket": "socket",
        "absent": "none",
    }
    assert bare.ask("stat", path="dir-link/passwd").last["code"] == "link"


# -- the end --------------------------------------------------------------------------------------------------------


def test_requests_that_make_no_sense_are_answered(bare: Client) -> None:
    assert bare.ask("fly").last["code"] == "bad_request"
    assert bare.ask("execute", code="1", timeout_s=1, on_timeout="interrupt").last["code"] == "unknown_kernel"
    assert bare.ask("execute", code=1).last["code"] == "bad_request"
    assert bare.ask("execute", code="1", timeout_s="x").last["code"] == "bad_request"
    assert bare.ask("read_file", path=3, max_bytes=1).last["code"] == "bad_request"
    assert bare.ask("read_file", path="\ud800", max_bytes=1).last["code"] == "bad_request"


def test_a_second_request_for_a_busy_kernel_is_refused(box: Client) -> None:
    request = box.send("execute", code="import time; time.sleep(0.5)", timeout_s=10, on_timeout="interrupt")
    assert box.cell("1").last["code"] == "busy"
    assert box.ask("start", kernelspec="python3").last["code"] == "busy"
    assert box.reply(request).last["status"] == "ok"


def start_with_child(client: Client) -> int:
    client.start()
    client.cell("import subprocess\np = subprocess.Popen(['sleep', '999'], start_new_session=True)")
    return int(result(client.cell("p.pid")))


def test_end_of_stdin_kills_everything(bare: Client) -> None:
    child = start_with_child(bare)
    bare.send("execute", code="while True: pass", timeout_s=60, on_timeout="interrupt")
    bare.socket.close()
    bare.process.wait(3)
    assert gone_within(child, 1)


def test_close_answers_and_kills_everything(bare: Client) -> None:
    child = start_with_child(bare)
    assert bare.ask("close").last["type"] == "done"
    bare.process.wait(3)
    assert gone_within(child, 1)


def test_sigkill_of_the_supervisor_takes_the_kernel_along(bare: Client) -> None:
    bare.start()
    kernel = int(result(bare.cell("import os; os.getpid()")))
    bare.process.kill()
    bare.process.wait(3)
    assert gone_within(kernel, 2)


def test_life_s_ends_the_sandbox(tmp_path: Path) -> None:
    with Client(tmp_path / "work", limits={"life_s": 6.0}) as client:
        client.start()
        began = time.monotonic()
        with pytest.raises((EOFError, ConnectionError)):
            client.cell("while True: pass")
        assert time.monotonic() - began < 8
        client.process.wait(3)


def test_compute_s_kills_the_kernel(tmp_path: Path) -> None:
    with Client(tmp_path / "work", limits={"compute_s": 1.0}) as client:
        client.start()
        reply = client.cell("import time; time.sleep(30)")
        assert (reply.last["status"], reply.last["killed"]) == ("timeout", True)
        client.start()
        reply = client.cell("print(1)")
        assert (reply.last["status"], reply.last["killed"]) == ("timeout", True)


def test_a_host_that_does_not_read_costs_no_memory_and_close_still_works(bare: Client) -> None:
    bare.start()
    bare.cell(
        "import threading\ndef talk():\n    while True: print('x' * 10000, flush=True)\n"
        "threading.Thread(target=talk, daemon=True).start()"
    )
    time.sleep(2)
    rss_kib = next(
        int(line.split()[1])
        for line in Path(f"/proc/{bare.process.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    assert rss_kib < 120_000
    began = time.monotonic()
    assert bare.ask("close").last["type"] == "done"
    bare.process.wait(4)
    assert time.monotonic() - began < 4


def test_waiting_costs_no_cpu(box: Client) -> None:
    def cpu() -> float:
        fields = Path(f"/proc/{box.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu()
    box.cell("import time; time.sleep(1.5)")
    assert cpu() - before < 0.1


def test_works_from_any_thread(box: Client) -> None:
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(box.cell("print('t')").text))
    thread.start()
    thread.join(20)
    assert texts == ["t\n"]
