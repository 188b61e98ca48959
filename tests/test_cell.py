"""What an agent sees of a cell's outputs."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.cell import (
    CellResult,
    Clear,
    Display,
    ErrorOutput,
    Output,
    Result,
    Stream,
    parse_item,
    render,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TEXT = st.text(alphabet="ab\r\n\b\x1b[m\x00é\ud800\u202e", max_size=30)
MIME = st.sampled_from(["text/plain", "text/html", "image/png", "image/jpeg", "image/svg+xml", "application/json", "x"])
ITEM = st.fixed_dictionaries(
    {"kind": st.sampled_from(["stream", "display", "result", "error", "clear", "other"]) | JSON},
    optional={
        "name": st.sampled_from(["stdout", "stderr"]) | JSON,
        "text": TEXT | JSON,
        "data": st.dictionaries(MIME, TEXT | JSON, max_size=3) | JSON,
        "metadata": JSON,
        "update": st.booleans() | JSON,
        "execution_count": st.integers() | JSON,
        "ename": st.sampled_from(["SystemExit", "ValueError"]) | JSON,
        "evalue": TEXT | JSON,
        "traceback": st.lists(TEXT, max_size=3) | JSON,
        "wait": st.booleans() | JSON,
        "late": st.booleans() | JSON,
    },
)


def out(text: str, *, late: bool = False) -> Stream:
    return Stream("stdout", text, late)


def shown(*outputs: Output, max_chars: int = 10_000) -> str:
    return render(outputs, max_chars=max_chars).text


@given(st.lists(ITEM | JSON, max_size=6), st.integers(0, 200), st.integers(0, 10**9))
def test_any_items_render_to_clean_text_of_bounded_length(items: list[Any], max_chars: int, omitted: int) -> None:
    outputs = [output for item in items if (output := parse_item(item)) is not None]
    text = render(outputs, max_chars=max_chars, omitted_bytes=omitted).text
    assert len(text) <= max_chars
    text.encode("utf-8")
    assert all(char in "\n\t" or not (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) for char in text)


@given(ITEM)
def test_items_survive_a_round_trip(item: dict[str, Any]) -> None:
    output = parse_item(item)
    if output is not None:
        assert repr(parse_item(output.to_item())) == repr(output)  # by repr, as NaN differs from itself


def test_nothing_renders_to_nothing() -> None:
    assert render([], max_chars=100).text == ""
    assert shown(Clear(), out("")) == ""


def test_outputs_stand_in_order_with_each_value_on_its_own_line() -> None:
    assert shown(out("a\nb"), Stream("stderr", " c\n"), Result({"text/plain": "42"}), out("d\n")) == "a\nb c\n42\nd"


def test_an_escape_sequence_split_over_two_messages_is_removed() -> None:
    assert shown(out("\x1b[3"), out("1mred\x1b["), out("0m")) == "red"


def test_a_carriage_return_overwrites_what_an_earlier_message_wrote() -> None:
    assert shown(*[out(f"\r{n}%") for n in range(101)]) == "100%"


def test_errors_show_their_traceback_without_colours() -> None:
    error = ErrorOutput("ValueError", "x", ("\x1b[31mTraceback\x1b[0m", "ValueError: x"))
    assert shown(out("before\n"), error) == "before\nTraceback\nValueError: x"
    assert shown(ErrorOutput("ValueError", "x")) == "ValueError: x"


def test_advice_on_leaving_is_taken_out_after_system_exit_only() -> None:
    advice = Stream(
        "stderr",
        "/x/interactiveshell.py:3585: UserWarning: To exit: use 'exit', 'quit', or Ctrl-D.\n"
        "  warn(\"To exit: use 'exit', 'quit', or Ctrl-D.\", stacklevel=1)\n",
    )
    error = ErrorOutput("SystemExit", "0", ("An exception has occurred", "SystemExit: 0"))
    assert shown(out("hi\n"), error, advice) == "hi\nAn exception has occurred\nSystemExit: 0"
    assert "UserWarning" in shown(advice)


def test_clear_drops_what_came_before() -> None:
    assert shown(out("1"), Clear(), out("2")) == "2"
    assert shown(out("1"), Clear(wait=True), out("2")) == "2"
    assert shown(out("1"), Clear(wait=True)) == "1"
    assert shown(out("1"), Clear()) == ""


def test_redraws_of_a_display_collapse_to_the_last() -> None:
    updates = [Display({"text/plain": f"{n}%"}, update=True) for n in range(50)]
    assert shown(Display({"text/plain": "start"}), *updates) == "start\n49%"


def test_late_output_stands_under_its_own_line() -> None:
    assert shown(out("T1\n", late=True), out("now\n"), out("T2\n", late=True)) == "now\n(background output)\nT1\nT2"
    assert shown(out("T1\n", late=True)) == "(background output)\nT1"
    assert shown(out("now"), Clear(late=True)) == "now"


def png(width: int, height: int, size: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head + bytes(size - len(head))).decode()


def jpeg(width: int, height: int) -> str:
    comment = b"\xff\xfe" + struct.pack(">H", 60_002) + bytes(60_000)
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return base64.b64encode(b"\xff\xd8" + comment + frame + bytes(100)).decode()


def test_images_are_noted_beside_their_text() -> None:
    figure = Display({"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": png(640, 480, 23_000)})
    assert shown(figure) == "<Figure size 640x480 with 1 Axes>\n[image/png 640x480, 23 kB]"
    assert shown(Display({"image/jpeg": jpeg(320, 200)})) == "[image/jpeg 320x200, 60 kB]"
    assert shown(Display({"image/png": "no image"})) == "[image/png, 1 kB]"
    assert shown(Display({"image/svg+xml": "<svg/>"})) == "[image/svg+xml, 1 kB]"


def test_plain_text_is_preferred_and_other_text_is_the_fallback() -> None:
    assert shown(Display({"text/html": "<b>x</b>", "text/plain": "x"})) == "x"
    assert shown(Display({"text/html": "<b>x</b>", "text/markdown": "**x**"})) == "**x**"
    assert shown(Display({"text/html": ["<b>", "x</b>"]})) == "<b>x</b>"
    assert shown(Display({"application/json": {"a": [1]}})) == "[application/json]"


def test_long_output_keeps_head_and_tail_and_counts_the_sandbox_too() -> None:
    found = render([out("\n".join(map(str, range(100_000))))], max_chars=2000, omitted_bytes=5000)
    assert found.text.startswith("0\n1\n2\n")
    assert found.text.endswith("\n99998\n99999")
    assert f"… [{found.omitted_chars} characters omitted] …" in found.text
    assert found.omitted_chars == len("\n".join(map(str, range(100_000)))) + 5000 - (
        len(found.text) - len(f"\n… [{found.omitted_chars} characters omitted] …\n")
    )


def test_what_the_sandbox_dropped_is_stated_even_where_the_rest_fits() -> None:
    assert render([out("hi")], max_chars=100, omitted_bytes=7).text == "hi\n… [7 characters omitted] …"


@pytest.mark.parametrize("max_chars", range(0, 300))
def test_no_cut_leaves_part_of_an_escape_sequence(max_chars: int) -> None:
    text = shown(out("\x1b[38;5;196mred\x1b[0m\n" * 40), max_chars=max_chars)
    assert "\x1b" not in text
    assert "38;5" not in text


@pytest.mark.parametrize(
    "item",
    [
        None,
        3,
        [],
        {},
        {"kind": []},
        {"kind": "stream", "name": "log", "text": ""},
        {"kind": "display"},
        {"kind": "result", "data": {"text/plain": "1"}, "execution_count": True},
        {"kind": "display", "data": {1: "x"}},
        {"kind": "error", "ename": "E", "evalue": "", "traceback": [1]},
        {"kind": "clear", "wait": "no"},
        {"kind": "stream", "name": "stdout", "text": "x", "late": 1},
    ],
)
def test_what_is_no_item_is_none(item: object) -> None:
    assert parse_item(item) is None


def test_info_has_fixed_types() -> None:
    info = CellResult("ok", duration_s=0, cpu_s=1).to_info()  # ints where a sandbox sends them
    assert {key: type(value) for key, value in info.items()} == {
        "status": str,
        "execution_count": int,
        "duration_s": float,
        "cpu_s": float,
        "omitted_chars": int,
        "oom_kills": int,
        "background_processes": int,
    }
