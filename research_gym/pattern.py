"""Patterns of landmarks: RE2, matched within lines, so that neither a task nor an agent can make matching slow."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from research_gym.errors import TaskFormatError

MAX_PATTERN_CHARS = 2000
_PATTERN_MEMORY_BYTES = 8 << 20


class LinePattern:
    """An RE2 pattern that finds a match within one line of a text, in time linear in the text whatever the pattern."""

    def __init__(self, matcher: Any) -> None:
        self._set = matcher

    def found_in(self, text: bytes) -> bool:
        """Whether any line of the UTF-8 text holds a match; `^` and `$` are the ends of a line."""
        return bool(self._set.Match(text))


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> LinePattern:
    r"""Compiles a landmark pattern with RE2, so that no pattern and no output can make matching slow.

    Raises:
        TaskFormatError: RE2 refuses it (look-around, back references, repeats over 1000 are not in it); the message has
        RE2's own words.

    Example:
        >>> compile_pattern(r"^accuracy: 0\.9\d+$").found_in(b"epoch 3\naccuracy: 0.91\n")
        True
    """
    import re2  # not for those who only import the package

    def refused(why: object) -> TaskFormatError:
        return TaskFormatError(
            f"pattern {pattern!r}: expected an RE2 regular expression, found: {why}. RE2 has no look-around, no back "
            "references and no repeats over 1000: https://github.com/google/re2/wiki/Syntax"
        )

    if not isinstance(pattern, str) or not pattern:
        raise TaskFormatError(f"pattern: expected a non-empty string, found {pattern!r}")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise refused(f"{len(pattern)} characters, of at most {MAX_PATTERN_CHARS}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.never_nl = True
    try:
        re2.compile(f"(?m){pattern}", options)
        # A set of one: it says whether there is a match without looking for where, which is ten times as fast.
        matcher = re2.Set.SearchSet(options)
        if matcher.Add(f"(?m){pattern}") < 0:
            raise refused("it does not fit a set")
        matcher.Compile()
    except re2.error as error:
        said = error.args[0] if error.args else "no reason given"
        raise refused(said.decode("utf-8", "replace") if isinstance(said, bytes) else said) from error
    except UnicodeEncodeError as error:
        raise refused("a lone surrogate") from error
    return LinePattern(matcher)
