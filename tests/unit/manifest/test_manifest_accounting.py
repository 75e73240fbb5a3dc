"""The verifier's own privacy accounting of rounds, against the accountants that training uses."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from variants import examples, variants

from sealtrain.manifest.accounting import TOLERANCE, epsilon_of_rounds
from sealtrain.recipe.privacy import PrivateSgd

pytestmark = [pytest.mark.long, pytest.mark.claim("C78")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "delta"),
    variants(
        [
            (1.0, 0.05, 40, 1e-4),
            (0.8, 0.02, 1000, 1e-5),
            (5.0, 0.5, 100, 1e-5),
            (0.6, 0.1, 200, 1e-5),
            (20.0, 0.1, 10_000, 1e-5),
            (2.0, 1.0, 10, 1e-5),
        ],
        each_time=[(0.8, 0.02, 1000, 1e-5), (20.0, 0.1, 10_000, 1e-5), (2.0, 1.0, 10, 1e-5)],
    ),
)
def test_it_agrees_with_what_training_counts(
    noise: float, rate: float, rounds: int, delta: float
) -> None:
    from sealtrain.training.privacy.accounting import epsilon_of

    got = epsilon_of_rounds(noise=noise, rate=rate, rounds=rounds, delta=delta)
    for accountant in ("prv", "rdp"):
        counted = epsilon_of(
            PrivateSgd(dp="sgd", target_epsilon=1, delta=delta, accountant=accountant),  # type: ignore[arg-type]
            noise,
            rate,
            rounds,
        )
        assert counted >= (1 - TOLERANCE) * got, "an honest claim is never refused"
        if accountant == "prv":  # which is tight, and says a hundredth more than it finds
            assert got == pytest.approx(counted - 0.01, rel=0.01, abs=0.005)


def test_one_round_of_everybody_is_the_gaussian_mechanism() -> None:
    """Its delta at an epsilon has a closed form (Balle and Wang 2018)."""
    noise = 1.5

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    for epsilon in (0.5, 2.0, 4.0):
        half, far = 1 / (2 * noise), epsilon * noise
        delta = below(half - far) - math.exp(epsilon) * below(-half - far)
        got = epsilon_of_rounds(noise=noise, rate=1.0, rounds=1, delta=delta)
        assert got == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "delta"),
    [(1e-3, 1.0, 10_000, 1e-12), (1e6, 1.0, 1, 0.5), (1e6, 1e-12, 1, 1e-5), (0.1, 1e-9, 9, 0.01)],
)
def test_any_numbers_that_a_log_may_hold_give_one(
    noise: float, rate: float, rounds: int, delta: float
) -> None:
    got = epsilon_of_rounds(noise=noise, rate=rate, rounds=rounds, delta=delta)
    assert math.isfinite(got)
    assert got >= 0


def test_more_noise_and_fewer_patients_drawn_cost_less() -> None:
    usual = epsilon_of_rounds(noise=1.0, rate=0.1, rounds=30, delta=1e-5)
    assert epsilon_of_rounds(noise=1.2, rate=0.1, rounds=30, delta=1e-5) < usual
    assert epsilon_of_rounds(noise=1.0, rate=0.05, rounds=30, delta=1e-5) < usual
    assert epsilon_of_rounds(noise=1.0, rate=0.1, rounds=20, delta=1e-5) < usual
    assert epsilon_of_rounds(noise=1.0, rate=0.1, rounds=30, delta=1e-4) < usual


@settings(max_examples=examples(25), deadline=None)
@given(
    noise=st.floats(min_value=1e-3, max_value=1e6),
    rate=st.floats(min_value=5e-324, max_value=1.0),
    rounds=st.sampled_from([1, 30, 10_000]),
    delta=st.floats(min_value=5e-324, max_value=0.01),
)
@example(noise=1e-3, rate=5e-324, rounds=10_000, delta=5e-324)
@example(noise=1e6, rate=1.0, rounds=1, delta=5e-324)
def test_every_number_that_a_manifest_may_name_has_an_account(
    noise: float, rate: float, rounds: int, delta: float
) -> None:
    spent = epsilon_of_rounds(noise=noise, rate=rate, rounds=rounds, delta=delta)
    assert spent >= 0
    assert math.isfinite(spent)
