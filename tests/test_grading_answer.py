"""Answer scorer: strict and upstream semantics, tolerances, totality."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_gym.grading.answer import MAX_DEPTH, Mode, Tolerance, match, too_deep

GOLD = {"accuracy": 0.83, "loss": 1.25, "epochs": 3}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
finite = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@pytest.mark.parametrize(
    ("submission", "gold", "strict", "upstream"),
    [
        pytest.param(GOLD, GOLD, 1.0, 1.0, id="gold"),
        pytest.param({"epochs": 3.0}, GOLD, 1 / 3, 1.0, id="one right key of three"),
        pytest.param({"epochs": 3, "guess": 1}, GOLD, 1 / 3, 0.5, id="one right key and one extra"),
        pytest.param([1.0], [1.0, 2.0, 3.0], 0.0, 1.0, id="list prefix"),
        pytest.param([1.0, 2.0, 3.0, 4.0], [1.0, 2.0], 0.0, 0.5, id="list too long"),
        pytest.param([1.0, 9.0], [1.0, 2.0], 0.5, 0.5, id="half a list"),
        pytest.param({}, GOLD, 0.0, 0.0, id="empty dict"),
        pytest.param([], [1], 0.0, 0.0, id="empty list"),
        pytest.param({}, {}, 1.0, 0.0, id="empty gold"),
        pytest.param({"x": 1}, {}, 0.0, 0.0, id="something against an empty gold"),
        pytest.param({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, 0.5, 0.5, id="odd level: the gold's keys count"),
        pytest.param({"a": {"b": {"x": 1}}}, {"a": {"b": {"x": 1, "y": 2}}}, 0.5, 1.0, id="even level: swapped again"),
        pytest.param({"a": {"x": 1, "z": 0}}, {"a": {"x": 1}}, 1.0, 1.0, id="odd level: extra keys are free"),
        pytest.param({"accuracy": True}, {"accuracy": 1}, 0.0, 0.0, id="bool is not int"),
        pytest.param({"accuracy": 1}, {"accuracy": True}, 0.0, 0.0, id="int is not bool"),
        pytest.param({"ok": True}, {"ok": True}, 1.0, 0.0, id="bools: upstream raises"),
        pytest.param({"ok": None}, {"ok": None}, 1.0, 0.0, id="nulls: upstream raises"),
        pytest.param({"ok": False}, {"ok": None}, 0.0, 0.0, id="false is not null"),
        pytest.param({"x": math.nan}, {"x": math.nan}, 0.0, 0.0, id="NaN"),
        pytest.param({"x": math.inf}, {"x": math.inf}, 0.0, 0.0, id="infinity"),
        pytest.param({"accuracy": "0.83"}, {"accuracy": 0.83}, 0.0, 0.0, id="number as text"),
        pytest.param(" yes\n", "yes", 1.0, 1.0, id="strip"),
        pytest.param("Yes", "yes", 0.0, 0.0, id="case"),
        pytest.param({"x": 0.0}, {"x": 0.01}, 1.0, 0.0, id="strict is <=, upstream <"),
        pytest.param({"x": 0.0}, {"x": 0.005}, 1.0, 1.0, id="the default tolerance is loose"),
        pytest.param({"1": 2}, {"1": 2.0}, 1.0, 1.0, id="int and float"),
        pytest.param(10**400, 10**400, 1.0, 0.0, id="int beyond float"),
        pytest.param(10**400, 1.0, 0.0, 0.0, id="int beyond float against float"),
        pytest.param(0, 0, 1.0, 0.0, id="falsy: no submission upstream"),
        pytest.param(None, GOLD, 0.0, 0.0, id="nothing"),
        pytest.param([{"x": 1}], [{"x": 1, "y": 1}], 0.5, 1.0, id="lists keep the order of the arguments"),
    ],
)
def test_cases(submission: Any, gold: Any, strict: float, upstream: float) -> None:
    assert match(submission=submission, gold=gold) == pytest.approx(strict)
    assert match(submission=submission, gold=gold, mode="upstream") == pytest.approx(upstream)


def test_published_values_that_tell_the_argument_order_apart() -> None:
    """Synthetic twins of the two published runs whose value only the swapped order explains (38 of 70; 60 of 156)."""
    gold = {str(number): number % 4 for number in range(70)}
    part = {key: gold[key] for key in list(gold)[:38]}
    assert match(submission=part, gold=gold, mode="upstream") == 1.0
    assert match(submission=part, gold=gold) == pytest.approx(38 / 70)
    wide = {str(number): gold.get(str(number), 0) if number < 60 else 3.5 for number in range(156)}
    assert match(submission=wide, gold=gold, mode="upstream") == pytest.approx(60 / 156)
    assert match(submission=wide, gold=gold) == pytest.approx(60 / 70)


def test_tolerance_overrides_per_path() -> None:
    gold = {"mse": 0.005, "runs": [{"f1": 0.5}, {"f1": 0.6}], "a": {"b": 1.0, "c": 1.0}}
    near = {"mse": 0.0, "runs": [{"f1": 0.505}, {"f1": 0.6}], "a": {"b": 1.0005, "c": 1.005}}
    assert match(submission=near, gold=gold) == 1.0
    tight = Tolerance(keys={"mse": 1e-4, "runs": 1e-4, "a": 1e-4, "a.b": 1e-3})
    assert match(submission=near, gold=gold, tolerance=tight) == pytest.approx((0 + 0.5 + 0.5) / 3)
    assert match(submission=gold, gold=gold, tolerance=tight) == 1.0


def test_relative_tolerance_is_of_the_gold() -> None:
    loose = Tolerance(default_abs=0.0, default_rel=0.01)
    assert match(submission=101.0, gold=100.0, tolerance=loose) == 1.0
    assert match(submission=100.0, gold=98.9, tolerance=loose) == 0.0


def test_tolerance_of_a_task_file() -> None:
    assert Tolerance.of(None) == Tolerance()
    assert Tolerance.of({"default": 0.1, "keys": {"a.b": 1e-3}}) == Tolerance(0.1, 0.0, {"a.b": 1e-3})
    assert Tolerance(keys={"a.b": 0, "a.d": 0}).unknown_paths({"a": [{"b": 1}]}) == ["a.d"]
    with pytest.raises(ValueError, match="unknown keys"):
        Tolerance.of({"defualt": 0.1})
    for wrong in ({"default": -1}, {"default": True}, {"keys": {"a": math.nan}}, {"relative": 1.0}, {"keys": [1]}):
        with pytest.raises(ValueError, match="tolerance"):
            Tolerance.of(wrong)


def test_unknown_mode_is_refused() -> None:
    mode: Any = "lenient"
    with pytest.raises(ValueError, match="'strict' or 'upstream'"):
        match(submission=1, gold=1, mode=mode)


@pytest.mark.parametrize("mode", ["strict", "upstream"])
def test_nesting_of_any_depth_is_scored(mode: Mode) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    try:
        assert match(submission=deep, gold=deep, mode=mode) == 0.0
        assert match(submission=deep, gold={"a": 1}, mode=mode) == 0.0
        assert too_deep(deep)
    finally:  # the interpreter's own clean-up of a deep list recurses
        while isinstance(deep, list):
            deep = deep.pop()
    limit: Any = 1
    for _ in range(MAX_DEPTH):
        limit = {"a": limit}
    assert not too_deep(limit)
    assert match(submission=limit, gold=limit, mode=mode) == 1.0
    assert too_deep([limit])


@settings(deadline=None)
@given(submission=values, gold=values, mode=st.sampled_from(["strict", "upstream"]))
def test_total(submission: Any, gold: Any, mode: Mode) -> None:
    score = match(submission=submission, gold=gold, mode=mode)
    assert isinstance(score, float)
    assert 0.0 <= score <= 1.0


@settings(deadline=None)
@given(gold=finite)
def test_gold_scores_one(gold: Any) -> None:
    assert match(submission=gold, gold=gold) == 1.0
    assert match(submission=json.loads(json.dumps(gold)), gold=gold) == 1.0


@settings(deadline=None)
@given(gold=st.dictionaries(st.text(max_size=4), finite, min_size=1, max_size=4), data=st.data())
def test_proper_part_of_a_dict_scores_below_one(gold: dict[str, Any], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(gold)))
    assert match(submission={key: gold[key] for key in gold if key != gone}, gold=gold) < 1.0
    assert match(submission={"top": {key: gold[key] for key in gold if key != gone}}, gold={"top": gold}) < 1.0


@settings(deadline=None)
@given(gold=st.lists(finite, min_size=1, max_size=4))
def test_proper_prefix_of_a_list_scores_below_one(gold: list[Any]) -> None:
    assert match(submission=gold[:-1], gold=gold) < 1.0
    assert match(submission={"top": gold[:-1]}, gold={"top": gold}) < 1.0
