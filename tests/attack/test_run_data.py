"""A run is the run of the data that it began with: other data on resume would draw other noise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quorum_world import QuorumWorld, quorum_world
from release_world import ROOT, ReleaseWorld, SealedSet, Wire, audited, release_world
from world import NOW, OWNERS, identity

from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.broker.service.service import Broker
from sealtrain.broker.store.memory import Store
from sealtrain.client.grant import Grant, renew
from sealtrain.client.grants import WantedKey
from sealtrain.client.wrapping import wrap_for_brokers
from sealtrain.consortium.errors import BudgetSpent
from sealtrain.consortium.receipts import Anchor
from sealtrain.errors import LeaseStale, RunMismatch, SealtrainError
from sealtrain.keys.derive import run_key
from sealtrain.ledger.ledger import Ledger
from sealtrain.sealing.datakey import DataKey

pytestmark = [pytest.mark.claim("C94"), pytest.mark.claim("C38")]

A, B, C = OWNERS
BUDGET = 1.0
NEXT = Secret(bytes([201]) * 32)


def measuring(recipe: dict[str, Any]) -> None:
    """A clean room: the model of one owner is measured on the records of another, with noise."""
    recipe.pop("peft")
    recipe |= {
        "phase": "evaluate",
        "model": {"sealed": "risk"},
        "columns": {"text": "prompt", "label": "completion"},
        "labels": ["a", "b"],
        "datasets": [
            {"owner": A, "name": "risk", "role": "model"},
            {"owner": B, "name": "biopsies", "role": "test"},
        ],
        "trainer": {"max_length": 48},
        "privacy": {"dp": "counts", "target_epsilon": BUDGET, "budgets": {B: BUDGET}},
    }
    recipe["release_policy"]["metrics"] = ["accuracy"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path) as made:
        made.locked = made.lock(measuring)
        made.sealed = {A: made.seal(A, name="risk"), B: made.seal(B)}
        for dataset in made.sealed.values():
            made.register(dataset)
        for owner in (A, B):
            made.approve(owner)
        yield made


def noise(world: ReleaseWorld, grant: Grant, *sealed: SealedSet) -> bytes:
    """What a guest makes noise of (``guest.holding``), for this data."""
    keys = {name: DataKey(key.reveal()) for name, key in grant.keys.items()}
    key = run_key(
        keys,
        app_id=world.locked.app_id,
        compose_hash=world.locked.compose_hash,
        run_id=grant.run_id,
    )
    roots = sorted(f"{dataset.dataset_id} {dataset.root}" for dataset in sealed)
    return key.derive("training-secret", *roots).reveal()


def spent(world: ReleaseWorld) -> float:
    bodies = [entry["body"] for entry in world.ledger.entries() if entry["kind"] == "release"]
    return sum(share["epsilon"] for body in bodies for share in body.get("privacy", ()))


def sealed_anew(world: ReleaseWorld) -> SealedSet:
    """The owner of the model seals it again and approves that; nobody else does anything."""
    world.clock.advance(60)
    made = world.sealed[A] = world.seal(A, name="risk")
    world.register(made)
    world.approve(A)
    return made


def test_a_resume_on_another_sealing_is_another_run(world: ReleaseWorld) -> None:
    grant = world.obtain()
    for _ in range(3):
        sealed_anew(world)
        with pytest.raises(RunMismatch) as caught:
            world.obtain(run_id=grant.run_id, resume=True)
        assert caught.value.check == "run data"
        assert world.refusals()[-1]["code"] == "run-mismatch"
    with pytest.raises(BudgetSpent):
        world.obtain()
    assert spent(world) == BUDGET
    assert world.kinds().count("release") == 1
    world.assert_no_key_left()
    assert audited(world).holds


@pytest.mark.claim("C68")
@pytest.mark.claim("C95")
def test_a_rotated_broker_that_lost_its_database_knows_the_data_of_its_runs(
    world: ReleaseWorld,
) -> None:
    grant, known = world.obtain(), world.attest()
    renew(world.wire, known, world.collect(world.guest()), grant, checkpoint=(3, "ab" * 32))
    original, parts = world.sealed[A], world.parts
    [state] = world.folder.glob("state-*")
    world.store.close()
    for path in state.glob("broker.sqlite*"):
        path.unlink()
    rotate_key(state / "ledger.sqlite", parts.ledger.origin, old=Secret(ROOT), new=NEXT, now=NOW)
    keyring = Keyring(NEXT, [Secret(ROOT)])
    store = Store(state / "broker.sqlite")
    with Ledger.open(
        state / "ledger.sqlite",
        origin=parts.ledger.origin,
        signer=keyring.signer,
        clock=world.clock,
        former=keyring.former,
    ) as ledger:
        world.broker = Broker(replace(parts, keyring=keyring, ledger=ledger, store=store))
        wire = Wire(broker=world.broker)
        found = world.attest(wire=wire)
        with pytest.raises(LeaseStale):
            renew(wire, found, world.collect(world.guest()), grant)
        sealed_anew(world)
        with pytest.raises(RunMismatch) as caught:
            world.obtain(wire=wire, attested=found, run_id=grant.run_id, resume=True)
        assert caught.value.check == "run data"
        with pytest.raises(BudgetSpent):
            world.obtain(wire=wire, attested=found)
        world.sealed[A] = original
        world.approve(A)
        resumed = world.obtain(wire=wire, attested=found, run_id=grant.run_id, resume=True)
        assert resumed.latest_checkpoint == Anchor(counter=3, digest="ab" * 32)
        bodies: list[Any] = [
            entry["body"] for entry in ledger.entries() if entry["kind"] == "release"
        ]
        assert ["privacy" in body for body in bodies] == [True, False]
        assert ledger.entry(bodies[1]["reserved_at"])["body"] == bodies[0]
    store.close()


def test_each_resume_names_the_place_of_the_one_reservation(world: ReleaseWorld) -> None:
    first = len(world.kinds())
    grant = world.obtain()
    for _ in range(2):
        world.obtain(run_id=grant.run_id, resume=True)
    bodies = [entry["body"] for entry in world.ledger.entries(first)]
    assert [body.get("reserved_at") for body in bodies] == [None, first, first]
    assert ["privacy" in body for body in bodies] == [True, False, False]
    assert audited(world).holds
    for place in (None, first + 1):  # a broker that hides it, or names another
        body = {k: v for k, v in bodies[-1].items() if k != "reserved_at"}
        fresh = {"lease_id": os.urandom(32).hex(), "receipt_digest": os.urandom(32).hex()}
        named = {} if place is None else {"reserved_at": place}
        index = world.ledger.append("release", body | fresh | named)
        assert audited(world).findings[-1].index == index


def test_every_resume_that_is_let_in_repeats_the_noise(world: ReleaseWorld) -> None:
    grant = world.obtain()
    first = noise(world, grant, *world.sealed.values())
    for order in (1, -1):
        asked = [dataset.asked for dataset in world.sealed.values()][::order]
        again = world.obtain(run_id=grant.run_id, resume=True, datasets=asked)
        assert noise(world, again, *world.sealed.values()) == first
    assert spent(world) == BUDGET


@pytest.mark.parametrize("way", ["fewer", "more", "another root", "moved away"])
def test_more_or_less_data_is_another_run(tmp_path: Path, way: str) -> None:
    with release_world(tmp_path) as world:
        of = {owner: world.sealed[owner] for owner in (A, B)}
        asked = [dataset.asked for dataset in of.values()]
        grant = world.obtain(datasets=asked)
        if way == "fewer":
            asked = asked[:1]
        elif way == "more":
            asked = [*asked, world.sealed[C].asked]
        elif way == "another root":
            asked = [of[A].asked_with(root="ab" * 32), asked[1]]
        more: dict[str, Any] = {}
        if way == "moved away":  # claimed to be elsewhere, and under another root
            asked, more = asked[1:], {"elsewhere": [of[A].of_run._replace(root="ab" * 32)]}
        with pytest.raises(RunMismatch) as caught:
            world.obtain(run_id=grant.run_id, resume=True, datasets=asked, **more)
        assert caught.value.check == "run data"


def test_data_that_another_broker_lends_by_now_is_the_same_data(tmp_path: Path) -> None:
    with release_world(tmp_path) as world:
        one, two = (world.sealed[owner] for owner in (A, B))
        far = [two.of_run]
        grant = world.obtain(datasets=[one.asked], elsewhere=far)
        again = world.obtain(run_id=grant.run_id, resume=True, datasets=[one.asked, two.asked])
        assert set(again.keys) == {one.dataset_id, two.dataset_id}
        assert audited(world).holds


# Several brokers: none sees all the keys, each sees all the data


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[QuorumWorld]:
    """The model's owner and the records' owner have a broker each; a third one takes either."""
    with quorum_world(tmp_path, threshold=None) as made:
        for world in made.worlds:
            world.locked = world.lock(measuring)
        yield made


def owned(world: QuorumWorld, owner: str, name: str, *at: int) -> WantedKey:
    """Data that its owner sealed for some brokers, each of which has the whole key."""
    one = world.sealed[owner] = world.first.seal(owner, name=name)
    attested = world.attested()
    stanzas = [
        stanza
        for place in at
        for stanza in wrap_for_brokers(
            one.key,
            dataset_id=one.dataset_id,
            owner=identity(owner).public,
            brokers=[attested[place]],
            threshold=None,
        )
    ]
    for place in at:
        world.worlds[place].register(one)
    return WantedKey(
        dataset_id=one.dataset_id,
        root=one.root,
        owner=owner,
        owner_id=identity(owner).public.owner_id,
        stanzas=tuple(stanzas),
    )


def epsilon_at(world: QuorumWorld) -> list[float]:
    return [spent(each_world) for each_world in world.worlds]


def test_the_broker_of_the_records_is_told_of_the_model_that_another_broker_lends(
    brokers: QuorumWorld,
) -> None:
    """Else a model sealed anew, for whichever broker, would be measured with fresh noise."""
    model, records = owned(brokers, A, "risk", 0), owned(brokers, B, "biopsies", 1)
    began_with = brokers.sealed[A]
    brokers.approve(A, B)
    run_id = os.urandom(16).hex()
    first = brokers.obtain(run_id=run_id, datasets=[model, records])
    assert set(first.held) == {wire.url for wire in brokers.wires[:2]}
    assert epsilon_at(brokers) == [BUDGET, BUDGET, 0]
    for place in (0, 2):  # at its own broker, and at one that never heard of the run
        brokers.advance(60)
        other = owned(brokers, A, "risk", place)
        brokers.approve(A)
        with pytest.raises(RunMismatch):
            brokers.obtain(run_id=run_id, resume=True, datasets=[other, records])
        assert brokers.worlds[1].kinds().count("release") == 1
    brokers.advance(60)
    brokers.sealed[A] = began_with  # what its owner approves again
    brokers.approve(A)
    again = brokers.obtain(run_id=run_id, resume=True, datasets=[model, records])
    assert again.run_key.reveal() == first.run_key.reveal()
    assert epsilon_at(brokers)[:2] == [BUDGET, BUDGET]


def test_a_broker_that_joins_on_resume_begins_the_run_and_counts_it(brokers: QuorumWorld) -> None:
    model, records = owned(brokers, A, "risk", 0, 2), owned(brokers, B, "biopsies", 0, 2)
    brokers.approve(A, B)
    run_id = os.urandom(16).hex()
    first = brokers.obtain(brokers.quorum(0), run_id=run_id, datasets=[model, records])
    assert epsilon_at(brokers) == [BUDGET, 0, 0]
    joined = brokers.obtain(
        brokers.quorum(0, 2), run_id=run_id, resume=True, datasets=[model, records]
    )
    assert joined.run_key.reveal() == first.run_key.reveal()
    assert epsilon_at(brokers) == [BUDGET, 0, BUDGET]
    with pytest.raises(BudgetSpent):
        brokers.obtain(brokers.quorum(2), datasets=[model, records])
    with pytest.raises(RunMismatch):  # it is bound as the others are
        brokers.obtain(brokers.quorum(2), run_id=run_id, resume=True, datasets=[records])
    for value in (brokers.worlds[0], brokers.worlds[2]):
        assert audited(value).holds


# A broker that lies


def test_an_audit_finds_a_resume_on_other_data(world: ReleaseWorld) -> None:
    grant = world.obtain()
    sealed_anew(world)
    held = world.store.transaction

    class Forgetful:
        """The broker's memory of what runs began with, tampered with by its operator."""

        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transaction, name)

        def run(self, run_id: str) -> Any:
            found = self._transaction.run(run_id)
            data = {dataset.of_run for dataset in world.sealed.values()}
            return found and replace(found, data=frozenset(data))

    @contextmanager
    def forgetful(**how: Any) -> Iterator[Any]:
        with held(**how) as transaction:
            yield Forgetful(transaction)

    object.__setattr__(world.store, "transaction", forgetful)
    world.obtain(run_id=grant.run_id, resume=True)
    problems = [finding for finding in audited(world).findings if finding.check == "release"]
    assert [problem.index for problem in problems] == [len(world.kinds()) - 1]
    assert "other data" in problems[0].problem


def test_an_entry_that_hides_the_data_of_a_run_is_found(world: ReleaseWorld) -> None:
    world.obtain()
    body = dict(world.ledger.entries()[-1]["body"])
    del body["elsewhere"]
    world.ledger.append("release", body | {"run_id": "ab" * 16, "receipt_digest": "cd" * 32})
    findings = audited(world).findings
    assert [finding.index for finding in findings] == [len(world.kinds()) - 1]


def test_a_guest_refuses_an_answer_whose_entry_names_other_data(world: ReleaseWorld) -> None:
    def altered(document: dict[str, Any]) -> None:
        if "enc" in document:
            body = document["proof"]["entry"]["body"] | {"elsewhere": []}
            body["datasets"] = body["datasets"][:1]
            index = world.ledger.append("release", body)
            document["proof"] = world.ledger.proof(index).to_dict()

    world.wire.on_answer = altered
    with pytest.raises(SealtrainError) as caught:
        world.obtain()
    assert caught.value.code == "answer-invalid"
