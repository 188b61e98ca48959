"""The Jupyter message format, read so that no byte sequence an agent can send raises anything but `Malformed`."""

from __future__ import annotations

import hmac
import json
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import Any, NamedTuple

from research_gym.kernel import items as output_items
from research_gym.kernel.items import Item

DELIMITER = b"<IDS|MSG>"
MAX_MESSAGE_BYTES = 64 << 20
_REMEMBERED = 4096


class Malformed(ValueError):
    """A message that is dropped and counted."""


class Message(NamedTuple):
    """What is needed of a message from the kernel."""

    type: str
    parent: str
    """Message id of the request it belongs to; empty if it names none."""
    content: dict[str, Any]


class Wire:
    """Packs requests and unpacks messages of one kernel, signed with its key (HMAC-SHA256, protocol 5.4)."""

    def __init__(self, key: str) -> None:
        self._key = key.encode("ascii")
        self._session = uuid.uuid4().hex
        self._seen: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def pack(self, kind: str, content: dict[str, Any]) -> tuple[str, list[bytes]]:
        """A request as its message id and the parts to send."""
        message_id = uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "msg_type": kind,
            "session": self._session,
            "username": "research_gym",
            "date": datetime.now(UTC).isoformat(),
            "version": "5.4",
        }
        parts = [json.dumps(part).encode("ascii") for part in (header, {}, {}, content)]
        return message_id, [DELIMITER, self._sign(parts), *parts]

    def unpack(self, parts: list[bytes]) -> Message:
        """Checks and reads one message.

        Raises:
            Malformed: too few parts, a wrong or repeated signature, JSON that is none, keys of a wrong type.
        """
        try:
            start = parts.index(DELIMITER) + 1
        except ValueError as error:
            raise Malformed("no delimiter") from error
        if len(parts) < start + 5:
            raise Malformed("too few parts")
        signature, body = parts[start], parts[start + 1 : start + 5]
        if not hmac.compare_digest(signature, self._sign(body)):
            raise Malformed("wrong signature")
        if signature in self._seen:
            raise Malformed("repeated signature")
        self._remember(signature)
        header, parent = _object(body[0]), _object(body[1])
        kind, parent_id = header.get("msg_type"), parent.get("msg_id", "")
        if not isinstance(kind, str) or not isinstance(parent_id, str):
            raise Malformed("keys of a wrong type")
        return Message(kind, parent_id, _object(body[3]))

    def _sign(self, parts: list[bytes]) -> bytes:
        digest = hmac.new(self._key, digestmod="sha256")
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode("ascii")

    def _remember(self, signature: bytes) -> None:
        self._seen.add(signature)
        self._order.append(signature)
        if len(self._order) > _REMEMBERED:
            self._seen.discard(self._order.popleft())


def items_of(message: Message, *, max_bytes: int) -> tuple[list[Item], int]:
    """The output items of a message and the bytes left out of a text over `max_bytes` (head and tail stay).

    Messages that show nothing (status, comm, input echo, unknown types) give no items.

    Raises:
        Malformed: an output message without the fields of its type.
    """
    kind, content = message.type, message.content
    if kind == "stream":
        return _stream(content, max_bytes)
    if kind in ("display_data", "update_display_data"):
        value = {**content, "kind": "display", "update": kind == "update_display_data"}
    elif kind == "execute_result":
        value = {**content, "kind": "result"}
    elif kind == "error":
        value = {**content, "kind": "error"}
    elif kind == "clear_output":
        value = {**content, "kind": "clear"}
    else:
        return [], 0
    value.pop("late", None)
    found = output_items.checked(value)
    if not found:
        raise Malformed(f"{kind} without its content")
    return found, 0


def _stream(content: dict[str, Any], max_bytes: int) -> tuple[list[Item], int]:
    name, text = content.get("name"), content.get("text")
    if name not in ("stdout", "stderr") or not isinstance(text, str):
        raise Malformed("stream without name or text")
    if len(text) <= max_bytes:
        return list(output_items.streams(name, text)), 0
    half = max_bytes // 2
    middle = text[half:-half]
    kept = [*output_items.streams(name, text[:half]), *output_items.streams(name, text[-half:])]
    return kept, output_items.text_bytes(middle)


def _object(part: bytes) -> dict[str, Any]:
    if len(part) > MAX_MESSAGE_BYTES:
        raise Malformed("part too large")
    try:
        value = json.loads(part.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Malformed("part is not JSON") from error
    if not isinstance(value, dict):
        raise Malformed("part is not an object")
    return value
