"""Cleaning: what a terminal would show, valid Unicode, in linear time, whatever the bytes."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.text import BIDI, clean, clip

HOSTILE = st.text(
    alphabet="ab1;m[]()KJGAHPX_^\\ \x00\x07\x08\t\n\r\x1b\x7f\x90\x9b\x9c\x9d\ud800\udc00\u202eé☃\U0001f600",
    max_size=60,
)


def is_shown(text: str) -> bool:
    """Whether text keeps the observation contract."""
    text.encode("utf-8")
    return not re.search(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}]", text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\ud800 tail", "\\ud800 tail"),
        ("a\x00b\x0bc\x0cd\x7fe\x85f", "abcdef"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0~~\x1b\\after", "after"),
        ("\x1b]0;no end\nnext", "\nnext"),
        ("\x9b31mC1\x9b0m", "C1"),
        ("\x1b(Bx\x1b=y\x1bcz", "xyz"),
        ("cut \x1b[3", "cut "),
        ("cut \x1b", "cut "),
        ("cut \x1b]0;tit", "cut "),
        ("\x1b\x1b[m[31m", "[31m"),
        ("\x1b\x00[31mred", "red"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r50%\r100%", "100%"),
        ("10%\r50%\r", "50%"),
        ("abcdef\rxy", "xycdef"),
        ("abcdef\r\x1b[Kxy", "xy"),
        ("abcdef\x1b[2K\rxy", "xy"),
        ("abcdef\x1b[1Gxy\x1b[K", "xy"),
        ("abc\b\bX", "aXc"),
        ("\b\b\bX", "X"),
        ("x\n\bY", "x\nY"),
        ("|\b/\b-\b\\\bdone", "done"),
        ("\x1b]0;\x1b[2K\x07x", "x"),
        ("safe \u202egnp.exe", "safe \\u202egnp.exe"),
        ("tab\tand é ☃ \U0001f600", "tab\tand é ☃ \U0001f600"),
        ("", ""),
    ],
)
def test_clean_shows_what_a_terminal_shows(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_tqdm_is_one_line() -> None:
    raw = (
        "".join(f"\r{n // 200:3d}%|{'█' * (n // 2000):10}| {n}/20000 [00:01<00:00, 100it/s]" for n in range(20001))
        + "\n"
    )
    assert clean(raw) == "100%|██████████| 20000/20000 [00:01<00:00, 100it/s]\n"


def test_progress_that_moves_the_cursor_up_is_collapsed() -> None:
    raw = "".join(f"\x1b[2K\x1b[1A\x1b[0GRetrieving {n // 5}%\n" for n in range(500))
    assert clean(raw) == "Retrieving 0%\n… 498 similar lines\nRetrieving 99%\n"


def test_similar_lines_that_were_not_drawn_over_stay() -> None:
    raw = "".join(f"epoch {n}\n" for n in range(50)) + "\x1b[1mend\x1b[0m"
    assert clean(raw).count("\n") == 50


@given(HOSTILE)
def test_clean_keeps_the_contract_and_is_idempotent(raw: str) -> None:
    shown = clean(raw)
    assert is_shown(shown)
    assert clean(shown) == shown


@given(st.text(alphabet="abcX\r\b\n", max_size=40).map(lambda text: text.replace("\r\n", "\n")), st.booleans())
def test_clean_equals_a_terminal_written_as_a_loop(raw: str, erases: bool) -> None:
    raw = raw.replace("X", "\x1b[K") if erases else raw
    lines: list[list[str]] = [[]]
    column = 0
    for piece in re.findall(r"\x1b\[K|.|\n", raw, re.DOTALL):
        line = lines[-1]
        if piece == "\n":
            lines.append([])
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\b":
            column = max(0, column - 1)
        elif piece == "\x1b[K":
            del line[column:]
        else:
            line[column : column + 1] = [piece]
            column += 1
    assert clean(raw) == "\n".join("".join(line) for line in lines)


@pytest.mark.parametrize(
    "piece",
    [
        "\x1b[",
        "a\x1b[",
        "\x1b[31mx",
        "\x1b]0;",
        "\x1b",
        "\x9b",
        "a\b",
        "\b",
        "a\r",
        "\r",
        "a\x1b[K",
        "\x1b[A\n",
        "a\x00",
        "\ud800",
        "a\u202e",
        "\x1b[1;",
        "a\rb\n",
        "\x1b]\x1b\\",
        "hello world\n",
    ],
)
def test_clean_is_linear_on_a_hostile_stream(piece: str) -> None:
    """10 MiB take about a second on an idle machine; the bound leaves room for a busy one and none for n squared."""
    text = piece * ((10 << 20) // len(piece))
    before = time.process_time()
    clean(text)
    assert time.process_time() - before < 5.0


@given(st.text(max_size=400), st.integers(0, 120))
def test_clip_keeps_within_its_length_and_is_idempotent(text: str, max_chars: int) -> None:
    cut = clip(text, max_chars=max_chars)
    assert len(cut) <= max_chars
    assert clip(cut, max_chars=max_chars) == cut


def test_clip_keeps_head_and_tail_and_counts_what_is_gone() -> None:
    text = "".join(chr(97 + n % 26) for n in range(10_000))
    cut = clip(text, max_chars=1000)
    head, mark, tail = cut.split("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert mark == f"… [{10_000 - len(head) - len(tail)} characters omitted] …"
