"""An id means its owner's dataset: what another owner says of the same id stops nothing.

Ids are public, in the header of every sealed dataset and in every ledger, so any owner can repeat
one. Statements count by owner and id (spec/approvals.md §2 and §6, spec/key-release.md §4.2).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quorum_world import QuorumWorld, quorum_world
from release_world import ReleaseWorld, audited, document_of, renewed, served_world
from series_world import NAME, follow, sealed_member, use_series
from world import OWNERS, identity

from sealtrain.attest.errors import ReportDataMismatch
from sealtrain.base.canonical import canonical_json
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.errors import DatasetMismatch, SeriesMismatch
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.ledger.uses import Uses
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.release.errors import AnswerInvalid, DatasetWithdrawn
from sealtrain.release.messages import (
    REGISTERED_PAGE,
    SERIES_PAGE,
    Accepted,
    ReleaseRequest,
    load_message,
)

pytestmark = pytest.mark.long

A, B, C = OWNERS


def withdraw(world: ReleaseWorld, by: str, dataset_id: str) -> Accepted:
    made = Withdrawal.of(
        [dataset_id],
        consortium_id=world.consortium.consortium_id,
        owner=identity(by).public,
        signed_at=world.clock(),
    )
    document = document_of(sign_owned(made, identity(by).signer))
    return world.broker.registry.hand_in(Withdrawal.entry_kind, document)


@pytest.mark.claim("C47")
@pytest.mark.claim("C450")
def test_a_tombstone_from_before_the_registration_stops_no_other_owner(
    world: ReleaseWorld,
) -> None:
    data = world.seal(C)
    for stranger in (A, B):
        withdraw(world, stranger, data.dataset_id)
    world.register(data)
    world.approve(C, datasets=[data.pin])
    world.sealed[C] = data
    grant = world.obtain()
    assert grant.keys.keys() == {dataset.dataset_id for dataset in world.sealed.values()}
    assert renewed(world, grant).keys
    assert world.obtain(run_id=grant.run_id, resume=True).keys
    assert audited(world).holds
    withdraw(world, C, data.dataset_id)
    with pytest.raises(DatasetWithdrawn):
        world.obtain()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[QuorumWorld]:
    """Three owners at one broker each; C's data is sealed for, and registered at, the third."""
    with quorum_world(tmp_path, threshold=None) as made:
        for owner, place in ((A, 0), (B, 0), (C, 2)):
            made.share(owner, None, place)
        made.approve(A, B, C)
        yield made


@pytest.mark.claim("C47")
@pytest.mark.claim("C450")
def test_a_tombstone_at_another_broker_stops_no_run(apart: QuorumWorld) -> None:
    """The first broker knows of C's data by the run alone, as data elsewhere."""
    quorum = apart.quorum()
    grants = apart.obtain(quorum)
    withdraw(apart.worlds[0], B, apart.sealed[C].dataset_id)
    apart.advance(600)
    grants, missed = apart.renew(quorum, grants)
    assert missed is None
    assert apart.obtain().data_keys
    for world in apart.worlds:
        assert audited(world).holds
    withdraw(apart.worlds[0], C, apart.sealed[C].dataset_id)
    with pytest.raises(DatasetWithdrawn):
        apart.obtain()


@pytest.mark.claim("C450")
def test_an_id_that_another_owner_registered_first_is_free_for_its_owner(
    world: ReleaseWorld,
) -> None:
    data = world.seal(C)
    squatted = world.seal(A, dataset_id=data.dataset_id)
    world.register(squatted)
    world.register(data)
    world.approve(C, datasets=[data.pin])
    world.sealed[C] = data
    assert world.obtain().keys
    withdraw(world, A, data.dataset_id)
    assert world.obtain().keys
    with pytest.raises(DatasetWithdrawn):
        world.obtain(datasets=[squatted.asked])
    assert audited(world).holds


@pytest.mark.claim("C450")
def test_nobody_is_given_a_key_under_the_id_of_another_owner(world: ReleaseWorld) -> None:
    asked = world.sealed[C].asked
    with pytest.raises(DatasetUnknown):
        world.obtain(datasets=[asked._replace(owner_id=identity(A).public.owner_id)])
    world.assert_no_key_left()


@pytest.mark.claim("C450")
def test_an_approval_that_pins_anothers_id_stops_no_run(world: ReleaseWorld) -> None:
    theirs = DatasetPin(dataset_id=world.sealed[C].dataset_id, root="ab" * 32)
    world.approve(A, datasets=sorted([world.sealed[A].pin, theirs], key=lambda pin: pin.dataset_id))
    assert world.obtain().keys
    assert audited(world).holds
    world.approve(C, datasets=[theirs])
    with pytest.raises(DatasetMismatch):
        world.obtain()


CHANGES: dict[str, Any] = {
    "another submission": lambda sent: sent.update(submission_id="ab" * 16),
    "another owner of the data": lambda sent: sent["datasets"][0].update(owner_id="ab" * 32),
}


@pytest.mark.claim("C450")
@pytest.mark.parametrize("change", CHANGES)
def test_the_request_is_attested_with_owners_and_submission(
    world: ReleaseWorld, change: str
) -> None:
    """A relay or another runner that changes them needs a quote of its own guest."""
    world.wire.on_request = CHANGES[change]
    with pytest.raises(ReportDataMismatch):
        world.obtain(submission_id="cd" * 16)
    world.assert_no_key_left()


@pytest.mark.claim("C450")
def test_a_request_of_the_version_before_is_refused(world: ReleaseWorld) -> None:
    world.obtain()
    request = world.wire.requests[-1]
    assert isinstance(request, ReleaseRequest)
    document = request.to_dict()
    assert load_message(ReleaseRequest, canonical_json(document)) == request
    before = {**document, "version": 2}
    del before["submission_id"]
    for dataset in before["datasets"]:
        del dataset["owner_id"]
    for changed in (before, {**document, "version": 2}):
        with pytest.raises(DataInvalid):
            load_message(ReleaseRequest, canonical_json(changed))


@pytest.mark.claim("C450")
@pytest.mark.parametrize("field", ["submission_id", "owner_id"])
def test_a_guest_refuses_an_entry_that_says_otherwise(world: ReleaseWorld, field: str) -> None:
    def altered(document: dict[str, Any]) -> None:
        if "enc" in document:
            body = document["proof"]["entry"]["body"]
            if field == "submission_id":
                body = {**body, "submission_id": "ef" * 16}
            else:
                body = {
                    **body,
                    "datasets": [{**dataset, field: "ef" * 32} for dataset in body["datasets"]],
                }
            index = world.ledger.append("release", body)
            document["proof"] = world.ledger.proof(index).to_dict()

    world.wire.on_answer = altered
    with pytest.raises(AnswerInvalid):
        world.obtain(submission_id="cd" * 16)


@pytest.mark.claim("C450")
def test_an_audit_finds_a_release_of_data_that_its_owner_withdrew_under_a_shared_id(
    world: ReleaseWorld,
) -> None:
    """The broker that gives both owners' tombstones the same weight, or none, is found."""
    data = world.seal(C)
    world.register(world.seal(A, dataset_id=data.dataset_id))
    world.register(data)
    world.sealed[C] = data
    world.approve(C, datasets=[data.pin])
    world.obtain()
    body = dict(world.ledger.entries()[-1]["body"])
    withdraw(world, C, data.dataset_id)
    fresh = {
        name: os.urandom(32).hex() for name in ("lease_id", "receipt_digest", "evidence_digest")
    }
    index = world.ledger.append("release", {**body, **fresh, "run_id": os.urandom(16).hex()})
    assert [finding.index for finding in audited(world).findings] == [index]


@pytest.mark.claim("C450")
def test_a_renewal_states_no_submission(world: ReleaseWorld) -> None:
    renewed(world, world.obtain(submission_id="cd" * 16))
    release, renewal = world.ledger.entries()[-2:]
    bodies: list[Any] = [release["body"], renewal["body"]]
    assert [body["submission_id"] for body in bodies] == ["cd" * 16, None]
    assert audited(world).holds
    stated = {**bodies[1], "submission_id": "cd" * 16, "receipt_digest": os.urandom(32).hex()}
    index = world.ledger.append("renewal", stated)
    assert [finding.index for finding in audited(world).findings] == [index]


@pytest.mark.claim("C450")
def test_uses_of_a_shared_id_are_told_by_owner(world: ReleaseWorld) -> None:
    data = world.seal(C)
    withdraw(world, A, data.dataset_id)
    world.register(data)
    world.sealed[C] = data
    world.approve(C, datasets=[data.pin])
    grant = world.obtain()
    uses = Uses([data.dataset_id])
    for index, entry in enumerate(world.ledger.entries()):
        uses.entry(index, entry)
    by_owner = {use.owner: use for use in uses.list_uses()}
    assert by_owner[C].withdrawn_at is None
    assert [run.run_id for run in by_owner[C].runs] == [grant.run_id]
    assert by_owner[A].withdrawn_at is not None
    assert by_owner[A].runs == []


def test_a_stranger_hears_that_a_registered_id_is_anothers(world: ReleaseWorld) -> None:
    with pytest.raises(SealtrainError) as caught:
        withdraw(world, A, world.sealed[C].dataset_id)
    assert caught.value.code == DatasetMismatch.code


# Listings: nobody makes another owner's longer


def junk(world: ReleaseWorld, owner: str, count: int) -> None:
    """Datasets of one owner that no recipe reads, each the first member of a series of its own."""
    for number in range(count):
        name = f"junk-{number}"
        fields = {"name": name, "number": 1, "mode": "append", "previous": None}
        world.register(world.seal(owner, name=name, series=SeriesBlock.model_validate(fields)))


@pytest.mark.claim("C452")
def test_an_owner_that_registers_much_hinders_no_run_of_others(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url), BrokerClient(url) as client:
        first = use_series(world)
        second = follow(world, first, 2)
        junk(world, B, REGISTERED_PAGE + 2)
        target = {"app_id": world.locked.app_id, "compose_hash": world.locked.compose_hash}
        listed = client.series(C, NAME, **target)
        assert [dataset.envelope() for dataset in listed] == [first.envelope, second.envelope]
        own = [world.sealed[owner].owned for owner in OWNERS]
        assert client.ask_registered(own, **target) == set(own)
        stranger = identity(B).public.owner_id
        found = client.list_registered(stranger, **target, most=1000)
        assert len(found) == REGISTERED_PAGE + 3
        assert list(found) == sorted(set(found))
        assert len(client.list_registered(stranger, **target, most=10)) == 10
        mine = client.list_registered(identity(C).public.owner_id, **target, most=1000)
        assert set(mine) == {first.dataset_id, second.dataset_id}


@pytest.mark.claim("C452")
def test_two_owners_series_of_one_name_are_two(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url), BrokerClient(url) as client:
        first = use_series(world)
        theirs = sealed_member(world, 1, None, owner=B)
        world.register(theirs)
        more = sealed_member(world, 2, theirs, owner=B)
        world.register(more)
        second = follow(world, first, 2)
        target = {"app_id": world.locked.app_id, "compose_hash": world.locked.compose_hash}
        for owner, members in ((C, [first, second]), (B, [theirs, more])):
            listed = client.series(owner, NAME, **target)
            assert [dataset.envelope() for dataset in listed] == [
                member.envelope for member in members
            ]
        for number, before in ((4, second), (2, theirs), (3, more)):  # a gap, a fork, another's
            with pytest.raises(SeriesMismatch):
                world.register(sealed_member(world, number, before))
        assert audited(world).holds


@pytest.mark.claim("C452")
def test_a_series_of_several_pages_is_read_whole(tmp_path: Path) -> None:
    """And a member that is registered between two pages stands at its place."""
    with served_world(tmp_path) as (world, url), BrokerClient(url) as client:
        members = [use_series(world, mode="replace")]
        while len(members) <= SERIES_PAGE:
            members.append(follow(world, members[-1], len(members) + 1, mode="replace"))
        target = {"app_id": world.locked.app_id, "compose_hash": world.locked.compose_hash}
        page = world.broker.registry.series(owner=C, name=NAME, **target)
        assert (len(page.members), page.end) == (SERIES_PAGE, SERIES_PAGE)
        members.append(follow(world, members[-1], len(members) + 1, mode="replace"))
        rest = world.broker.registry.series(owner=C, name=NAME, after=SERIES_PAGE, **target)
        assert rest.end is None
        shown = [member.envelope() for member in (*page.members, *rest.members)]
        assert shown == [member.envelope for member in members]
        assert [member.envelope() for member in client.series(C, NAME, **target)] == shown
