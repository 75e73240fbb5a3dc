"""The page before a signature names the purpose, beside what each owner says of its data."""

from __future__ import annotations

from typing import Any

import pytest
from world import OWNERS, founded, lock_changed, signed_dataset

from sealtrain.base.clock import to_rfc3339
from sealtrain.cli.review import page
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.owner.reviewing import name_outlasted
from sealtrain.signing.datause import DataUse

pytestmark = pytest.mark.claim("C178")
A = OWNERS[0]
PURPOSE = "early detection"
NOW = 1_790_000_000


def manifest(ends: int | None, owner: str) -> DatasetManifest:
    """A dataset that may be used until then."""
    locked = lock_changed(founded(owners=OWNERS).consortium_id, ("ab" * 32,), lambda _one: None)
    use = None if ends is None else DataUse(retention_until=to_rfc3339(ends))
    envelope = signed_dataset(locked, owner, sealed_at=NOW, data_use=use)
    return DatasetManifest.from_bytes(envelope.payload)


def shown(purpose: str | None, data_use: DataUse | None, **recipe: Any) -> list[str]:
    """The page for a recipe of this purpose, where one owner states this of its data."""
    stated = {} if purpose is None else {"purpose": purpose}
    locked = lock_changed(
        founded(owners=OWNERS).consortium_id, ("ab" * 32,), lambda one: one.update(stated | recipe)
    )
    envelope = signed_dataset(locked, A, sealed_at=1_790_000_000, data_use=data_use)
    return page(locked.lock, [DatasetManifest.from_bytes(envelope.payload)])


def warns(lines: list[str]) -> bool:
    return any(line.strip().startswith("WARNING") for line in lines)


def test_purpose_and_statements_stand_in_the_first_lines() -> None:
    use = DataUse(purposes=(PURPOSE,), phi="limited", retention_until="2027-01-01T00:00:00Z")
    lines = shown(PURPOSE, use, legal_basis="consent")
    first = " ".join(lines[:6])
    for text in (PURPOSE, "consent", A, "limited", "2027-01-01T00:00:00Z"):
        assert text in first
    assert not warns(lines)


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize("purpose", [None, "advertising"])
def test_a_purpose_that_an_owner_does_not_list_is_a_warning(
    purpose: str | None, bind: bool
) -> None:
    lines = shown(purpose, DataUse(purposes=(PURPOSE,), purposes_bind=bind))
    assert warns(lines[:8])
    refused = any("brokers refuse" in line for line in lines)
    assert refused == bind


def test_where_nothing_is_stated_the_page_is_as_it_was() -> None:
    lines = shown(None, None)
    assert not warns(lines)
    assert not any(line.strip().startswith(("purpose", "legal")) for line in lines)


@pytest.mark.parametrize(("until", "outlasts"), [(NOW + 86_400, False), (NOW + 86_401, True)])
def test_an_approval_that_outlasts_the_data_says_so(until: int, outlasts: bool) -> None:
    manifests = [
        manifest(NOW + 86_400 * days, owner) for days, owner in ((9, OWNERS[1]), (1, A), (5, A))
    ]
    lines = list(name_outlasted(manifests, until))
    assert [A in line and to_rfc3339(NOW + 86_400) in line for line in lines] == [True] * outlasts


def test_data_without_an_end_outlasts_every_approval() -> None:
    assert not list(name_outlasted([manifest(None, A)], 1 << 40))
