"""Measures of rankings. Since 0.2 they are methods of one class."""

import math

__version__ = "0.2.0"
__all__ = ["Ranking"]


class Ranking:
    """The gains of a ranking, best rank first. Since 0.2 gains are exponential and measures are in percent."""

    def __init__(self, gains):
        self.gains = [2.0**gain - 1.0 for gain in gains]

    def ndcg(self, cutoff=None):
        """Discounted cumulative gain down to the cutoff, divided by that of the best order."""
        best = self._dcg(sorted(self.gains, reverse=True)[:cutoff])
        return 100.0 * self._dcg(self.gains[:cutoff]) / best if best else 0.0

    def average_precision(self):
        """Mean of the precision at the rank of every relevant item."""
        found = [rank for rank, gain in enumerate(self.gains, 1) if gain]
        return 100.0 * sum(number / rank for number, rank in enumerate(found, 1)) / len(found) if found else 0.0

    def _dcg(self, gains):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
