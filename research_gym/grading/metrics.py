"""The metrics of file submissions, and the one formula that turns a metric into a reward.

All are computed in float64 over whole columns, whatever the dtype of the labels, so that labels handed in as
predictions reach the optimum exactly. Definitions follow the AIRS-Bench graders (facebookresearch/airs-bench at
18e4f1d, one `evaluate.py` per task); where this differs, the docstring says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[Any] | Sequence[str]


def accuracy(*, labels: Values, predictions: Values) -> float:
    """Returns the share of rows whose prediction equals the label, in [0, 1].

    Source: AIRS-Bench's accuracy tasks (`mean(pred == label)`). Unlike its int form, nothing is truncated here: that a
    value is integral is the reader's check. Text is compared exactly.
    """
    _same_length(labels, predictions)
    if isinstance(labels, np.ndarray) and isinstance(predictions, np.ndarray):
        return float(np.mean(labels == predictions))
    return sum(bool(mine == right) for mine, right in zip(predictions, labels, strict=True)) / len(labels)


def mae(*, labels: Values, predictions: Values) -> float:
    """Returns mean |p - y|, in the units of the labels.

    Source: AIRS-Bench `MeanAbsoluteError` (there in float32 for QM9). Infinite if the predictions are so large that
    the mean overflows.
    """
    difference = np.abs(_difference(labels, predictions))
    with np.errstate(over="ignore"):
        return float(np.mean(difference))


def rmse(*, labels: Values, predictions: Values) -> float:
    """Returns sqrt(mean (p - y)^2), in the units of the labels.

    Source: the textbook definition; scaled so that the squares do not overflow.
    """
    difference = np.abs(_difference(labels, predictions))
    largest = float(difference.max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.mean((difference / largest) ** 2)))


def spearman(*, labels: Values, predictions: Values) -> float:
    """Returns Spearman's rank correlation, in [-1, 1]: Pearson's of the ranks, ties sharing their mean rank.

    Source: `scipy.stats.spearmanr`, which AIRS-Bench calls for SICK. A constant side, or a single row, gives 0.0 where
    scipy gives NaN (AIRS-Bench's worst score for that task is 0, the Spearman of a constant).
    """
    _same_length(labels, predictions)
    right, mine = _centred_ranks(labels), _centred_ranks(predictions)
    spread = float(right @ right) * float(mine @ mine)
    if spread == 0.0:
        return 0.0
    return min(1.0, max(-1.0, float(right @ mine) / math.sqrt(spread)))


@dataclass(frozen=True)
class Metric:
    """A metric with its direction and range."""

    function: Callable[..., float]
    """Called with `labels=` and `predictions=`, equally long."""
    lower_is_better: bool
    optimal: float
    """Best possible value."""
    low: float
    high: float
    dtypes: frozenset[str]
    """Column dtypes it is defined on."""


_NUMBERS = frozenset({"int", "float"})
METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(accuracy, False, 1.0, 0.0, 1.0, frozenset({"int", "str"})),
    "mae": Metric(mae, True, 0.0, 0.0, math.inf, _NUMBERS),
    "rmse": Metric(rmse, True, 0.0, 0.0, math.inf, _NUMBERS),
    "spearman": Metric(spearman, False, 1.0, -1.0, 1.0, _NUMBERS),
}
"""Every metric a task file may name."""


def reward(raw: float, *, worst: float, optimal: float) -> float:
    """Returns clip01((worst - raw) / (worst - optimal)): 0 at the trivial model, 1 at the optimum, for either
    direction.

    Source: the OpenReward card of AIRS-Bench; `worst` is the score of the best trivial model. If worst == optimal: 1.0
    at the optimum, else 0.0. NaN earns 0.0 (a clamp written with min and max could make it 1).

    Raises:
        ValueError: `worst` or `optimal` is not finite.

    Example:
        >>> reward(0.75, worst=0.5, optimal=1.0), reward(2.0, worst=1.0, optimal=0.0)
        (0.5, 0.0)
    """
    if not (math.isfinite(worst) and math.isfinite(optimal)):
        raise ValueError(f"reward: expected finite bounds, found worst={worst!r}, optimal={optimal!r}")
    if worst == optimal:
        return float(raw == optimal)
    share = (worst - raw) / (worst - optimal)
    return 0.0 if math.isnan(share) else min(1.0, max(0.0, share))


def _same_length(labels: Values, predictions: Values) -> None:
    if len(labels) != len(predictions) or len(labels) == 0:
        raise ValueError(
            f"expected as many predictions as labels and at least one, found {len(predictions)} and {len(labels)}"
        )


def _difference(labels: Values, predictions: Values) -> npt.NDArray[np.float64]:
    _same_length(labels, predictions)
    with np.errstate(over="ignore"):
        return np.asarray(predictions, dtype=np.float64) - np.asarray(labels, dtype=np.float64)


def _centred_ranks(values: Values) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return np.asarray(ranks - (len(ranks) + 1) / 2.0, dtype=np.float64)
