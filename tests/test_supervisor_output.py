"""Output through the real supervisor: budgets, floods, and output that comes late."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("supervisor_client")

from supervisor_client import Client  # noqa: E402

pytest_plugins = ["supervisor_client"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the supervisor needs Linux")


# -- output budgets -------------------------------------------------------------------------------------------------


def test_d06_a_flood_is_cut_and_then_ended(tmp_path: Path) -> None:
    with Client(tmp_path / "work", limits={"output_kill_bytes": 4 << 20}) as client:
        client.start()
        reply = client.cell("while True: print('x' * 1000)")
        assert reply.last["status"] in ("interrupted", "died")  # the latter if its backlog outlasts the grace
        assert len(reply.text) <= 1 << 20
        assert reply.last["omitted_bytes"] > 2 << 20
        if reply.last["killed"]:
            client.start()
        code = "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: print('x' * 1000)"
        reply = client.cell(code)
        assert (reply.last["status"], reply.last["killed"]) == ("died", True)


def test_d08_one_huge_print_keeps_head_and_tail(box: Client) -> None:
    reply = box.cell("print('head' + 'y' * 8_000_000 + 'tail')")
    assert reply.text.startswith("headyyy")
    assert reply.text.endswith("ytail\n")
    assert len(reply.text) <= 1 << 20
    assert len(reply.text) + reply.last["omitted_bytes"] == 8_000_009
    error = box.cell("raise ValueError('z' * 5_000_000)")
    assert error.last["status"] == "error"
    assert len(str(error.items)) < 200_000
    assert box.cell("def f(): f()\nf()").last["status"] == "error"


def test_d07_display_flood_is_bounded_and_does_not_reach_the_next_cell(box: Client) -> None:
    reply = box.cell("for i in range(2500): display(i)", timeout_s=60)
    assert reply.last["status"] == "ok"
    assert len(reply.items) <= 2000
    assert reply.last["omitted_messages"] == 2500 - len(reply.items)
    assert reply.items[0]["data"]["text/plain"] == "0"
    assert reply.items[-1]["data"]["text/plain"] == "2499"
    assert len(box.cell("display('one')").items) == 1


def test_f34_many_small_writes_end_with_the_last_line(box: Client) -> None:
    code = "import sys\nfor _ in range(3000): sys.stdout.write('0' * 100); sys.stdout.flush()\nprint('hi')"
    reply = box.cell(code, timeout_s=60)
    assert reply.text.endswith("hi\n")
    assert len(reply.text) + reply.last["omitted_bytes"] == 300_003


def test_large_images_are_named_not_sent(box: Client) -> None:
    reply = box.cell("display({'image/png': 'A' * 600_000, 'text/plain': 'fig'}, raw=True)")
    data = reply.items[0]["data"]
    assert data["text/plain"] == "fig"
    assert "image/png" not in data
    assert "600000" in data["application/x-research-gym-cut"]


def test_f49_output_of_an_earlier_cell_is_flagged_late(box: Client) -> None:
    code = (
        "import threading, time\n"
        "def talk():\n    for _ in range(10):\n        print('T1', flush=True); time.sleep(0.1)\n"
    )
    box.cell(code + "threading.Thread(target=talk).start()")
    reply = box.cell("import time; time.sleep(1.2); print('mine')")
    late = [item for item in reply.items if item.get("late")]
    assert late
    assert all("mine" not in item["text"] for item in late)
    assert any("mine" in item["text"] for item in reply.items if not item.get("late"))
