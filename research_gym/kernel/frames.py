"""The wire format between host, supervisor and kernel: length-prefixed JSON, with optional raw bytes behind it.

A frame is a 4-byte big-endian length, that many bytes of UTF-8 JSON (an object, at most 1 MiB), and, if the object has
the key `binary`, exactly that many raw bytes. Every frame carries `id`, `kernel` and `type`. This module runs inside
the sandbox too: standard library only, no import of the rest of the package.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

MAX_JSON_BYTES = 1 << 20
MAX_BINARY_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")


class Frame(NamedTuple):
    """One decoded frame."""

    header: dict[str, Any]
    data: bytes


class FrameError(ValueError):
    """The byte stream is not a sequence of frames; nothing after this point can be trusted."""


def encode(header: dict[str, Any], data: bytes = b"") -> bytes:
    """Packs one frame. Lone surrogates travel as JSON escapes; NaN is refused.

    Raises:
        FrameError: the JSON or the data exceed 1 MiB.
        ValueError: the header holds a value that JSON cannot carry.
    """
    if data:
        header = {**header, "binary": len(data)}
    body = json.dumps(header, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_JSON_BYTES or len(data) > MAX_BINARY_BYTES:
        raise FrameError(f"frame of {len(body)} + {len(data)} bytes is over the limit of {MAX_JSON_BYTES}")
    return _LENGTH.pack(len(body)) + body + data


class Decoder:
    """Turns a byte stream into frames, whatever the chunking. Hostile bytes raise `FrameError` and nothing else."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held back because their frame is not complete."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[Frame]:
        """Adds bytes and returns the frames they complete.

        Raises:
            FrameError: a length over the limit, text that is not a JSON object, or a bad `binary` count.
        """
        self._buffer += chunk
        frames: list[Frame] = []
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_JSON_BYTES:
                raise FrameError(f"frame header announces {size} bytes, over the limit of {MAX_JSON_BYTES}")
            if len(self._buffer) < 4 + size:
                break
            header = _object(bytes(self._buffer[4 : 4 + size]))
            extra = header.get("binary", 0)
            if isinstance(extra, bool) or not isinstance(extra, int) or not 0 <= extra <= MAX_BINARY_BYTES:
                raise FrameError(f"frame announces {extra!r} binary bytes; expected 0 to {MAX_BINARY_BYTES}")
            end = 4 + size + extra
            if len(self._buffer) < end:
                break
            frames.append(Frame(header, bytes(self._buffer[4 + size : end])))
            del self._buffer[:end]
        return frames


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"frame is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FrameError(f"frame is not a JSON object but {type(value).__name__}")
    return value
