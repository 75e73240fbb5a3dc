"""The noise is what it says: normal, geometric, secret, and the same again for its place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from collecting import COLLECTING
from Crypto.Cipher import AES

from sealtrain.errors import UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.privacy.noise import NoiseSource, round_to_grid

if not COLLECTING:
    import torch
    from scipy import stats

pytestmark = pytest.mark.claim("C37")

KEY = DataKey(bytes(range(32)))
MANY = 200_000


@pytest.fixture
def source() -> NoiseSource:
    return NoiseSource(KEY)


def test_normal_numbers_are_normal(source: NoiseSource) -> None:
    drawn = source.gaussian_noise(MANY, 3.0, "test")
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm", args=(0, 3.0)).pvalue > 0.01
    assert abs(drawn.var() / 9.0 - 1) < 5 * math.sqrt(2 / MANY)
    assert abs(stats.kurtosis(drawn)) < 5 * math.sqrt(24 / MANY)


def test_a_wrong_deviation_would_be_seen(source: NoiseSource) -> None:
    drawn = source.gaussian_noise(MANY, 3.0, "test")
    assert stats.kstest(drawn, "norm", args=(0, 3.05)).pvalue < 1e-4


def test_neighbours_in_one_draw_are_independent(source: NoiseSource) -> None:
    drawn = source.gaussian_noise(MANY, 1.0, "test")
    half = MANY // 2
    for first, second in ((drawn[:-1], drawn[1:]), (drawn[:half], drawn[half:])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(half)
        # The two numbers of one pair have one radius; only if that shows are they dependent.
        assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 5 / math.sqrt(half)


def test_counts_get_two_sided_geometric_noise(source: NoiseSource) -> None:
    epsilon = 0.7
    drawn = source.geometric_noise(MANY, epsilon, "test")
    ratio = math.exp(-epsilon)
    inside = np.arange(-8, 9)
    shares = (1 - ratio) / (1 + ratio) * ratio ** np.abs(inside)
    observed = np.array([(drawn == value).sum() for value in inside])
    rest = MANY - observed.sum(), MANY * (1 - shares.sum())
    expected = np.append(shares * MANY, rest[1])
    assert stats.chisquare(np.append(observed, rest[0]), expected).pvalue > 0.01


def test_every_row_has_a_coin_of_its_own(source: NoiseSource) -> None:
    chance = np.full(50, int(0.2 * 2**64), dtype=np.uint64)
    chosen = np.zeros((4000, 50), dtype=bool)
    for step in range(4000):
        chosen[step, source.choose(chance, "rows", step)] = True
    sizes = np.bincount(chosen.sum(1), minlength=51)
    expected = stats.binom(50, 0.2).pmf(np.arange(51)) * 4000
    few = expected < 5
    observed = np.append(sizes[~few], sizes[few].sum())
    assert stats.chisquare(observed, np.append(expected[~few], expected[few].sum())).pvalue > 0.01
    together = np.corrcoef(chosen.T.astype(float))
    assert np.abs(together - np.eye(50)).max() < 6 / math.sqrt(4000)


def test_a_chance_of_one_and_of_none(source: NoiseSource) -> None:
    chance = np.array([0, (1 << 64) - 1], dtype=np.uint64)
    assert all(source.choose(chance, step).tolist() == [1] for step in range(100))


def test_the_words_are_a_key_stream_of_aes(source: NoiseSource) -> None:
    key = KEY.derive("noise-stream", "rows", "7").reveal()
    stream = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0).encrypt(bytes(8 * 300_000))
    expected = np.frombuffer(stream, dtype="<u8")
    assert np.array_equal(source.words(300_000, "rows", 7), expected)


def test_equal_places_draw_the_same_and_others_do_not(source: NoiseSource) -> None:
    draw = source.gaussian_noise(100, 1.0, 3, "layer.weight")
    assert np.array_equal(draw, NoiseSource(KEY).gaussian_noise(100, 1.0, 3, "layer.weight"))
    others = [
        source.gaussian_noise(100, 1.0, 4, "layer.weight"),
        source.gaussian_noise(100, 1.0, 3, "layer.bias"),
        source.derive("audit").gaussian_noise(100, 1.0, 3, "layer.weight"),
        NoiseSource(DataKey(bytes(32))).gaussian_noise(100, 1.0, 3, "layer.weight"),
    ]
    for other in others:
        assert not np.intersect1d(draw, other).size


def test_seeds_of_libraries_have_no_say(source: NoiseSource) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = source.gaussian_noise(10, 1.0, "test")
    torch.manual_seed(2)
    np.random.seed(2)
    assert np.array_equal(first, source.gaussian_noise(10, 1.0, "test"))


@pytest.mark.parametrize("deviation", [1e-4, 1.0, 37.5])
def test_noised_sums_lie_on_a_grid_of_their_own(source: NoiseSource, deviation: float) -> None:
    noise = source.gaussian_noise(1000, deviation, "test")
    grid = 2.0 ** (math.floor(math.log2(deviation)) - 20)
    for data in (0.0, 1.1 * deviation):
        on_grid = round_to_grid(noise + data, deviation)
        assert np.array_equal(on_grid / grid, np.round(on_grid / grid))
        assert np.abs(on_grid - (noise + data)).max() <= grid / 2
        # Too coarse for a float32 to hold anything below it.
        assert np.array_equal(on_grid.astype(np.float32).astype(np.float64) % grid, on_grid * 0)


def test_no_deviation_is_no_noise(source: NoiseSource) -> None:
    assert not source.gaussian_noise(10, 0.0, "test").any()
    assert round_to_grid(np.array([0.1]), 0.0)[0] == 0.1


def test_odd_and_empty_counts(source: NoiseSource) -> None:
    assert source.gaussian_noise(7, 1.0, "test").shape == (7,)
    assert source.gaussian_noise(0, 1.0, "test").shape == (0,)
    assert source.words(0, "test").shape == (0,)
    with pytest.raises(UsageError):
        source.words(-1, "test")
