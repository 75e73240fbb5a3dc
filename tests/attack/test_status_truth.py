"""``status`` says no with the code that a release request then gets, and no lie makes it a yes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from raw_server import head_of, server
from release_world import ReleaseWorld, document_of, served_world
from world import DAY, booted, identity, simulated_pki, simulated_policy

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grants import WantedKey
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.succession import propose, with_signature
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import SealtrainError
from sealtrain.owner.readiness import (
    AtHand,
    GuestHere,
    Obstacle,
    PlannedRun,
    Readiness,
    Together,
    ask,
)
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.sealing.stanza import Stanza
from sealtrain.signing.datause import DataUse

pytestmark = [pytest.mark.long, pytest.mark.claim("C139")]

A, B, C = "hospital-a", "hospital-b", "hospital-c"
Arrange = Callable[[ReleaseWorld], Mapping[str, Any] | None]
"""Brings a situation about; gives what a release request says differently then."""


@contextmanager
def _unshown(_size: int) -> Iterator[Callable[[int], None]]:
    yield lambda _entries: None


def status(
    world: ReleaseWorld,
    url: str,
    *,
    guest: GuestHere | None = None,
    notes: tuple[str, ...] = (),
    client: type[BrokerClient] = BrokerClient,
    run_id: str | None = None,
    at_hand: AtHand | None = None,
) -> Readiness:
    locked = world.locked
    run = PlannedRun(
        lock=locked.lock,
        target=world.target,
        platform="simulator",
        run_id=run_id,
        at_hand=None if at_hand is None else lambda _consortium: at_hand,
        guest=guest,
    )
    pin = world.pin.model_copy(update={"url": url})
    with client(url, 3.0, total=6.0) as asking:
        return ask(asking, pin, run, progress=_unshown, notes=notes, clock=world.clock)


def code(found: Readiness) -> str:
    return found.obstacles[0].error.code if found.obstacles else "released"


def released(world: ReleaseWorld, **changed: Any) -> str:
    """What a guest is told: the truth that status has to tell too."""
    try:
        world.obtain(**changed)
    except SealtrainError as error:
        return error.code
    return "released"


def guest_here(world: ReleaseWorld, policy: AppraisalPolicy | None, **changed: Any) -> GuestHere:
    guest = booted(changed.get("pki", world.pki), world.locked.compose_bytes, 0)
    return GuestHere(collect=world.collect(guest, **changed), policy=lambda _hash: policy)


def expired(world: ReleaseWorld) -> None:
    world.clock.advance(400 * DAY)


def changed_recipe(world: ReleaseWorld) -> None:
    world.locked = world.lock(lambda recipe: recipe["trainer"].update(max_steps=301))
    world.sealed = {owner: world.seal(owner) for owner in (A, B, C)}
    for sealed in world.sealed.values():
        world.register(sealed)


def unregistered(world: ReleaseWorld) -> None:
    changed_recipe(world)
    world.sealed[C] = world.seal(C)
    approve_all(world)


def approve_all(world: ReleaseWorld) -> None:
    for owner in (A, B, C):
        world.approve(owner, datasets=[])


def none_registered(world: ReleaseWorld) -> None:
    world.locked = world.lock(lambda recipe: recipe["trainer"].update(max_steps=302))
    world.sealed = {owner: world.seal(owner) for owner in (A, B, C)}
    approve_all(world)


def sealed_for_another(world: ReleaseWorld) -> None:
    world.locked = world.lock(lambda recipe: recipe["trainer"].update(max_steps=303))
    approve_all(world)


def sealed_anew(world: ReleaseWorld) -> None:
    """The owner's approval pins the sealing before."""
    world.sealed[A] = world.seal(A)
    world.register(world.sealed[A])


def revoked(world: ReleaseWorld) -> None:
    world.revoke(C)


def withdrawn(world: ReleaseWorld) -> None:
    statement = Withdrawal.of(
        [world.sealed[B].dataset_id],
        consortium_id=world.consortium.consortium_id,
        owner=identity(B).public,
        signed_at=world.clock(),
    )
    envelope = sign_owned(statement, identity(B).signer)
    world.broker.registry.hand_in(Withdrawal.entry_kind, document_of(envelope))


def sealed_with(world: ReleaseWorld, data_use: DataUse) -> None:
    changed_recipe(world)
    world.sealed[B] = world.seal(B, data_use=data_use)
    world.register(world.sealed[B])
    approve_all(world)


def kept_too_long(world: ReleaseWorld) -> None:
    sealed_with(world, DataUse(retention_until=to_rfc3339(world.clock() - 1)))


def for_another_purpose(world: ReleaseWorld) -> None:
    sealed_with(world, DataUse(purposes=("early detection",), purposes_bind=True))


def private(recipe: dict[str, Any]) -> None:
    recipe["privacy"] = {
        "dp": "sgd", "target_epsilon": 3.0, "delta": 1e-5, "budgets": {"hospital-a": 5.0},
    }  # fmt: skip
    recipe["release_policy"]["metrics"] = ["accuracy"]


def overspent(world: ReleaseWorld) -> None:
    world.locked = world.lock(private)
    world.sealed = {owner: world.seal(owner) for owner in (A, B, C)}
    for owner in (A, B, C):
        world.register(world.sealed[owner])
        world.approve(owner)
    world.obtain()


def succeeded(world: ReleaseWorld) -> None:
    successor = Consortium.found(
        name="after",
        owners=[identity(owner).public for owner in (A, B, C)],
        approve=3,
        own_data_consent=False,
    )
    found = propose(
        world.consortium, successor, identity(A).signer, ledgers=[], not_after=world.clock() + DAY
    )
    for owner in (B, C):
        found = with_signature(found, identity(owner).signer)
    world.broker.registry.hand_in("succession", document_of(found.envelope))


def again(world: ReleaseWorld, *, resume: bool) -> Mapping[str, Any]:
    run_id = os.urandom(16).hex()
    if not resume:
        return {"run_id": run_id, "resume": True}
    world.obtain(run_id=run_id)
    sealed_anew(world)
    world.approve(A)
    return {"run_id": run_id, "resume": True}


SITUATIONS: dict[str, Arrange] = {
    "nothing is missing": lambda _world: None,
    "expired": expired,
    "changed recipe": changed_recipe,
    "one dataset unregistered": unregistered,
    "no dataset registered": none_registered,
    "sealed for another deployment": sealed_for_another,
    "sealed anew, another one pinned": sealed_anew,
    "revoked": revoked,
    "withdrawn": withdrawn,
    "retention ended": kept_too_long,
    "another purpose": for_another_purpose,
    "budget spent": overspent,
    "consortium succeeded": succeeded,
    "an unknown run goes on": partial(again, resume=False),
    "a run goes on with other data": partial(again, resume=True),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_it_says_what_a_guest_is_then_told(tmp_path: Path, situation: str) -> None:
    with served_world(tmp_path) as (world, url):
        asked = SITUATIONS[situation](world) or {}
        at_hand = {(owner, "biopsies"): (wanted(world, owner),) for owner in (A, B, C)}
        found = status(world, url, run_id=asked.get("run_id"), at_hand=at_hand)
        without = status(world, url, run_id=asked.get("run_id"))
        told = released(world, **asked)
        assert code(found) == told
        assert (situation == "nothing is missing") == (not found.obstacles)
        # What was sealed anew and not registered shows only where it is at hand.
        assert code(without) == ("released" if situation == "one dataset unregistered" else told)


@pytest.mark.claim("C175")
@pytest.mark.parametrize(("days", "reminds"), [(29, True), (30, False), (31, False)])
def test_it_reminds_of_a_retention_that_ends_soon(tmp_path: Path, days: int, reminds: bool) -> None:
    with served_world(tmp_path) as (world, url):
        until = world.clock() + days * DAY
        sealed_with(world, DataUse(retention_until=to_rfc3339(until)))
        found = status(world, url)
        assert code(found) == released(world) == "released"
        (kept,) = found.retention
        assert (kept.owner, kept.dataset, kept.until) == (B, "biopsies", until)
        assert (kept.days_left, kept.ending) == (days, reminds)


@pytest.mark.parametrize("approved", [(), (A,)], ids=["nobody", "one"])
def test_missing_approvals_name_the_owners(tmp_path: Path, approved: tuple[str, ...]) -> None:
    with served_world(tmp_path, approved_by=approved) as (world, url):
        found = status(world, url)
        assert code(found) == released(world) == "approvals-missing"
        missing = {A, B, C} - set(approved)
        assert set((found.obstacles[0].error.owner or "").split(", ")) == missing


def test_an_owner_whose_data_is_read_is_awaited(tmp_path: Path) -> None:
    with served_world(tmp_path, rules={"own_data_consent": True}) as (world, url):
        found = status(world, url)
        assert code(found) == released(world) == "approvals-missing"
        assert found.obstacles[0].error.owner == C


def test_every_obstacle_is_named_with_owner_and_dataset(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        none_registered(world)
        revoked(world)
        found = status(world, url)
        assert [obstacle.error.code for obstacle in found.obstacles] == ["approval-revoked"] + [
            "dataset-unknown"
        ] * 3
        named = {(obstacle.error.owner, obstacle.dataset) for obstacle in found.obstacles[1:]}
        assert named == {(owner, "biopsies") for owner in (A, B, C)}


def test_a_sealing_without_a_key_for_the_broker(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        at_hand = {(owner, "biopsies"): (wanted(world, owner),) for owner in (A, B, C)}
        assert code(status(world, url, at_hand=at_hand)) == "released"
        other = replace(world.sealed[A].stanza, recipient="00" * 32)
        at_hand[A, "biopsies"] = (wanted(world, A, other),)
        datasets = [dataset.asked for dataset in world.sealed.values()]
        datasets[0] = datasets[0]._replace(stanza=other)
        found = status(world, url, at_hand=at_hand)
        assert code(found) == released(world, datasets=datasets) == "no-stanza"


def wanted(world: ReleaseWorld, owner: str, stanza: Stanza | None = None) -> WantedKey:
    sealed = world.sealed[owner]
    return WantedKey(
        dataset_id=sealed.dataset_id,
        root=sealed.root,
        owner=owner,
        owner_id=identity(owner).public.owner_id,
        stanzas=(stanza or sealed.stanza,),
    )


def put_policy(world: ReleaseWorld, appraisal: AppraisalPolicy) -> None:
    policy = OwnerPolicy.of(
        consortium_id=world.consortium.consortium_id,
        owner=identity(A).public,
        appraisal=appraisal,
        lease_seconds=None,
        previous=None,
        signed_at=world.clock(),
    )
    envelope = sign_owned(policy, identity(A).signer)
    world.broker.registry.hand_in(OwnerPolicy.entry_kind, document_of(envelope))


def test_without_the_guest_it_is_never_a_yes(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        put_policy(world, simulated_policy("another vendor"))
        found = status(world, url)
        assert (found.verdict, found.policies) == ("guest-unproven", (A,))
        assert released(world) != "released"


def test_a_guest_that_misses_an_owners_policy(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        here = guest_here(world, world.policy)
        assert status(world, url, guest=here).verdict == "released"
        assert status(world, url, guest=guest_here(world, None)).verdict == "guest-unproven"
        put_policy(world, simulated_policy("another vendor"))
        found = status(world, url, guest=here)
        assert code(found) == released(world) == "quote-root-untrusted"
        assert (found.verdict, found.obstacles[0].error.owner) == ("refused", A)


def test_a_guest_that_misses_the_brokers_policy(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        pki = simulated_pki("another vendor")
        here = guest_here(world, world.policy, pki=pki)
        found = status(world, url, guest=here)
        guest = world.guest(pki=pki)
        said = released(world, guest=guest, collect=world.collect(guest, pki=pki))
        assert code(found) == said == "quote-root-untrusted"


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, _url):
        found = status(world, "http://127.0.0.1:9")
        assert (found.verdict, code(found)) == ("refused", "broker-unreachable")


def test_a_broker_that_the_lock_does_not_name(tmp_path: Path) -> None:
    with served_world(tmp_path, brokers=(b"\x07" * 32,)) as (world, url):
        assert code(status(world, url)) == released(world) == "broker-not-approved"


def together(needed: int | None, *brokers: Readiness) -> Together:
    return Together(
        brokers={f"http://{place}": broker for place, broker in enumerate(brokers)},
        datasets=((A, "biopsies"), (B, "biopsies")),
        threshold=needed,
    )


def stops(error: SealtrainError, dataset: str | None = None) -> Readiness:
    return Readiness(obstacles=(Obstacle(error=error, dataset=dataset),))


READY = Readiness(obstacles=())
PROVEN = Readiness(obstacles=(), guest=True, brokers_policy=True)
REFUSES = stops(ApprovalsMissing("missing", owner=C))
AWAY = stops(BrokerUnreachable("away"))
OF_A = stops(DatasetUnknown("of another broker", owner=B), "biopsies")
OF_B = stops(DatasetUnknown("of another broker", owner=A), "biopsies")
WITHDRAWN = stops(DatasetWithdrawn("withdrawn", owner=B), "biopsies")


@pytest.mark.parametrize(
    ("needed", "brokers", "verdict", "code"),
    [
        (2, (PROVEN, PROVEN, REFUSES), "released", None),
        (2, (PROVEN, READY, REFUSES), "guest-unproven", None),
        (2, (READY, AWAY, READY), "guest-unproven", None),
        (3, (PROVEN, PROVEN, REFUSES), "refused", "approvals-missing"),
        (2, (PROVEN, AWAY, REFUSES), "refused", "approvals-missing"),
        (2, (PROVEN, AWAY, AWAY), "refused", "broker-unreachable"),
        # Each owner has a broker of its own, which knows no other owner's data.
        (1, (OF_A, OF_B), "guest-unproven", None),
        (1, (OF_A, OF_A), "refused", "dataset-unknown"),
        (2, (OF_A, OF_B), "refused", "dataset-unknown"),
        # A guest asks a broker for all that is registered there, and gets all or nothing.
        (1, (WITHDRAWN, OF_B), "refused", "dataset-withdrawn"),
    ],
)  # fmt: skip
def test_of_several_brokers_as_many_as_a_dataset_needs_must_release(
    needed: int, brokers: tuple[Readiness, ...], verdict: str, code: str | None
) -> None:
    found = together(needed, *brokers)
    assert found.verdict == verdict
    assert (None if found.obstacle is None else found.obstacle.error.code) == code


def sealed_for(*thresholds: int, ready: bool = True) -> Readiness:
    known = dict(zip(((A, "biopsies"), (B, "biopsies")), thresholds, strict=False))
    return Readiness(obstacles=() if ready else REFUSES.obstacles, thresholds=known)


@pytest.mark.claim("C574")
@pytest.mark.parametrize(
    ("asked", "brokers", "verdict", "needed"),
    [
        (None, (sealed_for(2, 2), sealed_for(2, 2), AWAY), "guest-unproven", 2),
        (None, (sealed_for(2, 3), sealed_for(2, 3), AWAY), "refused", 3),
        (None, (sealed_for(2, 2), sealed_for(2, 2, ready=False), AWAY), "refused", 2),
        # The whole key lies at each of two brokers.
        (None, (sealed_for(1, 1), AWAY), "guest-unproven", 1),
        # Of two manifests the one that asks for more counts, and silence for all.
        (None, (sealed_for(2, 2), sealed_for(3, 2), AWAY), "refused", 3),
        (None, (READY, READY, AWAY), "refused", 3),
        (3, (sealed_for(2, 2), sealed_for(2, 2), AWAY), "refused", 3),
    ],
)
def test_as_many_brokers_are_needed_as_the_owners_sealed_for(
    asked: int | None, brokers: tuple[Readiness, ...], verdict: str, needed: int
) -> None:
    found = together(asked, *brokers)
    assert (found.verdict, found.needed) == (verdict, needed)


def test_a_broker_that_takes_the_request_and_says_nothing(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, _url), server(_silent) as (url, _heard):
        found = status(world, url)
        assert (found.verdict, code(found)) == ("refused", "broker-unreachable")


def _silent(connection: socket.socket, _number: int) -> None:
    head_of(connection)
    time.sleep(20)


class _Altering(BrokerClient):
    """A broker that shows its entries otherwise than they are."""

    drop: str | None = None
    change: Callable[[dict[str, Any]], None] = staticmethod(lambda _entry: None)

    def ledger_entries(self, start: int = 0, limit: int = 100) -> list[dict[str, JsonValue]]:
        kept = [
            entry
            for entry in super().ledger_entries(start, limit)
            if type(self).drop is None or entry["kind"] != type(self).drop
        ]
        for entry in kept:
            type(self).change(entry)
        return kept


class _Hiding(_Altering):
    drop = "revocation"


class _Inventing(_Altering):
    @staticmethod
    def change(entry: dict[str, Any]) -> None:
        """An approval by an owner who gave none."""
        if entry["kind"] == "approval":
            entry["body"]["owner"] = C


class _Endless(BrokerClient):
    """It shows every entry twice, so that a revocation comes never."""

    def ledger_entries(self, start: int = 0, limit: int = 100) -> list[dict[str, JsonValue]]:
        return super().ledger_entries(start // 2, 1)


@pytest.mark.parametrize("liar", [_Hiding, _Inventing, _Endless])
def test_a_broker_that_alters_its_ledger_is_no_yes(
    tmp_path: Path, liar: type[BrokerClient]
) -> None:
    with served_world(tmp_path) as (world, url):
        world.revoke(C)
        here = guest_here(world, world.policy)
        found = status(world, url, client=liar, guest=here)
        assert found.verdict == "refused"
        assert code(found) in ("ledger-inconsistent", "approval-revoked")


def test_a_broker_that_shows_an_older_ledger(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        size, head = world.ledger.size, world.ledger.checkpoint()
        world.revoke(C)
        newest = world.ledger.checkpoint()

        class Older(BrokerClient):
            def ledger_checkpoint(self) -> str:
                return head

            def ledger_entries(self, start: int = 0, limit: int = 100) -> list[Any]:
                return super().ledger_entries(start, min(limit, size - start))

        here = guest_here(world, world.policy)
        found = status(world, url, client=Older, guest=here)
        assert any("newest ledger" in word for word in found.unproven)  # it cannot know
        known = status(world, url, client=Older, guest=here, notes=(newest,))
        assert (known.verdict, code(known)) == ("refused", "ledger-inconsistent")
