"""Marks in the output pipe: text comes out complete and in order, whatever the chunks and whatever the agent writes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from research_gym.kernel.marks import MarkReader, Piece, numbered_mark, stream_mark

NONCE = "ab12"
TEXTS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\0", b"\0rg", b"\0rgab12", b"\0rgab12:", b"\0rgab12:99", b"\0rgother:1\0", b"\0rgab12x\0"]),
)


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def test_text_before_a_mark_is_shown_before_what_the_frame_shows() -> None:
    reader = MarkReader(NONCE)
    assert joined(reader.feed(b"one" + numbered_mark(NONCE, 1) + b"two" + numbered_mark(NONCE, 2) + b"three")) == b"one"
    assert joined(reader.reach(1)) == b""
    assert joined(reader.reach(2)) == b"two"
    assert joined(reader.feed(b"")) == b"three"


def test_a_lost_frame_delays_no_text_for_ever() -> None:
    reader = MarkReader(NONCE)
    reader.feed(numbered_mark(NONCE, 1) + b"a" + numbered_mark(NONCE, 2) + b"b")
    assert joined(reader.reach(2)) == b"a"
    assert joined(reader.feed(b"")) == b"b"
    forged = MarkReader(NONCE, max_held_bytes=10)
    assert joined(forged.feed(numbered_mark(NONCE, 999) + b"x" * 11)) == b"x" * 11


def test_streams_are_named_by_their_marks() -> None:
    reader = MarkReader(NONCE)
    text = b"out" + stream_mark(NONCE, "stderr") + b"err" + stream_mark(NONCE, "stdout") + b"again"
    assert reader.feed(text) == [Piece("stdout", b"out"), Piece("stderr", b"err"), Piece("stdout", b"again")]


@given(st.lists(TEXTS, max_size=8), st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=300, deadline=None)
def test_every_byte_of_text_comes_out_in_order(texts: list[bytes], cuts: list[int]) -> None:
    # A lone zero byte at a border is made harmless by a letter: two texts could otherwise form a mark between them.
    texts = [text + b"." for text in texts]
    data = b"".join(text + numbered_mark(NONCE, number + 1) for number, text in enumerate(texts))
    reader = MarkReader(NONCE)
    shown: list[Piece] = []
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(edges):
        shown += reader.feed(data[start:end])
    for number in range(len(texts)):
        shown += reader.reach(number + 1)
        assert joined(shown).startswith(b"".join(texts[: number + 1]))
    assert joined(shown + reader.flush()) == b"".join(texts)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_without_marks_pass_unchanged(data: bytes, cuts: list[int]) -> None:
    reader = MarkReader(NONCE)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    shown = [piece for start, end in pairwise(edges) for piece in reader.feed(data[start:end])]
    assert joined(shown + reader.flush()) == data
