"""What pid 1 and the Jupyter driver make of bytes, items and processes they did not choose."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_gym.kernel import items
from research_gym.kernel.bootstrap import bundle, read_sources
from research_gym.kernel.frames import Decoder, encode
from research_gym.kernel.jupyter_wire import DELIMITER, MAX_MESSAGE_BYTES, Malformed, Message, Wire, items_of
from research_gym.kernel.kernel_link import KernelLink
from research_gym.kernel.loop import Loop
from research_gym.kernel.output import OutputBudget
from research_gym.kernel.process import Child
from research_gym.kernel.procfs import ProcessTable, now_ticks, read_process

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
KINDS = ["stream", "display", "result", "error", "clear"]
FIELDS = ("name", "text", "data", "metadata", "execution_count", "ename", "evalue", "traceback", "wait", "late")
TYPES = ["stream", "display_data", "update_display_data", "execute_result", "error", "clear_output", "comm_open", "x"]


# -- Jupyter messages -----------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30) | st.just(DELIMITER), max_size=9))
@settings(max_examples=200, deadline=None)
def test_unsigned_parts_are_malformed(parts: list[bytes]) -> None:
    with pytest.raises(Malformed):
        Wire("key").unpack(parts)


@given(st.lists(json_values.map(lambda v: json.dumps(v).encode()) | st.binary(max_size=20), min_size=4, max_size=5))
@settings(max_examples=200, deadline=None)
def test_signed_nonsense_raises_nothing_but_malformed(body: list[bytes]) -> None:
    wire = Wire("key")
    try:
        message = wire.unpack([DELIMITER, wire._sign(body[:4]), *body])
    except Malformed:
        return
    assert isinstance(message.type, str)


@given(st.sampled_from(TYPES), st.dictionaries(st.text(max_size=8), json_values, max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_content_gives_items_that_fit_a_frame_or_malformed(kind: str, content: dict[str, Any]) -> None:
    try:
        found, omitted = items_of(Message(kind, "", content), max_bytes=1000)
    except Malformed:
        return
    assert omitted >= 0
    for item in found:
        encode({"items": [item]})
        assert items.checked(item) == [item]


def test_a_repeated_signature_is_malformed() -> None:
    wire = Wire("key")
    _, parts = wire.pack("status", {"execution_state": "idle"})
    assert wire.unpack(parts).type == "status"
    with pytest.raises(Malformed, match="repeated"):
        wire.unpack(parts)
    with pytest.raises(Malformed, match="signature"):
        Wire("other").unpack(parts)


def test_a_message_too_large_to_read_is_malformed() -> None:
    wire = Wire("key")
    body = [b'{"msg_type": "stream"}', b"{}", b"{}", b" " * (MAX_MESSAGE_BYTES + 1)]
    with pytest.raises(Malformed, match="large"):
        wire.unpack([DELIMITER, wire._sign(body), *body])


def test_a_long_stream_keeps_head_and_tail() -> None:
    text = "a" * 500 + "b" * 10_000 + "c" * 500
    found, omitted = items_of(Message("stream", "", {"name": "stdout", "text": text}), max_bytes=1000)
    assert "".join(item["text"] for item in found) == "a" * 500 + "c" * 500
    assert omitted == 10_000


# -- items ----------------------------------------------------------------------------------------------------------


@given(st.fixed_dictionaries({"kind": st.sampled_from(KINDS)}, optional=dict.fromkeys(FIELDS, json_values)))
@settings(max_examples=300, deadline=None)
def test_checked_is_total_and_stable(value: dict[str, Any]) -> None:
    for item in items.checked(value):
        assert items.checked(item) == [item]
        assert items.item_bytes(item) >= 0
        encode({"items": [item]})


def test_the_worst_item_fits_a_frame() -> None:
    emoji = "\U0001f600" * 400_000
    for value in (
        {"kind": "stream", "name": "stdout", "text": emoji},
        {"kind": "error", "ename": emoji, "evalue": emoji, "traceback": [emoji] * 5000},
        {"kind": "display", "data": dict.fromkeys(map(str, range(50)), emoji), "metadata": {"a": emoji}},
        {"kind": "result", "data": {"text/plain": emoji, "image/png": "A" * 500_000, "application/json": [emoji]}},
    ):
        found = items.checked(value)
        assert found
        for group in items.packs(found):
            encode({"id": 1, "kernel": "k0", "type": "output", "items": group})


# -- the output budget ----------------------------------------------------------------------------------------------


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"kind": "stream", "name": name, "text": text}


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=60)), max_size=60), st.booleans())
@settings(max_examples=200, deadline=None)
def test_kept_and_omitted_add_up_and_order_holds(writes: list[tuple[str, str]], early: bool) -> None:
    budget = OutputBudget(max_bytes=400, max_messages=1000)
    kept: list[dict[str, Any]] = []
    for name, text in writes:
        budget.add([stream(text, name)])
        if early:
            kept += budget.take_head()
    kept += budget.take_head() + budget.take_tail()
    size = sum(items.item_bytes(item) for item in kept)
    total = sum(len(text.encode("utf-8", "surrogatepass")) for _, text in writes)
    assert size <= 400
    assert size + budget.omitted_bytes == total == budget.seen_bytes
    if total <= 400:
        assert "".join(item["text"] for item in kept) == "".join(text for _, text in writes)


def test_messages_are_bounded_and_the_newest_stay() -> None:
    budget = OutputBudget(max_bytes=1 << 20, max_messages=10)
    for number in range(100):
        budget.add([{"kind": "display", "data": {"text/plain": str(number)}, "metadata": {}, "update": False}])
    shown = [item["data"]["text/plain"] for item in budget.take_head() + budget.take_tail()]
    assert shown == ["0", "1", "2", "3", "4", "95", "96", "97", "98", "99"]
    assert budget.omitted_messages == 90


# -- processes and the link -----------------------------------------------------------------------------------------


def test_read_process_knows_names_with_brackets() -> None:
    code = "import ctypes, time\nctypes.CDLL(None).prctl(15, b') R 1 (', 0, 0, 0)\nprint(flush=True)\ntime.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        process = read_process(child.pid)
        assert process is not None
        assert process.parent == os.getpid()
        assert process.live
        assert 0 <= now_ticks() - process.started_ticks < 3000
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert read_process(child.pid) is None


class Ends:
    """A link whose peer is this test, over a real child process."""

    def __init__(self, argv: list[str]) -> None:
        self.loop = Loop()
        self.frames: list[dict[str, Any]] = []
        self.deaths: list[str] = []
        ours, self.peer = socket.socketpair()
        stderr_fd, self.stderr_end = os.pipe()
        error_fd, error_end = os.pipe()
        os.close(error_end)
        # A test run in the background of a shell ignores SIGINT, and the child would inherit that.
        self.child = subprocess.Popen(
            argv, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None
        )
        self.link = KernelLink(
            self.loop,
            ProcessTable(isolated=False),
            child=Child(self.child.pid, error_fd),
            sock=ours,
            stderr_fd=stderr_fd,
            on_frame=self.frames.append,
            on_death=self.deaths.append,
        )

    def turn(self, seconds: float = 0.3) -> None:
        self.loop.after(seconds, self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        self.link.close()
        self.link.close()
        self.peer.close()
        os.close(self.stderr_end)
        self.child.kill()
        self.child.wait()


def test_the_link_adopts_only_a_process_of_its_own() -> None:
    ends = Ends(["sleep", "30"])
    try:
        for pid in (1, os.getpid(), 0, -1, 1 << 30):
            assert not ends.link.adopt(pid, interrupt="signal")
        assert ends.link.adopt(ends.child.pid, interrupt="signal")
        assert ends.link.pids == {ends.child.pid}
        ends.child.send_signal(signal.SIGKILL)
        began = time.monotonic()
        ends.turn()
        assert ends.deaths == ["the kernel process ended"]
        assert ends.link.dead
        assert time.monotonic() - began < 1
    finally:
        ends.close()


def test_interrupt_signals_the_group_and_tells_the_process() -> None:
    ends = Ends(["sleep", "30"])
    try:
        assert ends.link.adopt(ends.child.pid, interrupt="signal")
        ends.link.interrupt()
        assert ends.child.wait(2) == -signal.SIGINT
        assert Decoder().feed(ends.peer.recv(4096))[0].header == {"type": "interrupt"}
    finally:
        ends.close()


@pytest.mark.parametrize("bytes_sent", [b"\xff" * 8, b"\0\0\0\2[]", b"\0\x03\r@" + b"[" * 200_000])
def test_a_process_that_does_not_speak_frames_is_a_death(bytes_sent: bytes) -> None:
    ends = Ends(["sleep", "30"])
    try:
        ends.peer.sendall(encode({"type": "hello"}))
        ends.turn(0.05)
        ends.peer.sendall(bytes_sent)
        os.write(ends.stderr_end, b"x" * 10_000 + b"the end")
        ends.turn()
        assert ends.frames == [{"type": "hello"}]
        assert len(ends.deaths) == 1
        assert ends.link.stderr_tail().endswith("xthe end")
        assert len(ends.link.stderr_tail()) <= 4096
    finally:
        ends.close()


def test_a_process_that_does_not_read_is_given_up() -> None:
    ends = Ends(["sleep", "30"])
    try:
        for _ in range(80):
            ends.link.send({"type": "execute", "code": "x" * 1_000_000})
        ends.turn()
        assert ends.deaths == ["the peer does not read"]
    finally:
        ends.close()


# -- the bundle -----------------------------------------------------------------------------------------------------


def test_the_bundle_holds_every_module_that_its_sources_import() -> None:
    sources = read_sources()
    assert "research_gym.kernel.supervisor" in sources
    for name, source in sources.items():
        compile(source, name, "exec")
        for line in source.splitlines():
            if line.startswith("from research_gym.kernel.") and " import " in line:
                assert line.split()[1] in sources, f"{name}: {line}"
    assert len(bundle({})) < 2 << 20


def test_pid_1_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import types; p = types.ModuleType('research_gym'); p.__path__ = [sys.argv[1] + '/research_gym']\n"
        "sys.modules['research_gym'] = p\n"
        "import research_gym.kernel.supervisor"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(items.__file__)))
    subprocess.run([sys.executable, "-I", "-S", "-c", code, root], check=True)
