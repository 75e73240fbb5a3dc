"""The epsilon of rounds of the subsampled Gaussian mechanism, without the training's libraries.

The privacy loss of one round is put on a grid, composed with itself by a Fourier transform, and
epsilon read off the sum at a delta (Koskela, Jälkö and Honkela 2020). Losses are rounded to the
nearest point of the grid and their mean is corrected (Gopi, Lee and Wutschitz 2021), so the result
is close to the true epsilon on either side. It is not a bound, but an independent computation that
checks the guest's claim. It covers one direction of the adjacency, presence against absence.
"""

from __future__ import annotations

import cmath
import math
from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter
from typing import Final

TOLERANCE: Final = 0.02
"""Share by which the result may be off; tests hold it against the accountants of training."""

_POINTS: Final = 1 << 13
_TAIL: Final = 1e-3  # share of delta that may lie beyond the grid
_ORDERS: Final = tuple(1.25**power for power in range(-12, 24))


@lru_cache(maxsize=1024)  # pure, and asked again about each log of one plan
def epsilon_of_rounds(*, noise: float, rate: float, rounds: int, delta: float) -> float:
    """Approximate epsilon at ``delta``; 0 where delta alone covers it.

    Args:
        noise: Deviation of the noise over the sensitivity, ≥ 0.001.
        rate: Probability to take part in a round, above 0, at most 1.
        rounds: At least 1.
        delta: Above 0, below 1.
    """
    single = _Loss(noise, rate)
    half = single.reach(rounds, math.log(delta) + math.log(_TAIL))
    step = 2 * half / _POINTS
    masses, shift = single.on_grid(step)
    total = _compose(masses, rounds)
    # Index i of the circle stands for the loss that many steps away, above or below zero.
    losses = [
        (place if place < _POINTS // 2 else place - _POINTS) * step + rounds * shift
        for place in range(_POINTS)
    ]
    above = sorted((loss, mass) for loss, mass in zip(losses, total, strict=True) if loss > 0)
    return _epsilon_at(delta, above)


class _Loss:
    """Privacy loss of one round: log of the density with a patient over that without."""

    def __init__(self, noise: float, rate: float) -> None:
        self._noise, self._rate = noise, rate
        points = 2000
        low, high = -10 * noise, 1 + 10 * noise
        width = (high - low) / points
        at = [low + (number + 0.5) * width for number in range(points)]
        self._sampled = [
            (self._loss(x), self._below(x + width / 2) - self._below(x - width / 2)) for x in at
        ]

    def reach(self, rounds: int, log_tail: float) -> float:
        """Bound that the sum of ``rounds`` losses exceeds with probability ``e ** log_tail``."""
        weighing = [(loss, mass) for loss, mass in self._sampled if mass > 0]

        def beyond(sign: float, order: float) -> float:
            moment = _log_mean_exp([(sign * order * loss, mass) for loss, mass in weighing])
            return (rounds * moment - log_tail) / order

        return 1.05 * max(min(beyond(sign, order) for order in _ORDERS) for sign in (1.0, -1.0))

    def on_grid(self, step: float) -> tuple[list[float], float]:
        """Mass of each point of the circle, and the mean's loss by rounding."""
        masses = [0.0] * _POINTS
        limit = _POINTS // 2
        lowest = max(math.floor(self._sampled[0][0] / step), 1 - limit)
        highest = min(math.ceil(self._sampled[-1][0] / step), limit - 1)
        mean = 0.0
        before = 0.0
        for place in range(lowest, highest + 1):
            until = 1.0 if place == highest else self._below(self._inverse((place + 0.5) * step))
            masses[place] += until - before
            mean += (until - before) * place * step
            before = until
        true = sum(loss * mass for loss, mass in self._sampled)
        return masses, true - mean

    def _loss(self, x: float) -> float:
        exponent = (2 * x - 1) / (2 * self._noise**2)
        if exponent > 700:
            return math.log(self._rate) + exponent
        return math.log1p(self._rate * math.expm1(exponent)) if self._rate < 1 else exponent

    def _inverse(self, loss: float) -> float:
        """The outcome that has this loss; far below zero if every outcome has a larger loss."""
        if self._rate == 1:
            return self._noise**2 * loss + 0.5
        if loss > 700:
            return self._noise**2 * (loss - math.log(self._rate)) + 0.5
        ratio = 1 + math.expm1(loss) / self._rate
        return self._noise**2 * math.log(ratio) + 0.5 if ratio > 0 else -math.inf

    def _below(self, x: float) -> float:
        """Probability of an outcome up to ``x``, with the patient."""
        without = 0.5 * math.erfc(-x / self._noise / math.sqrt(2))
        there = 0.5 * math.erfc(-(x - 1) / self._noise / math.sqrt(2))
        return (1 - self._rate) * without + self._rate * there


def _log_mean_exp(weighted: list[tuple[float, float]]) -> float:
    """The log of the mean of powers of e; every weight is above 0."""
    most = max(weighted)[0]
    return most + math.log(sum(mass * math.exp(value - most) for value, mass in weighted))


def _compose(masses: list[float], rounds: int) -> list[float]:
    values = _transform([complex(mass) for mass in masses], -1)
    powers = [value**rounds for value in values]
    return [max(value.real, 0.0) / _POINTS for value in _transform(powers, 1)]


def _transform(values: list[complex], sign: int) -> list[complex]:
    """The discrete Fourier transform, for a power of two; ``sign`` 1 for the inverse, unscaled."""
    size = len(values)
    if size == 2:
        turned_last = _turns(2, sign)[0] * values[1]
        return [values[0] + turned_last, values[0] - turned_last]
    even, odd = _transform(values[::2], sign), _transform(values[1::2], sign)
    turned = [turn * other for turn, other in zip(_turns(size, sign), odd, strict=True)]
    return [own + other for own, other in zip(even, turned, strict=True)] + [
        own - other for own, other in zip(even, turned, strict=True)
    ]


@lru_cache(maxsize=2 * _POINTS.bit_length())  # of each size, both ways
def _turns(size: int, sign: int) -> list[complex]:
    """What the odd half of a transform of a size is turned by."""
    return [cmath.rect(1.0, sign * 2 * math.pi * k / size) for k in range(size // 2)]


def _epsilon_at(delta: float, above: list[tuple[float, float]]) -> float:
    """The smallest epsilon whose delta is no larger."""
    weighing = [(loss, mass) for loss, mass in above if mass > 0]

    def delta_at(epsilon: float) -> float:
        beyond = weighing[bisect_right(weighing, epsilon, key=itemgetter(0)) :]
        return sum(mass * -math.expm1(epsilon - loss) for loss, mass in beyond)

    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, above[-1][0]
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
