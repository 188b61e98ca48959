"""Metrics and the reward formula, against values worked out by hand and, where installed, scipy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_gym.grading.metrics import METRICS, accuracy, mae, reward, rmse, spearman

numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


def test_accuracy_of_ints_and_texts() -> None:
    assert accuracy(labels=np.array([1, 2, 3, 4]), predictions=np.array([1, 2, 3, 0])) == 0.75
    assert accuracy(labels=["a", "NA", "007"], predictions=["a", "NA", "7"]) == pytest.approx(2 / 3)


def test_errors_in_the_units_of_the_labels() -> None:
    labels, predictions = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    assert mae(labels=labels, predictions=predictions) == pytest.approx(1.0)
    assert rmse(labels=labels, predictions=predictions) == pytest.approx(math.sqrt(5 / 3))


def test_float64_labels_as_predictions_are_exactly_optimal() -> None:
    labels = np.array([-1.1e7 + 0.4, 3.3, 2.0**53 - 1])
    assert mae(labels=labels, predictions=labels) == 0.0
    assert rmse(labels=labels, predictions=labels) == 0.0
    assert spearman(labels=labels, predictions=labels) == 1.0
    assert mae(labels=labels, predictions=labels + np.array([0.5, 0.0, 0.0])) == pytest.approx(0.5 / 3)


def test_overflow_gives_infinity_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    labels, huge = np.array([-1e308, -1e308]), np.array([1e308, 1e308])
    assert mae(labels=labels, predictions=huge) == math.inf
    assert rmse(labels=labels, predictions=huge) == math.inf
    assert rmse(labels=np.zeros(2), predictions=huge) == pytest.approx(1e308)
    assert not recwarn.list


def test_spearman() -> None:
    labels = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(labels=labels, predictions=np.array([10.0, 20.0, 30.0, 99.0])) == 1.0
    assert spearman(labels=labels, predictions=-labels) == -1.0
    assert spearman(labels=labels, predictions=np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(4 / math.sqrt(20))
    assert spearman(labels=labels, predictions=np.full(4, 3.0)) == 0.0
    assert spearman(labels=labels[:1], predictions=labels[:1]) == 0.0


@settings(deadline=None, max_examples=50)
@given(pairs=st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_agrees_with_scipy_and_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    sklearn = pytest.importorskip("sklearn.metrics")
    labels, predictions = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    assert mae(labels=labels, predictions=predictions) == pytest.approx(
        sklearn.mean_absolute_error(labels, predictions)
    )
    if len(set(labels)) > 1 and len(set(predictions)) > 1:
        expected = stats.spearmanr(labels, predictions).statistic
        assert spearman(labels=labels, predictions=predictions) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_registry(name: str) -> None:
    metric = METRICS[name]
    labels = np.array([0, 1, 2, 2])
    assert metric.function(labels=labels, predictions=labels) == metric.optimal
    wrong = metric.function(labels=labels, predictions=labels[::-1])
    assert metric.low <= wrong <= metric.high
    assert (wrong > metric.optimal) is metric.lower_is_better
    for rows in ([], [1, 2]):
        with pytest.raises(ValueError, match="as many predictions"):
            metric.function(labels=np.array(rows[:1]), predictions=np.array(rows))


@pytest.mark.parametrize(
    ("raw", "worst", "optimal", "expected"),
    [
        (0.1, 0.1, 1.0, 0.0),
        (1.0, 0.1, 1.0, 1.0),
        (0.0, 0.1, 1.0, 0.0),
        (2.0, 0.1, 1.0, 1.0),
        (0.75, 1.5, 0.0, 0.5),
        (9.0, 1.5, 0.0, 0.0),
        (math.nan, 1.5, 0.0, 0.0),
        (math.nan, 0.1, 1.0, 0.0),
        (math.inf, 1.5, 0.0, 0.0),
        (math.inf, 1.5, 1.5, 0.0),
        (1.5, 1.5, 1.5, 1.0),
    ],
)
def test_reward(raw: float, worst: float, optimal: float, expected: float) -> None:
    assert reward(raw, worst=worst, optimal=optimal) == pytest.approx(expected)


@settings(deadline=None)
@given(raw=st.floats(), worst=st.floats(allow_nan=False, allow_infinity=False), optimal=st.floats(-1e300, 1e300))
def test_reward_is_total(raw: float, worst: float, optimal: float) -> None:
    assert 0.0 <= reward(raw, worst=worst, optimal=optimal) <= 1.0


def test_reward_refuses_bounds_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="finite bounds"):
        reward(0.5, worst=math.nan, optimal=1.0)
