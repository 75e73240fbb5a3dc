"""Arithmetic modulo p = 2**31 - 1 on tensors (spec/one-time-pads.md §1).

An element is written centred: the int32 in [-H, H] congruent to it, H = (p - 1) / 2. Sums and
differences of two elements fit int32, so that no step here is wider than its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch

PRIME: Final = (1 << 31) - 1
HALF: Final = PRIME >> 1
RUN: Final = 1 << 16
"""Numbers that the steps of a sum go over before the next ones."""
_LIMB_BITS: Final = 11
_LIMBS: Final = 3
_EXACT_COLUMNS: Final = 1 << 12
"""So many products of 2**30 and 2**10, or of 2**11 and 2**30, have an exact sum in float64."""


def _centre(values: torch.Tensor) -> torch.Tensor:
    """Centre any int32 in place: one step reaches [-H, H] from all of them."""
    for (run,) in _runs(values.view(-1)):
        _wrap(run, torch.empty_like(run))
    return values


def _wrap(values: torch.Tensor, beyond: torch.Tensor) -> torch.Tensor:
    """As ``_centre``, with room for as many numbers."""
    values.sub_(torch.gt(values, HALF, out=beyond), alpha=PRIME)
    return values.add_(torch.lt(values, -HALF, out=beyond), alpha=PRIME)


def add_centred(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left + right`` of centred int32 tensors, centred."""
    out = torch.empty_like(right, memory_format=torch.contiguous_format)
    return _wrap_in_runs(torch.add, left, right, out)


def subtract_centred(
    left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``left - right``, centred int32.

    ``left`` is centred before anything is taken from it: all forms of an element give one result,
    and no step depends on the sign or the size of the difference.

    Args:
        left: Any int32.
        right: Centred, of the same shape.
        out: Takes the result, contiguous; a new tensor where ``None``.
    """
    if out is None:
        out = torch.empty_like(right, memory_format=torch.contiguous_format)
    return _wrap_in_runs(_centre_difference, left, right, out)


def centre_words(words: torch.Tensor) -> torch.Tensor:
    """Centre int32 in [0, p], in place."""
    for (run,) in _runs(words.view(-1)):
        run.sub_(torch.gt(run, HALF, out=torch.empty_like(run)), alpha=PRIME)
    return words


def _wrap_in_runs(
    step: Callable[..., torch.Tensor], left: torch.Tensor, right: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """A step and its centring, run by run: a run stays in the cache of a core meanwhile."""
    beyond = out.new_empty(min(RUN, out.numel()))
    for own, other, run in _runs(left.reshape(-1), right.reshape(-1), out.view(-1)):
        _wrap(step(own, other, out=run), beyond[: len(run)])
    return out


def _centre_difference(
    left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    out.copy_(left)
    return _wrap(out, torch.empty_like(out)).sub_(right)


def _runs(*values: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Numbers that lie in a row in each of some tensors, so many that a cache holds them."""
    for begin in range(0, values[0].numel(), RUN):
        yield tuple(row[begin : begin + RUN] for row in values)


def centre_int64(values: torch.Tensor) -> torch.Tensor:
    """Centred int32 of int64 values below 2**61 in size."""
    folded = (values & PRIME) + (values >> 31)  # 2**31 = 1 modulo p
    folded = (folded & PRIME) + (folded >> 31)
    return torch.where(folded > HALF, folded - PRIME, folded).to(torch.int32)


def combine(sums: torch.Tensor) -> torch.Tensor:
    """The number modulo p whose balanced digits to base 256 are sums, in few passes over memory.

    Args:
        sums: int32 (4, t, m), below 2**30 in size: lowest digit first.

    Returns:
        int32 (t, m), centred.
    """
    total = sums[3].to(torch.int64)
    for digit in (2, 1, 0):
        total.mul_(256).add_(sums[digit])
    # 2**31 = 1 modulo p. Of values below 2**55 the upper part is below 2**24, so that the sum,
    # less 2**30, fits int32: one step centres it, negative values up and the others down.
    upper = total >> 31
    low = total.bitwise_and_(PRIME).add_(upper).sub_(HALF + 1).to(torch.int32)
    negative = low >> 31
    return low.sub_(HALF).add_(negative.bitwise_and_(PRIME))


def centre_float64(values: torch.Tensor) -> torch.Tensor:
    """Centred int32 of whole float64 values below 2**53 in size. ``values`` is used up."""
    # The quotient may be off by one at a half; its multiple of p and the difference are exact.
    values.sub_(torch.round(values * (1.0 / PRIME)), alpha=PRIME)
    return _centre(values.to(torch.int32))


def limbs(vectors: torch.Tensor) -> torch.Tensor:
    """Balanced digits to base 2**11 of centred elements, lowest first, as float64.

    Args:
        vectors: int32, (n, c).

    Returns:
        float64, (n, 3 c), ``turn_columns``: one vector's digits beside each other, each at most
        2**10 in size.
    """
    rest = vectors.to(torch.int64)
    half = 1 << (_LIMB_BITS - 1)
    digits = []
    for _ in range(_LIMBS):
        digit = ((rest + half) & ((1 << _LIMB_BITS) - 1)) - half
        digits.append(digit)
        rest = (rest - digit) >> _LIMB_BITS
    return turn_columns(torch.stack(digits, dim=2).reshape(vectors.shape[0], -1))


def turn_columns(columns: torch.Tensor) -> torch.Tensor:
    """The same as float64, each column in a row of memory: products with few of them are faster."""
    return columns.T.to(torch.float64, memory_format=torch.contiguous_format).T


def times_vectors(values: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """Products of rows with vectors, modulo p.

    Args:
        values: int32 (t, n), at most 2**30 in size; int8 does as well.
        digits: ``limbs`` of c vectors, (n, 3 c).

    Returns:
        int32 (t, c), centred.
    """
    sums = _multiply_in_runs(values, digits).reshape(values.shape[0], -1, _LIMBS)
    low, middle, high = (part.to(torch.int64) for part in sums.unbind(2))
    return centre_int64(low + (middle << _LIMB_BITS) + (high << 2 * _LIMB_BITS))


def dots(values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Products of rows of small entries with vectors, modulo p.

    Args:
        values: int32 (t, n), below 2**11 in size.
        vectors: float64 (n, c), centred elements.

    Returns:
        int32 (t, c), centred.
    """
    return _multiply_in_runs(values, vectors)


def _multiply_in_runs(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """``values @ columns`` modulo p in float64, over runs of columns whose sums are exact."""
    total = None
    for begin in range(0, values.shape[1], _EXACT_COLUMNS):
        end = begin + _EXACT_COLUMNS
        part = centre_float64(columns[begin:end].T @ values[:, begin:end].to(torch.float64).T)
        total = part if total is None else add_centred(total, part)
    return values.new_zeros(len(values), columns.shape[1]) if total is None else total.T
