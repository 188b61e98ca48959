"""Compares a submitted JSON answer with the gold one: `strict` to train on, `upstream` to compare with papers.

Both are total: any JSON value on either side, as `json.loads` builds it, gives a number in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["strict", "upstream"]

MAX_DEPTH = 64
"""Deepest nesting that is compared; what lies deeper never matches. Submissions are refused at depth 16 before they
get here."""

UPSTREAM_TOLERANCE = 1e-2
"""SUPER's tolerance: absolute, strict `<` (allenai/super-benchmark at 50cefd4c, the recursive comparison behind
`output_match`)."""


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from its gold value: `|p - g| <= max(absolute, default_rel * |g|)`.

    The default, 1e-2 absolute, is SUPER's. It is far too loose for small values: a gold of 0.005 is matched by 0.0.
    Give such keys their own absolute tolerance in `keys`. A path names the keys on the way down, joined with dots;
    elements of a list have the path of the list; an override covers all that lies beneath it until a longer path
    overrides it again.

    Raises:
        ValueError: a tolerance is negative, not a number or not finite, or `default_rel` is not below 1.

    Example:
        >>> tight = Tolerance(keys={"mse": 1e-4})
        >>> match(submission={"mse": 0.0}, gold={"mse": 0.005})
        1.0
        >>> match(submission={"mse": 0.0}, gold={"mse": 0.005}, tolerance=tight)
        0.0
    """

    default_abs: float = 1e-2
    default_rel: float = 0.0
    keys: Mapping[str, float] = field(default_factory=dict)
    """Dotted path -> absolute tolerance (the relative one stays `default_rel`)."""

    def __post_init__(self) -> None:
        named = {"default_abs": self.default_abs, "default_rel": self.default_rel, **self.keys}
        for name, value in named.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"tolerance {name}: expected a finite number >= 0, found {value!r}")
        if self.default_rel >= 1:
            raise ValueError(f"tolerance default_rel: expected a number below 1, found {self.default_rel!r}")

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Tolerance:
        """Builds it from a task file's `{default: 0.01, relative: 0.0, keys: {a.b: 1e-3}}`; `None` is the default.

        Raises:
            ValueError: a key is unknown or a value is not a tolerance.
        """
        given = {key: item for key, item in (value or {}).items() if item is not None}
        unknown = set(given) - {"default", "relative", "keys"}
        if unknown:
            raise ValueError(f"tolerance: unknown keys {sorted(map(str, unknown))}; known: default, relative, keys")
        keys = given.get("keys", {})
        if not isinstance(keys, Mapping):
            raise ValueError(
                f"tolerance keys: expected a mapping of dotted path to number, found {type(keys).__name__}"
            )
        return cls(given.get("default", 1e-2), given.get("relative", 0.0), {str(key): keys[key] for key in keys})

    def unknown_paths(self, gold: Any) -> list[str]:
        """Returns the paths in `keys` that name nothing in `gold`: a misspelt one would loosen the grade unseen."""
        known = set(_paths(gold, "", 0))
        return [path for path in self.keys if path not in known]


def match(*, submission: Any, gold: Any, mode: Mode = "strict", tolerance: Tolerance | None = None) -> float:
    """Scores a submitted answer against the gold one.

    `strict` (default): a dict scores the mean over the *gold's* keys (a missing key counts 0, extra keys count
    nothing), a list the mean over its elements if the lengths are equal and else 0; strings are equal after `strip()`;
    numbers compare under `tolerance`; a bool is not a number; `true`, `false` and `null` match themselves; NaN and
    infinities match nothing; an empty list or dict is matched by its like only. Guarantees: `match(gold, gold) == 1.0`
    if the gold holds no non-finite number and is no deeper than `MAX_DEPTH`; a submission that lacks a key or an
    element of the gold scores below 1.

    `upstream`: the published scorer of SUPER, defects included: the arguments are swapped, so that at the top level
    and at every even dict level the *submission's* keys (or length) are the denominator (one right key out of three
    scores 1.0); lists are cut to the shorter; tolerance 1e-2 absolute, strict `<`; int and float compare, bool does
    not; a falsy submission counts as none. Where upstream raises (two bools, two nulls, an empty denominator, an int
    beyond float, nesting that is too deep) the value is 0.0. `tolerance` is not used.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: `mode` is neither word. Nothing else, whatever the JSON.

    Example:
        >>> match(submission={"acc": 0.93}, gold={"acc": 0.93, "f1": 0.9, "loss": 1.2})
        0.3333333333333333
        >>> match(submission={"acc": 0.93}, gold={"acc": 0.93, "f1": 0.9, "loss": 1.2}, mode="upstream")
        1.0
    """
    if mode == "strict":
        used = tolerance or Tolerance()
        return _strict(submission, gold, used, used.default_abs, "", 0)
    if mode == "upstream":
        try:
            return _upstream(gold, submission, 0) if submission else 0.0
        except _UpstreamRaises:
            return 0.0
    raise ValueError(f"mode: expected 'strict' or 'upstream', found {mode!r}")


def _strict(submission: Any, gold: Any, tolerance: Tolerance, absolute: float, path: str, depth: int) -> float:
    if depth > MAX_DEPTH:
        return 0.0
    if isinstance(gold, dict) and isinstance(submission, dict):
        if not gold:
            return float(not submission)
        total = 0.0
        for key, value in gold.items():
            if key in submission:
                below = _join(path, key)
                here = tolerance.keys.get(below, absolute)
                total += _strict(submission[key], value, tolerance, here, below, depth + 1)
        return total / len(gold)
    if isinstance(gold, list) and isinstance(submission, list):
        if len(gold) != len(submission):
            return 0.0
        if not gold:
            return 1.0
        pairs = zip(submission, gold, strict=True)
        return sum(_strict(mine, right, tolerance, absolute, path, depth + 1) for mine, right in pairs) / len(gold)
    if isinstance(gold, str) and isinstance(submission, str):
        return float(gold.strip() == submission.strip())
    if gold is None or isinstance(gold, bool):
        return float(submission is gold)
    if _is_number(gold) and _is_number(submission):
        return float(_close(submission, gold, absolute, tolerance.default_rel))
    return 0.0


def _close(submission: float, gold: float, absolute: float, relative: float) -> bool:
    try:
        mine, right = float(submission), float(gold)
    except OverflowError:  # an int beyond the floats: near only to itself
        return submission == gold
    if not (math.isfinite(mine) and math.isfinite(right)):
        return False
    return submission == gold or abs(mine - right) <= max(absolute, relative * abs(right))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _UpstreamRaises(Exception):
    """The published scorer would have raised here."""


def _upstream(first: Any, second: Any, depth: int) -> float:
    """Compares upstream's `predicted` and `gold`; its caller passes the gold first, and its dict branch swaps."""
    if depth > MAX_DEPTH:
        raise _UpstreamRaises
    try:
        first = float(first) if type(first) is int else first
        second = float(second) if type(second) is int else second
    except OverflowError as error:
        raise _UpstreamRaises from error
    if type(first) is not type(second):
        return 0.0
    if isinstance(second, float):
        return float(abs(first - second) < UPSTREAM_TOLERANCE)
    if isinstance(second, str):
        return float(first.strip() == second.strip())
    if isinstance(second, list):
        scores = [_upstream(a, b, depth + 1) for a, b in zip(first, second, strict=False)]
    elif isinstance(second, dict):
        scores = [_upstream(value, first.get(key), depth + 1) for key, value in second.items()]
    else:
        raise _UpstreamRaises
    if not second:
        raise _UpstreamRaises
    return sum(scores) / len(second)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _paths(gold: Any, path: str, depth: int) -> list[str]:
    if depth > MAX_DEPTH:
        return []
    if isinstance(gold, list):
        return [found for item in gold for found in _paths(item, path, depth + 1)]
    if not isinstance(gold, dict):
        return []
    below = [(_join(path, key), value) for key, value in gold.items()]
    return [name for name, _ in below] + [found for name, value in below for found in _paths(value, name, depth + 1)]


def too_deep(value: Any) -> bool:
    """True if a list or dict nests deeper than `MAX_DEPTH` (an iterative walk: no recursion limit)."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (list, dict))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
