"""Output items: what a cell shows, as the JSON objects that travel in `output` frames.

Both sides of the kernel link use this: the driver to build items from Jupyter messages, pid 1 to check what it got.
All of it is total: hostile values give a smaller item or none, never an exception.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

Item = dict[str, Any]

MAX_TEXT_CHARS = 1 << 16
"""Longest text of one item: 768 KiB of JSON in the worst case (12 bytes for a character outside the basic plane)."""
MAX_IMAGE_CHARS = 512 << 10
"""Longest base64 value kept; a longer image is named under `CUT_MIME` instead."""
MAX_FRAME_CHARS = 900 << 10
CUT_MIME = "application/x-research-gym-cut"
_MAX_NAME_CHARS = 256
_MAX_LINES = 120
_MAX_MIMES = 16


def cut(text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Keeps head and tail of a text and says in between how much is missing."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2 - 32
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def text_bytes(text: str) -> int:
    """Length in UTF-8, lone surrogates included."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def item_bytes(item: Item) -> int:
    """What an item counts against the output budget: its texts."""
    kind = item["kind"]
    if kind == "stream":
        return text_bytes(item["text"])
    if kind in ("display", "result"):
        return sum(text_bytes(value) for value in item["data"].values())
    if kind == "error":
        return text_bytes(item["evalue"]) + sum(text_bytes(line) for line in item["traceback"])
    return 0


def streams(name: str, text: str) -> Iterator[Item]:
    """Cuts a text of any length into stream items."""
    for start in range(0, len(text), MAX_TEXT_CHARS):
        yield {"kind": "stream", "name": name, "text": text[start : start + MAX_TEXT_CHARS]}


def checked(value: Any) -> list[Item]:
    """Rebuilds an item from known keys of the right types; an empty list if it is none, several for a long stream."""
    if not isinstance(value, dict):
        return []
    found = list(_known(value))
    if value.get("late") is True:
        for item in found:
            item["late"] = True
    return found


def _known(value: dict[str, Any]) -> Iterator[Item]:
    kind = value.get("kind")
    if kind == "stream":
        name, text = value.get("name"), value.get("text")
        if name in ("stdout", "stderr") and isinstance(text, str):
            yield from streams(name, text)
    elif kind == "display":
        data = mime_bundle(value.get("data"))
        if data:
            metadata = flat_metadata(value.get("metadata"))
            yield {"kind": "display", "data": data, "metadata": metadata, "update": value.get("update") is True}
    elif kind == "result":
        data = mime_bundle(value.get("data"))
        if data:
            yield {"kind": "result", "data": data, "execution_count": count(value.get("execution_count"))}
    elif kind == "error":
        yield error(value.get("ename"), value.get("evalue"), value.get("traceback"))
    elif kind == "clear":
        yield {"kind": "clear", "wait": value.get("wait") is True}


def error(ename: Any, evalue: Any, traceback: Any) -> Item:
    """An error item from whatever a kernel said; long parts are cut in the middle."""
    lines = [line for line in traceback if isinstance(line, str)] if isinstance(traceback, list) else []
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        lines = [*lines[:half], f"[... {len(lines) - 2 * half} entries cut ...]", *lines[-half:]]
    total = sum(map(len, lines))
    if total > MAX_TEXT_CHARS // 2:
        share = max(256, MAX_TEXT_CHARS // 2 // len(lines))
        lines = [cut(line, max_chars=share) for line in lines]
    return {
        "kind": "error",
        "ename": cut(ename, max_chars=_MAX_NAME_CHARS) if isinstance(ename, str) else "Error",
        "evalue": cut(evalue, max_chars=MAX_TEXT_CHARS // 4) if isinstance(evalue, str) else "",
        "traceback": lines,
    }


def mime_bundle(value: Any) -> dict[str, str]:
    """A MIME bundle whose values are all text and fit one frame: images stay base64, JSON values become JSON text."""
    if not isinstance(value, dict):
        return {}
    data: dict[str, str] = {}
    dropped: list[str] = []
    room = MAX_FRAME_CHARS - (64 << 10)
    keys = sorted((key for key in value if isinstance(key, str) and len(key) <= _MAX_NAME_CHARS), key=_plain_first)
    for key in keys[:_MAX_MIMES]:
        text = _mime_text(value[key])
        if text is None:
            continue
        if key == CUT_MIME:
            dropped.append(cut(text, max_chars=1024))
            continue
        is_base64 = text.isascii() and (key.startswith(("image/", "audio/", "video/")) or key == "application/pdf")
        if is_base64 and key != "image/svg+xml":
            if len(text) > min(MAX_IMAGE_CHARS, room):
                dropped.append(f"{key} {len(text)} base64 characters")
                continue
            cost = len(text)
        else:
            text = cut(text)
            cost = len(json.dumps(text))
            if cost > room:
                dropped.append(f"{key} {len(text)} characters")
                continue
        room -= cost
        data[key] = text
    if dropped:
        data[CUT_MIME] = "; ".join(dropped)
    return data


def flat_metadata(value: Any) -> dict[str, Any]:
    """The scalars of a metadata object, two levels deep: sizes of images live there, and nothing else is wanted."""
    if not isinstance(value, dict):
        return {}
    flat: dict[str, Any] = {}
    for key, entry in list(value.items())[:_MAX_MIMES]:
        if not isinstance(key, str) or len(key) > _MAX_NAME_CHARS:
            continue
        if _is_scalar(entry):
            flat[key] = entry
        elif isinstance(entry, dict):
            flat[key] = {
                inner: scalar
                for inner, scalar in list(entry.items())[:_MAX_MIMES]
                if isinstance(inner, str) and len(inner) <= _MAX_NAME_CHARS and _is_scalar(scalar)
            }
    return flat


def count(value: Any) -> int:
    """A counter from the other side, 0 unless it is a sensible whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        return 0
    return value


def packs(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Groups items so that each group fits one frame."""
    group: list[Item] = []
    room = MAX_FRAME_CHARS
    for item in items:
        cost = len(json.dumps(item)) + 2
        if group and cost > room:
            yield group
            group, room = [], MAX_FRAME_CHARS
        group.append(item)
        room -= cost
    if group:
        yield group


def merge(items: list[Item], item: Item) -> bool:
    """Appends a stream item to the last one if it continues the same stream and stays short enough."""
    if not items or item["kind"] != "stream":
        return False
    last = items[-1]
    if last["kind"] != "stream" or last["name"] != item["name"] or last.get("late") != item.get("late"):
        return False
    if len(last["text"]) + len(item["text"]) > MAX_TEXT_CHARS:
        return False
    last["text"] += item["text"]
    return True


def _plain_first(key: str) -> tuple[int, str]:
    return (0 if key == "text/plain" else 1 if key.startswith("image/") else 2, key)


def _mime_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "".join(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return None


def _is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= _MAX_NAME_CHARS
    return isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 53)
