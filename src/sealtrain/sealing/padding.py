"""Padding policies: what the size of a sealed file tells about its content is a choice.

======================  ===========================================================================
``none``                the size is visible to the byte
``bucket``              rounded up so that only O(log log n) bits show; at most 12 % larger (Padmé)
``fixed:<bytes>``       rounded up to a multiple of ``<bytes>``
======================  ===========================================================================

A padded plaintext is ``content | zeros | u64 big-endian content length``.
"""

from __future__ import annotations

import re

from sealtrain.errors import UsageError

LENGTH_BYTES = 8
MAX_FIXED = 1 << 40
_FIXED = re.compile(r"fixed:([1-9][0-9]{0,12})")


def check_policy(policy: str) -> str:
    """Return ``policy`` if it is one.

    Raises:
        UsageError: It is not.
    """
    if policy in ("none", "bucket") or (
        _FIXED.fullmatch(policy) and _multiple(policy) <= MAX_FIXED
    ):
        return policy
    raise UsageError(
        "unknown padding policy", got=policy, expected="none, bucket or fixed:<bytes up to 2**40>"
    )


def padded_size(policy: str, content: int) -> int:
    """Bytes of the plaintext that carries ``content`` bytes under ``policy``.

    Raises:
        UsageError: No such policy.
    """
    check_policy(policy)
    if policy == "none":
        return content
    needed = content + LENGTH_BYTES
    step = _bucket_step(needed) if policy == "bucket" else _multiple(policy)
    return -(-needed // step) * step


def _bucket_step(size: int) -> int:
    exponent = size.bit_length() - 1
    significant = exponent.bit_length()
    return int(1 << max(exponent - significant, 0))


def _multiple(policy: str) -> int:
    return int(policy.removeprefix("fixed:"))
