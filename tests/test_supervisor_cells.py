"""Cells through the real supervisor: results, shell commands, deadlines, and kernels that fight back or die."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("supervisor_client")

from supervisor_client import Client, alive, ename, result  # noqa: E402

pytest_plugins = ["supervisor_client"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the supervisor needs Linux")


@pytest.fixture(scope="module")
def stubborn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client with a short grace."""
    with Client(tmp_path_factory.mktemp("stubborn") / "work", limits={"grace_s": 0.5}) as client:
        client.start()
        yield client


# -- cells ----------------------------------------------------------------------------------------------------------


def test_hello_names_the_interpreter(bare: Client) -> None:
    assert bare.hello["type"] == "hello"
    assert bare.hello["python"] == sys.version.split()[0]
    assert bare.hello["pid"] == bare.process.pid


def test_a_cell_has_output_result_and_figures(box: Client) -> None:
    reply = box.cell("import sys\nprint('out'); print('err', file=sys.stderr)\n6 * 7")
    assert reply.last["status"] == "ok"
    assert {(i["name"], i["text"]) for i in reply.items if i["kind"] == "stream"} == {
        ("stdout", "out\n"),
        ("stderr", "err\n"),
    }
    assert result(reply) == "42"
    assert reply.last["execution_count"] > 0
    assert 0 < reply.last["duration_s"] < 10
    assert not reply.last["running"]
    assert not reply.last["killed"]
    assert reply.last["background_processes"] == 0


def test_cpu_seconds_cover_children(box: Client) -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.4: pass'])"
    )
    assert box.cell(code).last["cpu_s"] >= 0.35
    assert box.cell("import time; time.sleep(0.4)").last["cpu_s"] < 0.3


def test_display_update_and_clear(box: Client) -> None:
    reply = box.cell(
        "from IPython.display import display, clear_output\n"
        "h = display({'text/plain': 'one', 'image/png': 'aGk='}, raw=True, display_id=True)\n"
        "h.update({'text/plain': 'two'}, raw=True)\nclear_output(wait=True)"
    )
    displays = [item for item in reply.items if item["kind"] == "display"]
    assert [item["update"] for item in displays] == [False, True]
    assert displays[0]["data"]["image/png"] == "aGk="
    assert {"kind": "clear", "wait": True} in reply.items


def test_top_level_await_and_magics_work(box: Client) -> None:
    assert result(box.cell("import asyncio\nasync def m():\n    return 7\nawait m()")) == "7"
    assert box.cell("%%bash\necho from bash").text == "from bash\n"


def test_input_fails_at_once(box: Client) -> None:
    assert ename(box.cell("input('?')", timeout_s=5)) == "StdinNotImplementedError"


def test_f16_system_exit_is_an_error_and_the_kernel_lives(box: Client) -> None:
    reply = box.cell("import sys; sys.exit(0)")
    assert reply.last["status"] == "error"
    assert ename(reply) == "SystemExit"
    assert "To exit" not in str(reply.items)
    assert box.cell("print(1)").text == "1\n"


# -- shell commands -------------------------------------------------------------------------------------------------


def test_f24_shell_commands_get_an_empty_stdin_and_no_terminal(box: Client) -> None:
    assert "got=" in box.cell("!read -p 'x? ' v; echo got=$v", timeout_s=5).text
    assert box.cell("!cat", timeout_s=5).last["status"] == "ok"
    assert "EOFError" in box.cell("!python -c 'input()'", timeout_s=5).text
    assert "not a tty" in box.cell("!tty", timeout_s=5).text


def test_shell_commands_expand_merge_and_set_exit_code(box: Client) -> None:
    assert box.cell("x = 'ab'\n!echo {x}-$x; echo err >&2; exit 3").text == "ab-ab\nerr\n"
    assert result(box.cell("_exit_code")) == "3"
    box.cell("!kill -9 $$")
    assert result(box.cell("_exit_code")) == "-9"
    assert ename(box.cell("!sleep 1 &")) == "OSError"
    assert result(box.cell("y = !echo captured\ny")) == "['captured']"


def test_shell_output_streams_while_the_command_runs(box: Client) -> None:
    request = box.send("execute", code="!echo first; sleep 1.5; echo second", timeout_s=20, on_timeout="interrupt")
    began = time.monotonic()
    frame = box._next(time.monotonic() + 10)
    assert "first" in str(frame.header)
    assert time.monotonic() - began < 1.3
    assert "second" in box.reply(request).text


def test_f57_shell_command_does_not_wait_for_a_background_child(box: Client) -> None:
    reply = box.cell("!(sleep 30; echo late) & echo hi", timeout_s=10)
    assert reply.text == "hi\n"
    assert reply.last["duration_s"] < 5
    assert reply.last["background_processes"] >= 1
    box.cell("!pkill -f 'sleep 30'")


def test_f38_bytes_that_are_not_utf8_become_replacement_characters(box: Client) -> None:
    assert "\ufffd" in box.cell("import os\nos.write(1, bytes(range(256)));", timeout_s=5).text
    assert "\ufffd" in box.cell("!head -c 4096 /dev/urandom").text


def test_d14_lone_surrogates_keep_the_text(box: Client) -> None:
    reply = box.cell("print('\\ud800 tail')")
    assert reply.last["status"] == "ok"
    assert reply.text == "\ud800 tail\n"


# -- timeouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import asyncio\nawait asyncio.sleep(1e6)",
        "!sleep 60",
        "!tail -f /dev/null",
        "while True:\n    !sleep 0.2",
        "import subprocess; subprocess.run(['sleep', '60'])",
    ],
)
def test_timeout_interrupts_and_the_kernel_survives(box: Client, code: str) -> None:
    box.cell("kept = 1")
    reply = box.cell(code, timeout_s=0.7)
    assert reply.last["status"] == "timeout"
    assert not reply.last["killed"]
    assert reply.last["duration_s"] < 0.7 + 8.0
    assert reply.last["background_processes"] == 0
    again = box.cell("kept")
    assert again.last["status"] == "ok"  # D04: not `aborted`
    assert result(again) == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import signal; signal.signal(2, signal.SIG_IGN)\nwhile 1: pass",
        "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass",
        "sum(range(10**12))",
        "import os; os.kill(os.getpid(), 19)",
    ],
)
def test_d02_d03_what_ignores_the_interrupt_is_killed(stubborn: Client, code: str) -> None:
    reply = stubborn.cell(code, timeout_s=0.5)
    assert reply.last["status"] == "timeout"
    assert reply.last["killed"]
    assert reply.last["duration_s"] < 0.5 + 0.5 + 2.0
    assert stubborn.cell("1").last["code"] == "not_running"
    assert stubborn.ask("stat").last["processes"] == 0
    assert stubborn.start().last["type"] == "done"


def test_f30_f58_children_of_a_timed_out_cell_are_dead_and_older_ones_live(box: Client) -> None:
    box.cell("import subprocess\np = subprocess.Popen(['sleep', '777'], start_new_session=True)")
    older = int(result(box.cell("p.pid")))
    reply = box.cell(
        "import subprocess\nq = subprocess.Popen('sleep 888 & echo $! ; wait', shell=True, start_new_session=True, "
        "stdout=subprocess.PIPE)\nprint(q.stdout.readline().decode(), flush=True)\nq.wait()",
        timeout_s=1,
    )
    child = int(reply.text.split()[0])
    assert reply.last["status"] == "timeout"
    assert not alive(child)
    assert alive(older)
    assert reply.last["background_processes"] == 1
    box.cell("p.kill(); p.wait()")


def test_keep_leaves_the_cell_running_and_wait_returns_only_news(box: Client) -> None:
    code = "import time\nfor i in range(6):\n    print('tick', i, flush=True); time.sleep(0.3)\n'end'"
    first = box.cell(code, timeout_s=0.7, on_timeout="keep")
    assert (first.last["status"], first.last["running"]) == ("timeout", True)
    assert "tick 0" in first.text
    second = box.ask("wait", timeout_s=0.5)
    assert (second.last["status"], second.last["running"]) == ("timeout", True)
    assert "tick 0" not in second.text
    last = box.ask("wait", timeout_s=10)
    assert (last.last["status"], last.last["running"]) == ("ok", False)
    assert "tick 5" in last.text
    assert result(last) == "'end'"
    assert box.ask("wait", timeout_s=1).last["code"] == "not_running"


def test_wait_after_the_end_reports_the_end(box: Client) -> None:
    assert box.cell("import time; time.sleep(0.4); print('x')", timeout_s=0.1, on_timeout="keep").last["running"]
    time.sleep(0.8)
    reply = box.ask("wait", timeout_s=5)
    assert (reply.last["status"], reply.text) == ("ok", "x\n")
    assert 0.1 < reply.last["duration_s"] < 0.7


def test_execute_interrupts_a_cell_that_was_kept(box: Client) -> None:
    box.cell("import time\nprint('old', flush=True)\nwhile True: time.sleep(0.1)", timeout_s=0.3, on_timeout="keep")
    reply = box.cell("print('new')")
    assert reply.last["status"] == "ok"
    assert [i["text"] for i in reply.items if i["kind"] == "stream" and not i.get("late")] == ["new\n"]


def test_interrupt_request_ends_the_cell(box: Client) -> None:
    request = box.send("execute", code="import time; time.sleep(60)", timeout_s=60, on_timeout="interrupt")
    time.sleep(0.3)
    reply = box.ask("interrupt")
    assert reply.last["status"] == "interrupted"
    assert box.reply(request).last["status"] == "interrupted"
    assert box.ask("interrupt").last["code"] == "not_running"


# -- death ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import os, time; time.sleep(0.2); os._exit(0)",
        "import os, time; time.sleep(0.2); os.kill(os.getpid(), 9)",
        "exit()",
    ],
)
def test_d12_d13_death_is_noticed_within_a_second(box: Client, code: str) -> None:
    began = time.monotonic()
    reply = box.cell("print('last words', flush=True)\n" + code, timeout_s=20)
    assert reply.last["status"] == "died"
    assert time.monotonic() - began < 2.5
    assert "last words" in reply.text
    assert box.start().last["type"] == "done"
    assert box.cell("print(1)").text == "1\n"


def test_death_between_cells_is_reported_by_the_next_one(box: Client) -> None:
    pid = int(result(box.cell("import os; os.getpid()")))
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    assert box.cell("1").last["status"] == "died"
    assert box.cell("1").last["code"] == "not_running"


def test_death_of_a_kept_cell_is_reported_by_whoever_asks_next(box: Client) -> None:
    code = "import os, time; time.sleep(0.3); os._exit(1)"
    assert box.cell(code, timeout_s=0.1, on_timeout="keep").last["running"]
    time.sleep(1.2)
    assert box.ask("wait", timeout_s=1).last["status"] == "died"
    assert box.cell("1").last["code"] == "not_running"
    box.start()
    assert box.cell(code, timeout_s=0.1, on_timeout="keep").last["running"]
    time.sleep(1.2)
    assert box.cell("1").last["status"] == "died"


def test_a_killed_driver_is_a_death(box: Client) -> None:
    assert box.cell("import os; os.kill(os.getppid(), 9)\nimport time; time.sleep(30)").last["status"] == "died"


@pytest.mark.parametrize(
    "code", ["import sys; sys.stdout = None", "get_ipython().kernel.iopub_thread.stop()"], ids=["D10", "D11"]
)
def test_a_kernel_that_lost_its_voice_ends_the_cell_and_is_replaced(box: Client, code: str) -> None:
    statuses = [box.cell(code, timeout_s=20).last["status"]]
    if statuses[0] != "died":
        statuses.append(box.cell("1", timeout_s=20).last["status"])
    assert statuses[-1] == "died"


def test_d09_malformed_messages_are_counted_and_dropped(box: Client) -> None:
    code = """
import json
s = get_ipython().kernel.session
sock = get_ipython().kernel.iopub_thread
def raw(*parts): sock.send_multipart([b'x', b'<IDS|MSG>', *parts])
def signed(*parts): raw(s.sign(list(parts)), *parts)
h = json.dumps({'msg_type': 'stream', 'msg_id': 'q'}).encode()
raw(b'bad', b'{}', b'{}', b'{}', b'{}')
signed(b'nonsense', b'{}', b'{}', b'{}')
signed(b'[' * 200000, b'{}', b'{}', b'{}')
signed(b'{}', b'{}', b'{}', b'{}')
signed(b'[]', b'{}', b'{}', b'{}')
signed(h, b'{}', b'{}', b'9' * 50000)
signed(h, b'{}', b'{}', b'{"name": 1, "text": []}')
raw(b'short')
signed(h, b'{"msg_id": 3}', b'{}', b'{}')
print('still here')
"""
    reply = box.cell(code)
    assert reply.last["status"] == "ok"
    assert "still here" in reply.text
    assert 8 <= reply.last["malformed"] <= 10
    flood = "for _ in range(300): raw(b'bad', b'{}', b'{}', b'{}', b'{}')\nimport time; time.sleep(10)"
    assert box.cell(flood).last["status"] == "died"


def test_f13_f20_a_kernel_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Client(tmp_path / "a", python="/bin/false") as client:
        began = time.monotonic()
        assert client.start().last["code"] == "start_failed"
        assert time.monotonic() - began < 3
    with Client(tmp_path / "b") as client:
        reply = client.start(kernelspec="no-such-kernel")
        assert reply.last["code"] == "start_failed"
        assert "no-such-kernel" in reply.last["message"]
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho the reason is here >&2\nexit 7\n")
    script.chmod(0o755)
    with Client(tmp_path / "c", python=str(script)) as client:
        assert "the reason is here" in client.start().last["message"]
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o755)
    with Client(tmp_path / "d", python=str(sleeper), limits={"start_timeout_s": 0.5}) as client:
        assert "0.5 s" in client.start(within_s=5).last["message"]
        assert client.ask("stat").last["processes"] == 0
