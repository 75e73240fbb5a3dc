"""The place of a run in a chain of runs: which manifest it follows (spec/schedule.md §4).

A manifest that names its predecessor by digest names every manifest before it, as an entry of a
hash chain does. A run that follows none says nothing, and its manifest has the bytes that it had
before chains existed.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sealtrain.base.models import Hex64, StrictModel

MAX_CHAIN = 10_000
"""Most runs of one chain."""


class Continues(StrictModel):
    """What a run that is not the first of its chain says.

    Attributes:
        manifest_digest: SHA-256 of the file of the manifest of the run before.
        number: Of this run in the chain: one more than that of the run before, so 2 or more.
    """

    manifest_digest: Hex64
    number: Annotated[int, Field(ge=2, le=MAX_CHAIN)]


def number_of(continues: Continues | None) -> int:
    """Number of a run in its chain, from 1."""
    return 1 if continues is None else continues.number
