"""Names of platforms for recipes, policies, evidence and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

Platform = Literal["dstack", "tdx", "nitro", "snp", "simulator"]
"""A TEE by name, or a software guest whatever TEE it plays."""


def either(words: Sequence[str]) -> str:
    """``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


PLATFORMS: str = either(get_args(Platform))
"""All of them in words."""
