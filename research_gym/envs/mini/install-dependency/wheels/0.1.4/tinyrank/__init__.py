"""Measures of rankings. Every function takes the gains of a ranking, best rank first."""

import math

__version__ = "0.1.4"
__all__ = ["average_precision", "ndcg", "reciprocal_rank"]


def _dcg(gains):
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def ndcg(gains, k):
    """Discounted cumulative gain at rank k, divided by that of the best order of the same gains."""
    best = _dcg(sorted(gains, reverse=True)[:k])
    return _dcg(gains[:k]) / best if best else 0.0


def average_precision(gains):
    """Mean of the precision at the rank of every relevant item."""
    found, total = 0, 0.0
    for rank, gain in enumerate(gains, 1):
        if gain:
            found += 1
            total += found / rank
    return total / found if found else 0.0


def reciprocal_rank(gains):
    """One over the rank of the first relevant item."""
    for rank, gain in enumerate(gains, 1):
        if gain:
            return 1.0 / rank
    return 0.0
