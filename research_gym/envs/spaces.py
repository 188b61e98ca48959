"""The space of observations and actions: Unicode text of bounded length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np

HARMLESS_CELL = "pass"


class Unicode(gymnasium.Space[str]):
    """All valid Unicode strings of at most `max_length` characters.

    `gymnasium.spaces.Text` lists its alphabet, which has no `é` by default and costs seconds for all of Unicode; and
    inside `AsyncVectorEnv(shared_memory=True)` it returns stale text. This space is a direct `gymnasium.Space`: it
    batches to a tuple of `str`, and shared memory fails with Gymnasium's own sentence instead.

    `sample()` is always the harmless cell `pass`, never random text: as an action, a random string could start with
    `!`.

    Args:
        max_length: longest string, in characters (code points).
        clean: also refuse control characters other than newline and tab, and lone surrogates (the observation
        contract).

    Raises:
        ValueError: `max_length` is not a positive integer.

    Example:
        >>> space = Unicode(100)
        >>> "x = 'é'" in space, "x" * 101 in space, 3 in space
        (True, False, False)
        >>> space.sample()
        'pass'
    """

    def __init__(self, max_length: int, *, clean: bool = False, seed: int | np.random.Generator | None = None) -> None:
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < len(HARMLESS_CELL):
            raise ValueError(f"Unicode.max_length: expected an integer of at least 4, found {max_length!r}")
        self.max_length = max_length
        self.clean = clean
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text of no fixed length has no flat array form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """The harmless cell `pass`.

        Raises:
            ValueError: a mask or probabilities are given; this space knows neither.
        """
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes no mask and no probability: its only sample is 'pass'")
        return HARMLESS_CELL

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string of this space; linear in its length only where `clean` is set."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        return not self.clean or is_clean(x)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Strings are their own JSON form."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The inverse of `to_jsonable`."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and (other.max_length, other.clean) == (self.max_length, self.clean)

    def __hash__(self) -> int:
        return hash((Unicode, self.max_length, self.clean))

    def __repr__(self) -> str:
        return f"Unicode({self.max_length}{', clean=True' if self.clean else ''})"


def is_clean(text: str) -> bool:
    """Whether text keeps the observation contract: no lone surrogate, no control character but newline and tab."""
    if text.isascii() and text.isprintable():
        return True
    for char in text:
        code = ord(char)
        if code < 0x20:
            if char not in "\n\t":
                return False
        elif 0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF:
            return False
    return True
