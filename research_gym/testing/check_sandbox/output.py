"""Output: all of it while it is small, head and tail and a count where it is not, and never the wrong cell's."""

from __future__ import annotations

import time

from research_gym.cell import Stream
from research_gym.testing.check_sandbox.kit import LIMITS, Box, Seen, expect, probe

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""One pixel."""


def _clean_afterwards(box: Box) -> None:
    seen = box.cell("print('clean')")
    expect(seen.result.status == "ok" and seen.text == "clean", f"expected the next cell to be clean, found {seen}")


def _characters(seen: Seen) -> int:
    return sum(len(item.text) for item in seen.outputs if isinstance(item, Stream))


@probe("output")
def streams_values_and_errors_come_in_order(box: Box) -> None:
    """stdout, stderr, a value, an exception: each under its own kind."""
    seen = box.cell("import sys\nprint('one')\nprint('two', file=sys.stderr)\n6 * 7")
    names = {item.name: item.text for item in seen.outputs if isinstance(item, Stream)}
    expect(names == {"stdout": "one\n", "stderr": "two\n"}, f"expected both streams, found {names}")
    expect(seen.value == "42", f"expected the value 42, found {seen.value!r}")
    seen = box.cell("1 / 0")
    expect(seen.result.status == "error" and seen.error == "ZeroDivisionError", f"expected the error, found {seen}")


@probe("output")
def a_flood_of_one_print_is_capped(box: Box) -> None:
    """Head and tail are kept, the rest is counted."""
    seen = box.cell("print('head'); print('y' * 10_000_000); print('tail')", timeout_s=60)
    expect(seen.result.status in ("ok", "interrupted"), f"expected the cell to end, found {seen}")
    expect(
        _characters(seen) <= LIMITS.output_bytes + 64 * 1024,
        f"expected about {LIMITS.output_bytes}, found {_characters(seen)}",
    )
    expect(seen.text.startswith("head"), "expected the head")
    expect(seen.text.endswith("tail"), f"expected the tail, found {seen.text[-50:]!r}")
    expect(seen.result.omitted_chars > 9_000_000, f"expected the rest to be counted, found {seen.result.omitted_chars}")
    _clean_afterwards(box)


@probe("output")
def many_small_writes_lose_neither_head_nor_tail(box: Box) -> None:
    """4000 flushes; the last line is there."""
    seen = box.cell(
        "import sys\nfor _ in range(4000): sys.stdout.write('0' * 20); sys.stdout.flush()\nprint('\\nhi')",
        timeout_s=60,
    )
    expect(seen.result.status == "ok", f"expected ok, found {seen}")
    expect(seen.text.endswith("hi"), f"expected the last line, found {seen.text[-50:]!r}")


@probe("output")
def an_endless_flood_is_ended(box: Box) -> None:
    """By the output budget or the clock, whichever comes first; the next cell is clean."""
    seen = box.cell("while True: print('x' * 1000)", timeout_s=8)
    expect(seen.result.status in ("timeout", "interrupted", "died"), f"expected it to be ended, found {seen}")
    expect(_characters(seen) <= LIMITS.output_bytes + 64 * 1024, f"expected the cap to hold, found {_characters(seen)}")
    expect(seen.wall_s < 8 + LIMITS.grace_s + 3, f"expected the end in time, found {seen.wall_s:.1f} s")
    _clean_afterwards(box)


@probe("output")
def a_flood_past_python_is_ended(box: Box) -> None:
    """Written to descriptor 1 by a child: `!yes`."""
    seen = box.cell("!yes", timeout_s=4)
    expect(seen.wall_s < 4 + LIMITS.grace_s + 3, f"expected the end in time, found {seen.wall_s:.1f} s")
    expect(_characters(seen) <= LIMITS.output_bytes + 64 * 1024, f"expected the cap to hold, found {_characters(seen)}")
    box.gone("yes")
    _clean_afterwards(box)


@probe("output")
def a_flood_of_displays_is_capped(box: Box) -> None:
    """The message budget holds and later cells are not polluted by the backlog."""
    seen = box.cell("for i in range(5000): display(i)", timeout_s=30)
    expect(seen.result.status in ("ok", "timeout"), f"expected ok or timeout, found {seen}")
    expect(
        len(seen.displays) <= LIMITS.output_messages + 10,
        f"expected about {LIMITS.output_messages}, found {len(seen.displays)}",
    )
    _clean_afterwards(box)


@probe("output")
def a_huge_exception_is_capped(box: Box) -> None:
    """Five million characters of message."""
    seen = box.cell("raise ValueError('z' * 5_000_000)", timeout_s=60)
    expect(seen.error == "ValueError", f"expected ValueError, found {seen}")
    expect(
        len(seen.all_text) < 4 * LIMITS.output_bytes, f"expected the cap to hold, found {len(seen.all_text)} characters"
    )
    _clean_afterwards(box)


@probe("output")
def unicode_comes_through(box: Box) -> None:
    """Accents, right-to-left, emoji, combining characters, box drawing."""
    text = "é 数学 שלום 🙂🏽 e\u0301 │└─"
    expect(box.text(f"print({text!r})") == text, "expected the same text from print")
    out = box.cell(f"!echo '{text}'").text
    expect(out == text, f"expected the same text from the shell, found {out!r}")


@probe("output")
def lone_surrogates_are_shown_not_fatal(box: Box) -> None:
    """A stock kernel loses the text and shows a traceback of its own internals."""
    seen = box.cell("print('\\ud800 tail')")
    expect("tail" in seen.text, f"expected the text, found {seen}")
    expect(
        "jupyter" not in seen.all_text and "zmq" not in seen.all_text,
        f"expected no internals, found {seen.all_text[-300:]!r}",
    )
    seen = box.cell("'\\udc00'")
    expect(seen.result.status == "ok", f"expected the value to be shown, found {seen}")
    _clean_afterwards(box)


@probe("output")
def bytes_that_are_not_text_are_replaced(box: Box) -> None:
    """Written straight to descriptor 1, and by a command."""
    seen = box.cell("import os\n_ = os.write(1, bytes(range(256)) + b'END\\n')")
    expect(seen.result.status == "ok", f"expected ok, found {seen}")
    seen = box.cell("!head -c 4096 /dev/urandom; echo END")
    expect("END" in seen.text, f"expected the text behind the bytes, found {seen}")
    _clean_afterwards(box)


@probe("output")
def pictures_come_as_displays(box: Box) -> None:
    """As data beside their text form."""
    seen = box.cell("from IPython.display import Image, display\nimport base64\n"
                    f"display(Image(base64.b64decode('{_PNG}')))")  # fmt: skip
    expect(
        any("image/png" in item.data for item in seen.displays), f"expected an image/png display, found {seen.displays}"
    )


@probe("output")
def a_lost_stdout_ends_the_cell_all_the_same(box: Box) -> None:
    """`sys.stdout = None`: a stock kernel goes idle and never replies. Here the cell ends and the next one runs."""
    box.cell("import sys; sys.stdout = None", timeout_s=5)
    seen = box.cell("x = 1", timeout_s=5)
    expect(seen.wall_s < 5 + LIMITS.grace_s + 2, f"expected an end, found {seen}")
    box.cell("import sys; sys.stdout = sys.__stdout__", timeout_s=5)
    box.cell("import os; os._exit(0)", timeout_s=5)
    _clean_afterwards(box)


@probe("output")
def a_stopped_output_thread_ends_the_cell_all_the_same(box: Box) -> None:
    """`iopub_thread.stop()`: a reply but never idle."""
    for _ in range(2):
        seen = box.cell("get_ipython().kernel.iopub_thread.stop()", timeout_s=4)
        expect(seen.wall_s < 4 + LIMITS.grace_s + 3, f"expected an end, found {seen}")
    box.cell("import os; os._exit(0)", timeout_s=4)
    _clean_afterwards(box)


@probe("output")
def forged_and_malformed_messages_are_only_text(box: Box) -> None:
    """An agent may speak the wire protocol itself; nothing but its own output changes."""
    box.text("kept = 'kept'")
    seen = box.cell(
        "k = get_ipython().kernel\n"
        "parent = k.get_parent('shell')\n"
        "k.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'FORGED\\n'}, parent=parent)\n"
        "k.session.send(k.iopub_socket, 'status', {'execution_state': 'idle'}, parent=parent)\n"
        "k.session.send(k.iopub_socket, 'stream', {'name': 7, 'text': [1]}, parent=parent)\n"
        "k.session.send(k.iopub_socket, 'no_such_type', {'a': {}}, parent=parent)\n"
        "for junk in ([b'x'], [b'<IDS|MSG>', b'bad', b'[' * 100000, b'{}', b'{}', "
        "b'{}'], [b'stream', b'<IDS|MSG>', b'', b'[]', b'{}', b'{}', b'9' * 50000]):\n"
        "    k.iopub_socket.send_multipart(junk)\n"
        "import time; time.sleep(0.3); 1 / 0",
        timeout_s=15,
    )
    expect(seen.wall_s < 15, f"expected the cell to end, found {seen}")
    time.sleep(0.5)
    for _ in range(2):
        seen = box.cell("print(kept)", timeout_s=15)
    expect(seen.result.status == "ok" and "kept" in seen.text, f"expected the kernel to go on, found {seen}")


@probe("output")
def output_after_the_cell_is_marked_late(box: Box) -> None:
    """A thread that prints on shows up in a later cell, flagged, never as that cell's own."""
    box.text("import threading, time\n"
             "def later():\n    time.sleep(0.7); print('T1', flush=True)\n"
             "threading.Thread(target=later).start()")  # fmt: skip
    seen = box.cell("time.sleep(1.5); print('own')")
    late = "".join(item.text for item in seen.outputs if isinstance(item, Stream) and item.late)
    own = "".join(item.text for item in seen.outputs if isinstance(item, Stream) and not item.late)
    expect("T1" in seen.text, f"expected the late text to be shown, found {seen}")
    expect("T1" in late and "own" in own, f"expected it to be flagged, found late={late!r} own={own!r}")


@probe("output")
def clearing_is_passed_on(box: Box) -> None:
    """Progress displays rely on it."""
    seen = box.cell("from IPython.display import clear_output\nprint('gone'); clear_output(); print('stays')")
    expect(seen.result.status == "ok" and "stays" in seen.text, f"expected 'stays', found {seen}")
    expect(any(type(item).__name__ == "Clear" for item in seen.outputs) or "gone" not in seen.text, "expected a clear")
