"""Updates as numbers modulo 2⁶⁴, and masks that hide them there (spec/masked-sums.md §2, §3).

A sum in floating point depends on its order and hides nothing. In a ring every value is equally
likely once a uniform mask is added, and masks that are added by one party and taken off by another
leave no trace. The bounds below keep the true sum of any federation within the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from sealtrain.errors import UpdateRefused
from sealtrain_collab.federated.masks.bounds import (
    FRACTION_BITS,
    MAX_CHANGE,
    MAX_PARTIES,
    MAX_WEIGHT,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sealtrain.base.secret import Secret

__all__ = ["Summed", "decode", "encode", "mask", "words_of"]

_BLOCK_WORDS: Final = 1 << 14
"""128 KiB: stream and block stay in a core's cache."""
_WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The sum of a round's updates.

    Attributes:
        change: Mean change of every number, weighted by records; float64.
        weight: Records behind it.
    """

    change: NDArray[np.float64]
    weight: int


def encode(change: NDArray[np.float64], weight: int) -> NDArray[np.uint64]:
    """One party's weighted change as ring elements, and the weight after them.

    Args:
        change: Of every number, one dimension.
        weight: The party's records.

    Returns:
        One element more than ``change``.

    Raises:
        UpdateRefused: A number changed by more than ``MAX_CHANGE``, or is none; or the weight is
            not 1 to ``MAX_WEIGHT``. Nothing is clipped: the sum would be another one.
    """
    if not 1 <= weight <= MAX_WEIGHT:
        raise UpdateRefused(
            "a party has more records than a masked sum takes",
            check="records",
            got=weight,
            expected=f"1 to {MAX_WEIGHT}",
        )
    if not bool((np.abs(change) <= MAX_CHANGE).all()):  # also false where a number is none
        raise UpdateRefused(
            "an update changes a number by more than a masked sum takes",
            check="range",
            expected=f"at most {MAX_CHANGE:g} a round",
            hint="lower the learning rate or set collaboration.max_update_norm",
        )
    whole = np.empty(len(change) + 1, np.int64)
    np.rint(change * 2.0**FRACTION_BITS, out=whole[:-1], casting="unsafe")
    whole[:-1] *= weight
    whole[-1] = weight
    return whole.view(np.uint64)


def decode(total: NDArray[np.uint64], weight: int, parties: int) -> Summed:
    """The mean of the sum of such vectors.

    Args:
        total: Sum modulo 2⁶⁴, without masks.
        weight: Records of the parties in it, as they told the lead.
        parties: How many they are.

    Raises:
        UpdateRefused: The sum is of other weights, or no parties within the bounds add up to it:
            a mask is left in it, or a party sent something else than its update.
    """
    signed = total.view(np.int64)
    if int(signed[-1]) != weight:
        raise UpdateRefused(
            "the sum of the updates is of other weights than their parties told",
            check="sum of weights",
            hint="a party sent another vector than its masked update",
        )
    most = weight << (FRACTION_BITS + 10)
    if bool((np.abs(signed[:-1]) > most).any()) or not 1 <= parties <= MAX_PARTIES:
        raise UpdateRefused("the sum of the updates is outside of its bounds", check="sum")
    change = signed[:-1].astype(np.float64) / (weight * 2.0**FRACTION_BITS)
    return Summed(change=change, weight=weight)


def mask(vector: NDArray[np.uint64], seed: Secret, *, add: bool) -> None:
    """Add the mask of a seed to a vector, or take it off; in place.

    Args:
        vector: Ring elements.
        seed: 32 bytes that are used for this one mask.
        add: Add; else subtract.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(seed.reveal()), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(_WORD_BYTES * _BLOCK_WORDS)
    for begin in range(0, len(vector), _BLOCK_WORDS):
        block = vector[begin : begin + _BLOCK_WORDS]
        words = np.frombuffer(stream.update(zeros[: _WORD_BYTES * len(block)]), "<u8")
        if add:
            block += words
        else:
            block -= words


def words_of(data: bytes, count: int, *, party: str) -> NDArray[np.uint64]:
    """A vector as it travels: elements of 8 bytes, little endian.

    Raises:
        UpdateRefused: It has another number of elements than ``count``.
    """
    if len(data) != _WORD_BYTES * count:
        raise UpdateRefused(
            "a masked update has the wrong length",
            owner=party,
            check="size",
            got=f"{len(data)} bytes",
            expected=f"{_WORD_BYTES * count} bytes",
        )
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=True)
