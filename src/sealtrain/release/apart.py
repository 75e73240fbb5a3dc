"""Check 13 of a release, for recipes of several parties: no guest gets data of two owners."""

from __future__ import annotations

from collections.abc import Iterable

from sealtrain.consortium.receipts import ReleasedDataset
from sealtrain.errors import DatasetMismatch

__all__ = ["of_one_owner"]


def of_one_owner(released: Iterable[ReleasedDataset]) -> None:
    """Return if all datasets of a release are one owner's.

    Raises:
        DatasetMismatch: They are of several.
    """
    owners = {one.owner_id for one in released}
    if len(owners) > 1:
        raise DatasetMismatch(
            "a guest asks for data of several owners, and the recipe gives each a guest of its own",
            check="dataset owner",
            got=f"datasets of {len(owners)} owners",
            expected="datasets of one",
            hint="each party asks for its own data, under its own run id",
        )
