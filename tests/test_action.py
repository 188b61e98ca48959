"""What each action text means; nothing an agent writes raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.action import (
    AFTER,
    BEFORE,
    MAX_ACTION_BYTES,
    MAX_ANSWER_DEPTH,
    Block,
    Edit,
    Execute,
    Interrupt,
    Invalid,
    Shape,
    Submit,
    Wait,
    parse,
)

SHAPES: tuple[Shape, ...] = ("submission", "answer")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "cell",
    [
        "",
        "pass",
        "x = '\ud800'",
        "!ls",
        "%cd /content",
        "%%bash\necho 1",
        "%submitted",
        "%waiting for x",
        "%%editor",
        "x = 1\n%submit {}",
        "# %submit",
        "%time %submit",
        "a\x00b",
        "await f()",
    ],
)
def test_everything_else_is_a_cell_as_it_stands(cell: str, shape: Shape) -> None:
    assert parse(cell, shape=shape) == Execute(cell)


@pytest.mark.parametrize("text", ["%interrupt", "%interrupt \n", "\n%interrupt", "  %interrupt"])
def test_interrupt(text: str) -> None:
    assert parse(text, shape="answer") == Interrupt()


def test_wait_stands_alone() -> None:
    assert parse("%wait", shape="answer") == Wait()
    assert isinstance(parse("%wait 5", shape="answer"), Invalid)
    assert isinstance(parse("%wait\nprint(1)", shape="answer"), Invalid)


def test_submit_of_a_file() -> None:
    assert parse("%submit", shape="submission") == Submit(from_file=True)
    assert parse("\n%submit  \n", shape="submission") == Submit(from_file=True)
    assert isinstance(parse("%submit {}", shape="submission"), Invalid)
    assert isinstance(parse("%submit submission.csv", shape="submission"), Invalid)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('%submit {"a": 1}', {"a": 1}),
        ('%submit {"a":\n 1}', {"a": 1}),
        ('%submit\n{"a": 1}', {"a": 1}),
        ('%%submit\n{"a": 1}', {"a": 1}),
        ("%%submit\n[1, 2.5, true, null]", [1, 2.5, True, None]),
        ("%submit 3", 3),
        ('%submit "\\ud800"', "\ud800"),
        ('%submit\t"x"', "x"),
        ('%submit {"a": "[[[[[[[[[[[[[[[[[[[[["}', {"a": "[" * 21}),
    ],
)
def test_submit_of_an_answer(text: str, answer: Any) -> None:
    assert parse(text, shape="answer") == Submit(answer)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "JSON answer"),
        ("{'a': 1}", "Expecting"),
        ('{"a": 1, "a": 1}', "twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ("9" * 5000, "too large"),
        ("null", "null"),
        ("[" * 100_000, "bytes"),
        ("[" * 60_000, "nesting"),
        ("[" * 17 + "]" * 17, "nesting"),
        ('{"a": "' + "x" * 70_000 + '"}', "bytes"),
        ("{} {}", "Extra data"),
        ('{"a": 1', "Expecting"),
        ("\x1b[31m", "Expecting"),
        ("\ud800", "Expecting"),
    ],
)
def test_bad_answers_are_refused_with_the_reason(body: str, said: str) -> None:
    found = parse(f"%submit {body}", shape="answer")
    assert isinstance(found, Invalid)
    assert said in found.reason
    assert found.reason.isprintable()


def test_depth_is_counted_to_the_limit() -> None:
    nest = "[" * MAX_ANSWER_DEPTH + "]" * MAX_ANSWER_DEPTH
    assert isinstance(parse(f"%submit {nest}", shape="answer"), Submit)


def test_an_action_over_the_cap_is_not_run() -> None:
    assert isinstance(parse("x" * (MAX_ACTION_BYTES + 1), shape="answer"), Invalid)
    assert isinstance(parse("é" * (MAX_ACTION_BYTES // 2 + 1), shape="answer"), Invalid)
    assert isinstance(parse("x" * MAX_ACTION_BYTES, shape="answer"), Execute)


def test_edit() -> None:
    text = f"%%edit src/a.py\ncontext\n{BEFORE}\nold\n{AFTER}\nnew 1\nnew 2\n"
    assert parse(text, shape="answer") == Edit("src/a.py", (Block(("old",), ("new 1", "new 2"), ("context",)),))


def test_edit_of_two_places_and_of_a_path_with_spaces() -> None:
    text = f"%%edit a b.py\r\n{BEFORE}\r\n1\r\n{AFTER}\r\n{BEFORE}\r\n\r\n2\r\n{AFTER}\r\n3"
    assert parse(text, shape="answer") == Edit("a b.py", (Block(("1",), ()), Block(("", "2"), ("3",))))


@pytest.mark.parametrize(
    "text",
    [
        "%%edit",
        f"%%edit\n{BEFORE}\na\n{AFTER}\nb",
        "%%edit a.py",
        "%%edit a.py\nx",
        f"%%edit a.py\n{BEFORE}\nx",
        f"%%edit a.py\n{AFTER}\nx\n{BEFORE}\ny",
        f"%%edit a.py\n{BEFORE}\n{BEFORE}\nx\n{AFTER}\ny",
        f"%%edit a.py\n{BEFORE}\n{AFTER}\ny",
        f"%%edit a\0.py\n{BEFORE}\nx\n{AFTER}\ny",
    ],
)
def test_bad_edits_say_what_is_expected(text: str) -> None:
    found = parse(text, shape="answer")
    assert isinstance(found, Invalid)
    assert "Nothing was changed" in found.reason
    assert found.reason.isprintable()


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(["", "%submit", "%submit ", "%%submit\n", "%%edit", "%%edit a\n", "%wait", "%interrupt", "\n "]),
    st.lists(
        st.sampled_from([BEFORE, AFTER, "\n", "{", "[", '"', "\\", "a", "1e9", ":", ",", "\ud800", "\x00"]) | st.text()
    ),
)
def test_any_string_is_an_action(shape: Shape, start: str, parts: list[str]) -> None:
    parse(start + "".join(parts), shape=shape)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_every_json_value_comes_through(value: Any) -> None:
    found = parse("%submit " + json.dumps(value), shape="answer")
    assert isinstance(found, Invalid) if value is None else found == Submit(value)
