"""Bounds that keep the sum of any federation within the ring (spec/masked-sums.md §2)."""

from __future__ import annotations

from typing import Final

__all__ = ["FRACTION_BITS", "MAX_CHANGE", "MAX_PARTIES", "MAX_WEIGHT"]

FRACTION_BITS: Final = 24
MAX_CHANGE: Final = 2.0**10
"""Of a number in one round."""
MAX_WEIGHT: Final = 1 << 24
"""Records of a party."""
MAX_PARTIES: Final = 16
"""With the bounds above, 2⁴ · 2²⁴ · 2¹⁰ · 2²⁴ = 2⁶² < 2⁶³; a secret has no more shares, either."""
