"""Landmarks: patterns that cannot hang, artefacts that cannot break the host, and a state that never goes back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.artefact import MAX_JSON_BYTES
from research_gym.cell import Display, ErrorOutput, Output, Result, Stream
from research_gym.errors import TaskFormatError
from research_gym.landmark import (
    ArtefactCheck,
    Landmark,
    LandmarkState,
    OutputScan,
    check_artefact,
    compile_pattern,
)


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a{1001}", "(", "[", "(?<!x)y", "", "\ud800", "x" * 3000])
def test_what_re2_refuses_is_a_task_error_with_its_words(pattern: str) -> None:
    with pytest.raises(TaskFormatError, match="pattern"):
        compile_pattern(pattern)


def test_refusal_names_pattern_and_reason() -> None:
    with pytest.raises(TaskFormatError, match=r"\(\?=a\).*invalid perl operator"):
        compile_pattern("(?=a)")


def test_patterns_match_within_one_line() -> None:
    pattern = compile_pattern(r"^loss[^x]+done$")
    assert pattern.found_in(b"a\nloss 1 done\nb")
    assert not pattern.found_in(b"loss 1\ndone")
    assert not compile_pattern(r"(?s)a.*b").found_in(b"a\nb")


EVIL = [r"(a+)+$", r"(\w+\s?)*$", "loss.*loss.*loss.*done", r"(.*,){10}z", r"(x[^y]{1,500}){1,2}z", "(a|aa)+b"]


@pytest.mark.parametrize("text", ["a" * (1 << 20), "loss " * 200_000, "a\n" * (1 << 19), "a," * (1 << 19)])
def test_no_pattern_makes_a_megabyte_slow(text: str) -> None:
    scan = OutputScan([Landmark(f"l{n}", output=f"{pattern}~") for n, pattern in enumerate(EVIL)])
    best = 1.0
    for _ in range(3):
        before = time.process_time()
        assert scan.feed(text) == ()
        best = min(best, time.process_time() - before)
    assert best < 0.2, "50 ms where the machine is idle"


def test_output_is_matched_across_messages_and_sources() -> None:
    scan = OutputScan(
        [Landmark(name, output=f"^{name}$") for name in ("whole", "error", "value", "shown", "bar", "red")]
    )
    outputs: list[Output] = [
        Stream("stdout", "who"),
        Stream("stderr", "noise\n"),
        Stream("stdout", "le\n1%\rbar\r\n\x1b[31mred\x1b[0m"),
        ErrorOutput("E", "x", ("x", "error")),
        Result({"text/plain": "value"}),
        Display({"text/plain": "shown"}),
    ]
    assert set(scan.feed(outputs)) == {"whole", "error", "value", "shown", "bar", "red"}
    assert scan.feed(outputs) == ()


def test_a_line_without_its_end_is_matched_when_the_cell_ends() -> None:
    scan = OutputScan([Landmark("a", output="^loss 1$")])
    assert scan.feed("loss 1", last=False) == ()
    assert scan.feed(".5\n", last=False) == ()
    assert scan.feed("loss 1") == ("a",)


@given(st.lists(st.text(max_size=20), max_size=5))
def test_scan_never_raises(texts: list[str]) -> None:
    scan = OutputScan([Landmark("a", output="x")])
    for text in texts:
        scan.feed(text, last=False)
    scan.feed("")


def test_a_line_of_any_length_is_held_in_pieces() -> None:
    scan = OutputScan([Landmark("a", output="needle")])
    for _ in range(40):
        scan.feed("x" * 10_000, last=False)
    assert scan.feed("needle") == ("a",)


# Artefacts.


@pytest.mark.parametrize(
    ("check", "data", "passes"),
    [
        ({}, None, True),
        ({"format": "json"}, None, False),
        ({"format": "json"}, b"{}", True),
        ({"format": "json"}, b"[" * 100_000, False),
        ({"format": "json"}, b"\xff", False),
        ({"format": "json"}, b"NaN", False),
        ({"format": "json"}, b"9" * 10_000, False),
        ({"format": "json", "key": "acc"}, b'{"acc": null}', True),
        ({"format": "json", "key": "acc", "min": 0.8}, b'{"acc": 0.8}', True),
        ({"format": "json", "key": "acc", "min": 0.8}, b'{"acc": 0.79}', False),
        ({"format": "json", "key": "acc", "min": 0.8}, b'{"acc": true}', False),
        ({"format": "json", "key": "acc", "min": 0.8}, b'{"acc": "0.9"}', False),
        ({"format": "json", "key": "acc", "min": 0.8}, b'{"acc": 1e999}', False),
        ({"format": "json", "key": "acc", "max": 1.0}, b'{"acc": 1.5}', False),
        ({"format": "json", "key": "a.b.1", "max": 2}, b'\xef\xbb\xbf{"a": {"b": [0, 1]}}', True),
        ({"format": "json", "key": "a.b", "max": 2}, b'{"a.b": 1}', True),
        ({"format": "json", "key": "a"}, b"[1]", False),
        ({"format": "json", "key": "5"}, b"[1]", False),
        ({"format": "csv", "rows": 2}, b"label\r\n1\r\n2\r\n", True),
        ({"format": "csv", "rows": 2}, b"label\n1\n", False),
        ({"format": "csv", "rows": 2}, b"label\n1\n2\n3\n", False),
        ({"format": "csv", "columns": ("label",)}, b"id,label\n1,2\n", True),
        ({"format": "csv", "columns": ("label",)}, b"id\n1\n", False),
        ({"format": "csv"}, b"a,b\n1\n", False),
        ({"format": "csv"}, b"", False),
        ({"format": "csv"}, b'a\n"x\n', False),
        ({"format": "csv"}, b"a\n" + b"x" * 200_000, False),
        ({"format": "text", "contains": "^done$"}, b"x\ndone\n", True),
        ({"format": "text", "contains": "^done$"}, b"not done\n", False),
    ],
)
def test_artefacts(check: dict[str, Any], data: bytes | None, passes: bool) -> None:
    assert check_artefact(ArtefactCheck("f", **check), data) is passes


CHECKS = [
    ArtefactCheck("f", format="json", key="a.0.b", min=0),
    ArtefactCheck("f", format="csv", rows=2, columns=("a",)),
    ArtefactCheck("f", format="text", contains="x"),
]


@given(st.sampled_from(CHECKS), st.binary(max_size=200))
def test_any_bytes_give_an_answer(check: ArtefactCheck, data: bytes) -> None:
    assert check_artefact(check, data) in (True, False)


@given(
    st.sampled_from(CHECKS),
    st.recursive(st.none() | st.floats() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)),
)
def test_any_json_gives_an_answer(check: ArtefactCheck, value: Any) -> None:
    assert check_artefact(check, json.dumps(value).encode()) in (True, False)


def test_json_over_the_cap_is_not_parsed() -> None:
    before = time.process_time()
    assert not check_artefact(CHECKS[0], b"[]," * MAX_JSON_BYTES)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "xml"},
        {"key": "a"},
        {"format": "csv", "key": "a"},
        {"format": "json", "min": 1},
        {"format": "json", "key": "a", "min": 2, "max": 1},
        {"format": "json", "key": "a", "min": float("nan")},
        {"format": "csv", "rows": -1},
        {"format": "csv", "rows": True},
        {"format": "text", "contains": "("},
    ],
)
def test_checks_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TaskFormatError):
        ArtefactCheck("f", **fields)


# State.

MARKS = (Landmark("a", weight=1, output="x"), Landmark("b", weight=3, artefact=ArtefactCheck("b")))


def test_kernel_text_is_seen_and_never_pays() -> None:
    state = LandmarkState.initial(MARKS).update(step=1, seen=("a", "b"))
    assert state.evidence() == {"a": "seen", "b": "seen"}
    assert state.steps() == {"a": -1, "b": -1}
    assert state.potential(MARKS) == 0.0


def test_a_landmark_keeps_its_first_step() -> None:
    state = LandmarkState.initial(MARKS)
    for step in range(1, 1000):
        state = state.update(step=step, artefacts=("b",))
    assert state.steps() == {"a": -1, "b": 1}
    assert state.evidence() == {"a": "none", "b": "artefact"}
    assert state.potential(MARKS) == 0.75


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=6))
def test_the_potential_is_a_share(weights: list[float]) -> None:
    marks = [Landmark(f"m{n}", weight=weight, artefact=ArtefactCheck("f")) for n, weight in enumerate(weights)]
    state, before = LandmarkState.initial(marks), 0.0
    for mark in marks:
        state = state.update(step=1, artefacts=(mark.id,))
        assert before <= state.potential(marks) <= 1.0
        before = state.potential(marks)
    assert before == (1.0 if any(weights) else 0.0)


def test_unknown_ids_and_bad_landmarks_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of a, b"):
        LandmarkState.initial(MARKS).update(step=1, seen=("c",))
    for fields in ({}, {"artefact": ArtefactCheck("f"), "output": "x"}, {"output": "x", "weight": -1}, {"output": "("}):
        with pytest.raises(TaskFormatError):
            Landmark("a", **fields)
    with pytest.raises(TaskFormatError):
        Landmark("a b", output="x")
