"""The wire format: any chunking, and hostile bytes."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_gym.kernel.frames import MAX_BINARY_BYTES, MAX_JSON_BYTES, Decoder, Frame, FrameError, encode

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
headers = st.dictionaries(st.text(max_size=8).filter(lambda key: key != "binary"), scalars, max_size=5)


def packed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@given(st.lists(st.tuples(headers, st.binary(max_size=200)), max_size=5), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_frames_survive_any_chunking(sent: list[tuple[dict[str, Any], bytes]], step: int) -> None:
    stream = b"".join(encode(header, data) for header, data in sent)
    decoder = Decoder()
    found: list[Frame] = []
    for start in range(0, len(stream), step):
        found += decoder.feed(stream[start : start + step])
    assert [({k: v for k, v in f.header.items() if k != "binary"}, f.data) for f in found] == sent
    assert decoder.pending == 0


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_raise_nothing_but_frame_error(data: bytes) -> None:
    for stream in (data, packed(data)):
        with contextlib.suppress(FrameError):
            Decoder().feed(stream)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' + b"9" * 50_000 + b"}",
        b'{"binary": -1}',
        b'{"binary": true}',
        b'{"binary": "x"}',
        json.dumps({"binary": MAX_BINARY_BYTES + 1}).encode(),
    ],
)
def test_hostile_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder().feed(packed(body))


def test_an_announced_length_over_the_limit_is_refused_before_the_bytes_come() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        Decoder().feed(struct.pack(">I", MAX_JSON_BYTES + 1))


def test_lone_surrogates_travel_and_nan_does_not() -> None:
    assert Decoder().feed(encode({"text": "\ud800"}))[0].header["text"] == "\ud800"
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


def test_too_much_data_is_refused() -> None:
    with pytest.raises(FrameError):
        encode({}, b"x" * (MAX_BINARY_BYTES + 1))
    with pytest.raises(FrameError):
        encode({"text": "x" * MAX_JSON_BYTES})
