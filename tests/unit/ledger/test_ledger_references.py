"""What a ledger's entries state that the broker's database must hold."""

from __future__ import annotations

import pytest

from sealtrain.ledger.references import References, Stated

DEPLOYMENT = {"app_id": "0a" * 20, "compose_hash": "0b" * 32}
DATASET = "d1" * 16


def entries(*owners: str) -> Stated:
    """Registrations of one id, by these owners in turn; the digest of each is its index."""
    stated = Stated()
    for index, owner in enumerate(owners):
        named = {"owner_id": owner, "dataset_id": DATASET, **DEPLOYMENT, "digest": str(index)}
        stated.entry(index, "dataset", named)
    return stated


def lost(stated: Stated, *indices: int) -> list[int]:
    """Entries that a database with only these registrations lacks."""
    references = References(tables={"datasets": {index: str(index) for index in indices}})
    return [index for index, _problem in stated.differences(references)]


@pytest.mark.claim("C450")
def test_of_two_owners_with_one_id_each_registration_is_held() -> None:
    both = entries("a" * 64, "b" * 64)
    assert lost(both, 0, 1) == []
    assert lost(both, 1) == [0]
    assert lost(both, 0) == [1]


def test_of_one_owner_the_newest_registration_is_held() -> None:
    again = entries("a" * 64, "a" * 64)
    assert lost(again, 1) == []
    assert lost(again, 0) == [1]
