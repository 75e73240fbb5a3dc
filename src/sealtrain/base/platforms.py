"""What a guest may run on: one vocabulary for recipes, policies, evidence and manifests."""

from __future__ import annotations

from typing import Literal

__all__ = ["Platform"]

Platform = Literal["dstack", "tdx", "nitro", "snp", "simulator"]
"""A TEE by name, or a software guest whatever TEE it plays."""
