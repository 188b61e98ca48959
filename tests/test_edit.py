"""Edits: exact, unique, all or none, with feedback that helps."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from research_gym.action import Block, Edit
from research_gym.edit import EditRefused, apply_edit
from research_gym.text import clean

FILE = "import os\n\ndef f(x):\n    return x\n\ndef g(x):\n    return x\n"


def edit(before: str, after: str, *, context: str = "") -> Edit:
    """An edit of one block, each part given as text; empty text is no line."""
    parts = [tuple(text.split("\n")) if text else () for text in (before, after, context)]
    return Edit("a.py", (Block(*parts),))


def test_lines_are_replaced_and_shown() -> None:
    done = apply_edit(FILE, edit("import os", "import os\nimport sys"))
    assert done.text == FILE.replace("import os\n", "import os\nimport sys\n")
    assert done.feedback.startswith("Edited a.py.\n     1  import os\n     2  import sys\n")


def test_context_finds_the_place_and_stays() -> None:
    done = apply_edit(FILE, edit("    return x", "    return 2 * x", context="def g(x):"))
    assert done.text == "import os\n\ndef f(x):\n    return x\n\ndef g(x):\n    return 2 * x\n"


def test_a_place_that_is_not_unique_is_refused_with_its_lines() -> None:
    with pytest.raises(EditRefused, match="more than once, at lines 4, 7"):
        apply_edit(FILE, edit("    return x", "pass"))


def test_other_white_space_is_refused_and_shown() -> None:
    with pytest.raises(
        EditRefused, match=r"Lines 3-4 differ from it in white space only:\n +3  def f\(x\):\n +4      return x"
    ):
        apply_edit(FILE, edit("def f(x):\n  return x", "pass"))


def test_a_partial_match_says_where_it_parts() -> None:
    with pytest.raises(
        EditRefused, match=r"Line 3 is 'def f\(x\):', but at line 4 expected 'pass', found '    return x'"
    ):
        apply_edit(FILE, edit("def f(x):\npass", "pass"))


def test_a_similar_line_is_offered() -> None:
    with pytest.raises(EditRefused, match="nearest in the file is line 1, 'import os'"):
        apply_edit(FILE, edit("import oss", "pass"))
    with pytest.raises(EditRefused, match="No line of it is"):
        apply_edit(FILE, edit("?????", "pass"))


def test_blank_lines_match_whatever_spaces_they_hold() -> None:
    assert apply_edit("a\n  \t\nb\n", edit("a\n\nb", "c")).text == "c\n"


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        ("a\r\nb\r\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\r\nb", "b", "c", "a\r\nc"),
        ("a\nb", "b", "c", "a\nc"),
        ("a\nb\n", "b", "", "a\n"),
        ("a\n", "a", "", ""),
        ("a", "a", "b", "b"),
        ("a\nb", "a", "", "b"),
        ("a\x0bb\nc\n", "c", "d", "a\x0bb\nd\n"),
    ],
)
def test_line_ends_are_kept(text: str, before: str, after: str, expected: str) -> None:
    assert apply_edit(text, edit(before, after)).text == expected


def test_blocks_are_all_or_none() -> None:
    first, second = edit("a", "b").blocks[0], edit("b", "c").blocks[0]
    assert apply_edit("a\n", Edit("f", (first, second))).text == "c\n"
    with pytest.raises(EditRefused, match="block 2 of 2"):
        apply_edit("a\n", Edit("f", (first, first)))


LINES = st.lists(
    st.sampled_from(["a", "b", "", " ", "\ud800", "a\r", "\x1b[31m", "\x00"]) | st.text(), min_size=1, max_size=6
)


@given(LINES.map("\n".join), LINES, LINES, LINES)
def test_any_edit_of_any_text_is_done_or_refused(
    text: str, context: list[str], before: list[str], after: list[str]
) -> None:
    try:
        said = apply_edit(text, Edit("a\x1b.py", (Block(tuple(before), tuple(after), tuple(context)),))).feedback
    except EditRefused as refusal:
        said = str(refusal)
    assert clean(said) == said


@given(
    st.lists(st.text(alphabet="abc ", min_size=1), min_size=1, unique_by=lambda line: line.strip()),
    st.integers(0, 20),
    st.lists(st.text(alphabet="xyz"), max_size=3),
)
def test_a_unique_line_is_replaced_and_nothing_else(lines: list[str], at: int, after: list[str]) -> None:
    at %= len(lines)
    assume(lines[at].strip())
    done = apply_edit("\n".join(lines), Edit("f", (Block((lines[at],), tuple(after)),)))
    assert done.text == "\n".join(lines[:at] + after + lines[at + 1 :])


def test_a_hostile_file_takes_no_time() -> None:
    before = time.process_time()
    with pytest.raises(EditRefused):
        apply_edit("a\n" * 500_000, edit("\n".join(["a"] * 100_000 + ["b"]), "c"))
    assert time.process_time() - before < 5.0
