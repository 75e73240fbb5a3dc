"""Dividing whole numbers in proportion, so that no part shrinks when there is more to divide.

Rounding each part by itself misses the sum; correcting the sum makes a part run backwards now and
then. Webster's method of equal proportions does neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["divided"]


def divided(amount: int, sizes: Sequence[int]) -> list[int]:
    """Parts of ``amount`` in proportion to ``sizes``.

    The parts sum up to ``amount`` and each grows, or stays, as ``amount`` grows.

    Args:
        amount: What to divide, ≥ 0.
        sizes: Above 0; at least one.
    """
    # A party's next seat goes to the highest size / (2 seats + 1), the lower position on a tie.
    whole, rest = divmod(amount, sum(sizes))  # whole rounds give everybody exactly their size
    parts = [rest * size // sum(sizes) for size in sizes]
    while sum(parts) < rest:
        parts[_next(parts, sizes)] += 1
    # Beginning at the lower quota may give a party more than the method does: give back, then on.
    while any(parts):
        last = _last(parts, sizes)
        following = _next(parts, sizes)
        if _claim(parts[following], sizes[following], following) <= _claim(
            parts[last] - 1, sizes[last], last
        ):
            break
        parts[last] -= 1
        parts[following] += 1
    return [whole * size + part for size, part in zip(sizes, parts, strict=True)]


def _claim(part: int, size: int, position: int) -> tuple[Fraction, int]:
    """How strongly a party of ``part`` seats asks for the next one; the greatest gets it."""
    return Fraction(size, 2 * part + 1), -position


def _next(parts: Sequence[int], sizes: Sequence[int]) -> int:
    return max(range(len(sizes)), key=lambda at: _claim(parts[at], sizes[at], at))


def _last(parts: Sequence[int], sizes: Sequence[int]) -> int:
    holders = [at for at in range(len(sizes)) if parts[at]]
    return min(holders, key=lambda at: _claim(parts[at] - 1, sizes[at], at))
