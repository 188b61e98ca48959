"""The shape of host requests: what each may hold, checked before anything acts on it."""

from __future__ import annotations

import math
from typing import Any


class BadRequest(ValueError):
    """A request that breaks the protocol; the message names the field."""


def identity(header: dict[str, Any]) -> int:
    """The request's id, 0 if it has none that can be answered."""
    value = header.get("id")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def kernel_name(header: dict[str, Any]) -> str:
    """The kernel a request is about; empty for the sandbox itself."""
    value = header.get("kernel", "")
    return value if isinstance(value, str) else ""


def text(header: dict[str, Any], key: str) -> str:
    """A string field.

    Raises:
        BadRequest: missing or not a string.
    """
    value = header.get(key)
    if not isinstance(value, str):
        raise BadRequest(f"{key}: expected a string, found {type(value).__name__}")
    return value


def seconds(header: dict[str, Any], key: str, *, default: float | None = None) -> float:
    """A duration, positive and finite.

    Raises:
        BadRequest: missing without a default, or not such a number.
    """
    value = header.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise BadRequest(f"{key}: expected seconds >= 0, found {value!r:.40}")
    return float(value)


def whole(header: dict[str, Any], key: str, *, default: int | None = None) -> int:
    """A whole number >= 0.

    Raises:
        BadRequest: missing without a default, or not such a number.
    """
    value = header.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise BadRequest(f"{key}: expected a whole number >= 0, found {value!r:.40}")
    return value


def choice(header: dict[str, Any], key: str, options: tuple[str, ...], *, default: str) -> str:
    """One of several words.

    Raises:
        BadRequest: another word.
    """
    value = header.get(key, default)
    if value not in options:
        raise BadRequest(f"{key}: expected one of {', '.join(options)}, found {value!r:.40}")
    return str(value)


def words(header: dict[str, Any], key: str) -> list[str]:
    """A list of strings that is not empty.

    Raises:
        BadRequest: anything else, or a NUL in one of them.
    """
    value = header.get(key)
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(word, str) and "\0" not in word for word in value)
    ):
        raise BadRequest(f"{key}: expected a list of strings, not empty")
    return list(value)


def environment(header: dict[str, Any], key: str) -> dict[str, str]:
    """Environment variables; absent and null mean none.

    Raises:
        BadRequest: not an object of strings.
    """
    value = header.get(key) or {}
    if not isinstance(value, dict):
        raise BadRequest(f"{key}: expected an object of strings")
    for name, entry in value.items():
        if not isinstance(entry, str) or "\0" in entry or "\0" in name or "=" in name or not name:
            raise BadRequest(f"{key}: expected an object of strings, found {name!r:.40}")
    return dict(value)
