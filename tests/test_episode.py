"""Episode results survive JSON, strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.episode import EpisodeResult

NUMBER = st.floats(allow_nan=False, allow_infinity=False)
RESULT = st.builds(
    EpisodeResult,
    task=st.text(),
    reason=st.text(),
    steps=st.integers(0, 10**6),
    reward_total=NUMBER,
    score=NUMBER,
    metric=st.text(),
    raw=st.none() | NUMBER,
    landmarks=st.dictionaries(st.text(), st.integers(-1, 100)),
    landmark_evidence=st.dictionaries(st.text(), st.text()),
    wall_s=NUMBER,
    compute_s=NUMBER,
)


@given(RESULT)
def test_round_trip(result: EpisodeResult) -> None:
    line = result.to_json()
    assert line.isascii()
    assert "\n" not in line
    assert EpisodeResult.from_json(line) == result
    assert EpisodeResult.from_json(json.loads(line)) == result


def test_nan_is_null_in_json() -> None:
    result = EpisodeResult(task="t", reason="fault", steps=1, reward_total=float("nan"), score=float("nan"))
    found = json.loads(result.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert found["score"] is None
    assert EpisodeResult.from_json(found).score != EpisodeResult.from_json(found).score


@pytest.mark.parametrize(
    "change",
    [{"steps": "1"}, {"steps": True}, {"task": None}, {"extra": 1}, {"landmarks": []}, {"score": "high"}],
)
def test_wrong_fields_are_named(change: dict[str, Any]) -> None:
    data = json.loads(EpisodeResult(task="t", reason="", steps=1, reward_total=0.0, score=0.0).to_json()) | change
    with pytest.raises(ValueError, match=next(iter(change))):
        EpisodeResult.from_json(data)


def test_what_is_no_object_is_refused() -> None:
    for text in ("[]", "3", "{"):
        with pytest.raises(ValueError, match=r"."):
            EpisodeResult.from_json(text)
