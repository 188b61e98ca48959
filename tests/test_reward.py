"""The guarantees of the four reward modes, on random episodes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.reward import RewardMode, RewardSpec, RewardTerms, terms, truncation_term

UNIT = st.floats(0, 1)
PHIS = st.lists(UNIT, min_size=1, max_size=30).map(sorted)
MODES: tuple[RewardMode, ...] = ("bounded", "sparse", "gated", "pbrs")


def play(spec: RewardSpec, phis: list[float], score: float | None) -> list[RewardTerms]:
    """The terms of an episode: graded at its last step where there is a score, else truncated there."""
    found, before = [], 0.0
    for number, phi in enumerate(phis, 1):
        last = number == len(phis)
        found.append(
            terms(
                spec,
                potential_before=before,
                potential=phi,
                score=score if last else None,
                terminated=last and score is not None,
                truncated=last and score is None,
            )
        )
        before = phi
    return found


def total(found: list[RewardTerms]) -> float:
    return math.fsum(term.total for term in found)


@given(PHIS, UNIT)
def test_bounded_pays_score_plus_lam_times_the_share_reached(phis: list[float], score: float) -> None:
    found = play(RewardSpec(), phis, score)
    assert total(found) == pytest.approx(score + 0.1 * phis[-1], abs=1e-9)
    assert all(term.landmark >= 0 for term in found)
    assert math.fsum(term.landmark for term in found) <= 0.1 + 1e-12
    assert found[-1].score == score


@given(PHIS)
def test_bounded_failure_with_everything_faked_stays_below_success_without(phis: list[float]) -> None:
    assert total(play(RewardSpec(), phis, None)) <= 0.1 + 1e-12 < total(play(RewardSpec(), [0.0], 1.0))


@given(PHIS, UNIT)
def test_sparse_pays_the_score_only(phis: list[float], score: float) -> None:
    assert [term.total for term in play(RewardSpec("sparse"), phis, score)] == [0.0] * (len(phis) - 1) + [score]


@given(PHIS, UNIT, UNIT)
def test_gated_pays_nothing_without_success(phis: list[float], score: float, lam: float) -> None:
    spec = RewardSpec("gated", lam=lam)
    assert total(play(spec, phis, score)) == pytest.approx(score * (1 - lam + lam * phis[-1]), abs=1e-12)
    assert total(play(spec, phis, 0.0)) == 0.0
    assert total(play(spec, phis, None)) == 0.0


@given(PHIS, st.none() | UNIT, st.floats(0.01, 1), st.floats(0, 10))
def test_pbrs_telescopes(phis: list[float], score: float | None, gamma: float, beta: float) -> None:
    found = play(RewardSpec("pbrs", gamma=gamma, beta=beta), phis, score)
    discounted = math.fsum(gamma**step * term.total for step, term in enumerate(found))
    assert abs(discounted - gamma ** (len(phis) - 1) * (score or 0.0)) < 1e-9


def test_the_truncation_term_is_for_learners_that_bootstrap() -> None:
    assert truncation_term(RewardSpec("pbrs", gamma=0.5, beta=2.0), potential=0.5) == 0.5
    assert truncation_term(RewardSpec(), potential=0.5) == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_a_hit_repeated_pays_nothing(mode: RewardMode) -> None:
    spec = RewardSpec(mode)
    for _ in range(1000):
        found = terms(spec, potential_before=0.5, potential=0.5, score=None, terminated=False, truncated=False)
        assert found.total == 0.0


@given(st.sampled_from(MODES), PHIS, st.none() | UNIT)
def test_terms_sum_to_the_reward_and_are_finite_floats(
    mode: RewardMode, phis: list[float], score: float | None
) -> None:
    for term in play(RewardSpec(mode), phis, score):
        info = term.to_info()
        assert list(info) == ["landmark", "score", "penalty"]
        assert all(type(value) is float and math.isfinite(value) for value in info.values())
        assert sum(info.values()) == term.total


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"mod": "sparse"}, "'mode'"),
        ({"mode": "sparce"}, "'sparse'"),
        ({"lam": 0.2}, "lam"),
        ({"lam": float("nan")}, "lam"),
        ({"lam": True}, "lam"),
        ({"mode": "pbrs", "gamma": 0}, "gamma"),
        ({"beta": -1}, "beta"),
        ({"lambda": 0.1}, "lambda"),
    ],
)
def test_wrong_specs_are_refused_with_the_nearest_word(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RewardSpec.of(value)


def test_of_takes_none_an_instance_and_a_mapping() -> None:
    spec = RewardSpec("gated", lam=0.5)
    assert RewardSpec.of(None) == RewardSpec()
    assert RewardSpec.of(spec) is spec
    assert RewardSpec.of({"mode": "gated", "lam": 0.5}) == spec
    with pytest.raises(TypeError):
        RewardSpec.of("gated")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    "wrong",
    [
        {"potential": 1.5},
        {"potential": float("nan")},
        {"score": float("nan"), "terminated": True},
        {"potential_before": 0.9},
        {"terminated": True},
    ],
)
def test_impossible_inputs_are_refused(wrong: dict[str, Any]) -> None:
    usual = {"potential_before": 0.0, "potential": 0.5, "score": None, "terminated": False, "truncated": False}
    with pytest.raises(ValueError, match="reward"):
        terms(RewardSpec(), **(usual | wrong))
