"""A run begins with the model of the newest run before it, and its key is lent for nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from release_world import (
    ROOT,
    ReleaseWorld,
    audited,
    document_of,
    release_world,
    renewed,
    served_world,
)
from world import BROKER_IDS, OWNERS, identity, lock_changed

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.store.recording import record
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.grant import Grant
from sealtrain.client.grants import WantedModel
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import RunChainBroken, RunMismatch, SealtrainError
from sealtrain.guest.model_before import ModelBefore
from sealtrain.guest.outputs import NextRun, seal_model
from sealtrain.ledger.entry_rules import EntryRules
from sealtrain.owner.readiness import PlannedRun, ask
from sealtrain.recipe.errors import LockInvalid
from sealtrain.release.errors import AnswerInvalid, DatasetWithdrawn
from sealtrain.release.sealing_key import verify_sealing_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import NoStanza, RootMismatch, SealRefused, WrongContext, WrongKey
from sealtrain.sealing.file import read_header
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, TrainedModel, check_sealed_names
from sealtrain.signing.continues import Continues
from sealtrain.signing.identity import broker_id

pytestmark = pytest.mark.claim("C204")
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(range(256)) * 300}
SCHEDULE = {
    "when": "cron",
    "cron": "0 3 * * *",
    "continue": "last",
    "runs": 10,
    "starts_at": "2027-01-04T03:00:00Z",
    "ends_at": "2027-01-14T03:00:00Z",
}


def follows(recipe: dict[str, Any]) -> None:
    recipe.update(schedule=SCHEDULE, peft=None)


@dataclass(kw_only=True)
class Runs:
    """A recipe whose runs follow each other, and what its runs left."""

    world: ReleaseWorld
    folder: Path

    def next_run(self, keyring: Keyring | None = None) -> NextRun:
        """What a guest seals its model to, once it verified the broker's signed key."""
        locked, consortium_id = self.world.locked, self.world.consortium.consortium_id
        asked = {
            "app_id": locked.app_id,
            "compose_hash": locked.compose_hash,
            "owner_id": consortium_id,
            "nonce": os.urandom(32).hex(),
        }
        signed = self.world.broker.sealing_key(**asked)
        key = verify_sealing_key(
            signed, self.world.keyring.signer.public, asked | {"consortium_id": consortium_id}
        )
        if keyring is not None:
            public = keyring.public_key(
                consortium_id, app_id=locked.app_id, compose_hash=locked.compose_hash
            )
            key = from_base64(public)
        return NextRun(
            app_id=locked.app_id,
            compose_hash=locked.compose_hash,
            broker_id=broker_id(self.world.keyring.signer.public),
            public_key=key,
        )

    def sealed(self, run_id: str, name: str = "run", keyring: Keyring | None = None) -> ModelBefore:
        """The model that a run leaves, with a manifest of these bytes."""
        out = self.folder / f"{name}-{run_id[:8]}-{os.urandom(2).hex()}"
        out.mkdir()
        model = seal_model(
            FILES,
            out,
            run_id=run_id,
            owner_id=self.world.consortium.consortium_id,
            recipients=[identity(owner).public for owner in OWNERS[:1]],
            next_run=self.next_run(keyring),
        )
        return self.found(out / MODEL_FOLDER, model, self.place(run_id))

    def found(self, folder: Path, model: TrainedModel, place: Continues) -> ModelBefore:
        header = read_header(folder / check_sealed_names(model.names)[0])
        wanted = WantedModel(
            place=place,
            run_id=model.run_id,
            consortium_id=self.world.consortium.consortium_id,
            stanzas=tuple(header.stanzas),
        )
        return ModelBefore(folder=folder, model=model, wanted=wanted)

    def place(self, run_id: str, number: int = 2) -> Continues:
        return Continues(manifest_digest=manifest_of(run_id), number=number)

    def obtain(self, before: ModelBefore | None = None, **changed: Any) -> Grant:
        broker = self.world.attest()
        asked = None if before is None else before.wanted.request_to(broker)
        return self.world.obtain(**({"continues": asked} | changed))

    def end(self, grant: Grant, continues: Continues | None = None) -> ModelBefore:
        """Record the manifest of a run; the model that it left, for the next one."""
        said = {} if continues is None else {"continues": continues.to_dict()}
        with self.world.store.transaction() as transaction:
            record(
                transaction,
                self.world.ledger,
                "manifest",
                {
                    "run_id": grant.run_id,
                    "manifest_digest": manifest_of(grant.run_id),
                    "outputs": None,
                }
                | said,
                now=self.world.clock(),
            )
        made = self.sealed(grant.run_id)
        number = 2 if continues is None else continues.number + 1
        place = self.place(grant.run_id, number)
        return replace(made, wanted=replace(made.wanted, place=place))

    def withdraw(self, owner: str) -> None:
        withdrawal = Withdrawal.of(
            [self.world.sealed[owner].dataset_id],
            consortium_id=self.world.consortium.consortium_id,
            owner=identity(owner).public,
            signed_at=self.world.clock(),
        )
        signed = sign_owned(withdrawal, identity(owner).signer)
        self.world.broker.registry.hand_in(Withdrawal.entry_kind, document_of(signed))

    def assert_refused(self, error: type[SealtrainError], check: str, act: Any) -> None:
        released = self.world.kinds().count("release")
        with pytest.raises(error, check=carries(check=check)):
            act()
        assert self.world.kinds().count("release") == released
        assert self.world.refusals()[-1]["code"] == error.code
        self.world.assert_no_key_left()


def manifest_of(run_id: str) -> str:
    """Digest of the manifest of a run."""
    return sha256_hex(canonical_json({"manifest of": run_id}))


def grown(world: ReleaseWorld) -> None:
    """Lock the recipe anew with a schedule; its owners seal, register and approve."""
    world.locked = world.lock(follows)
    for owner in OWNERS:
        world.sealed[owner] = world.seal(owner)
        world.register(world.sealed[owner])
    for owner in OWNERS[:2]:
        world.approve(owner)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with release_world(tmp_path) as world:
        grown(world)
        yield Runs(world=world, folder=tmp_path)


def key_of(grant: Grant) -> DataKey:
    assert grant.model_key is not None
    return DataKey(grant.model_key.reveal())


def test_each_run_opens_the_model_of_the_run_before(runs: Runs) -> None:
    grant, before = runs.obtain(), None
    assert grant.model_key is None
    for number in (2, 3, 4):
        place = None if before is None else before.wanted.place
        before = runs.end(grant, place)
        grant = runs.obtain(before)
        opened = before.open(key_of(grant))
        assert {name: opened.open_file(name).read() for name in opened.file_names} == FILES
        receipt = grant.receipts[0].receipt
        assert receipt.continues == Continues(
            manifest_digest=manifest_of(before.model.run_id), number=number
        )
    entries = [entry["body"] for entry in runs.world.ledger.entries() if entry["kind"] == "release"]
    assert [body.get("continues", {}).get("number") for body in entries] == [None, 2, 3, 4]  # type: ignore[union-attr]
    runs.world.clock.advance(60)
    assert renewed(runs.world, grant).receipts[-1].receipt.continues is None
    report = audited(runs.world)
    assert report.holds, report.findings
    runs.world.assert_no_key_left()


def test_an_older_model_is_not_released(runs: Runs) -> None:
    first = runs.end(runs.obtain())
    second = runs.end(runs.obtain(first), first.wanted.place)
    runs.assert_refused(RunChainBroken, "newest run", lambda: runs.obtain(first))
    runs.assert_refused(RunChainBroken, "newest run", lambda: runs.obtain(None))
    assert runs.obtain(second).model_key is not None


def test_a_made_up_number_or_manifest_is_not_released(runs: Runs) -> None:
    first = runs.end(runs.obtain())
    for lie in (
        Continues(manifest_digest=first.wanted.place.manifest_digest, number=3),
        Continues(manifest_digest="ab" * 32, number=2),
    ):
        made = replace(first, wanted=replace(first.wanted, place=lie))
        runs.assert_refused(RunChainBroken, "newest run", lambda made=made: runs.obtain(made))


def test_a_model_before_any_run_is_not_released(runs: Runs) -> None:
    """An operator has a model of its own, sealed to the broker's public key."""
    runs.assert_refused(
        RunChainBroken, "newest run", lambda: runs.obtain(runs.sealed("5a" * 16, "forged"))
    )


def test_the_model_of_a_run_that_failed_is_not_released(runs: Runs) -> None:
    """It sealed its model and ended before its manifest was recorded."""
    first = runs.end(runs.obtain())
    failed = runs.obtain(first)
    left = runs.sealed(failed.run_id, "failed")
    place = Continues(manifest_digest=manifest_of(failed.run_id), number=3)
    left = replace(left, wanted=replace(left.wanted, place=place))
    runs.assert_refused(RunChainBroken, "newest run", lambda: runs.obtain(left))
    renamed = replace(left, wanted=replace(left.wanted, place=first.wanted.place))
    runs.assert_refused(WrongKey, "model stanza", lambda: runs.obtain(renamed))
    assert runs.obtain(first).model_key is not None


def test_the_model_of_another_chain_is_not_released(runs: Runs) -> None:
    """Another recipe of the same owners, at the same broker, has a run of its own."""
    mine = runs.end(runs.obtain())
    own = runs.world.locked, dict(runs.world.sealed)

    def other_recipe(recipe: dict[str, Any]) -> None:
        follows(recipe)
        recipe.update(name="another-recipe")

    runs.world.locked = runs.world.lock(other_recipe)
    for owner in OWNERS:
        runs.world.sealed[owner] = runs.world.seal(owner)
        runs.world.register(runs.world.sealed[owner])
        runs.world.approve(owner, target=runs.world.locked.target)
    theirs = runs.end(runs.obtain())
    foreign = theirs.wanted.stanzas
    runs.world.locked, runs.world.sealed = own
    runs.assert_refused(
        RunChainBroken,
        "newest run",
        lambda: runs.obtain(continues=(theirs.wanted.place, foreign[-1])),
    )
    runs.assert_refused(
        NoStanza, "model stanza", lambda: runs.obtain(continues=(mine.wanted.place, foreign[-1]))
    )
    relabelled = replace(foreign[-1], recipient=mine.wanted.stanzas[-1].recipient)
    runs.assert_refused(
        WrongKey, "model stanza", lambda: runs.obtain(continues=(mine.wanted.place, relabelled))
    )


def test_a_recipe_that_begins_anew_gets_no_model(tmp_path: Path) -> None:
    with release_world(tmp_path) as world:
        stanza = next(iter(world.sealed.values())).stanza
        place = Continues(manifest_digest="ab" * 32, number=2)
        with pytest.raises(RunChainBroken, check=carries(check="continues")):
            world.obtain(continues=(place, stanza))
        assert "release" not in world.kinds()


def test_a_stanza_of_data_opens_no_model_and_that_of_a_model_no_data(runs: Runs) -> None:
    first = runs.end(runs.obtain())
    data = next(iter(runs.world.sealed.values()))
    runs.assert_refused(
        NoStanza, "model stanza", lambda: runs.obtain(continues=(first.wanted.place, data.stanza))
    )
    share = Stanza(kind="share", recipient=data.stanza.recipient, body=data.stanza.body)
    runs.assert_refused(
        DatasetMismatch, "model stanza", lambda: runs.obtain(continues=(first.wanted.place, share))
    )
    broker = runs.world.attest()
    _place, stanza = first.wanted.request_to(broker)
    datasets = [dataset.asked for dataset in runs.world.sealed.values()]
    datasets[0] = datasets[0]._replace(stanza=stanza)
    runs.assert_refused(NoStanza, "stanza", lambda: runs.obtain(first, datasets=datasets))


def test_of_two_runs_at_once_one_is_followed(runs: Runs) -> None:
    """Both begin with the same model; the first manifest counts, and the other run is over."""
    first = runs.end(runs.obtain())
    one, other = runs.obtain(first), runs.obtain(first)
    second = runs.end(one, first.wanted.place)
    runs.assert_refused(
        RunChainBroken,
        "newest run",
        lambda: runs.obtain(first, run_id=other.run_id, resume=True),
    )
    assert runs.obtain(second).model_key is not None


def test_a_resumed_run_gets_its_model_again_and_no_other(runs: Runs) -> None:
    first = runs.end(runs.obtain())
    grant = runs.obtain(first)
    again = runs.obtain(first, run_id=grant.run_id, resume=True)
    assert key_of(again).reveal() == key_of(grant).reveal()
    runs.assert_refused(
        RunMismatch, "continues", lambda: runs.obtain(None, run_id=grant.run_id, resume=True)
    )
    lie = Continues(manifest_digest="ab" * 32, number=2)
    made = replace(first, wanted=replace(first.wanted, place=lie))
    runs.assert_refused(
        RunMismatch, "continues", lambda: runs.obtain(made, run_id=grant.run_id, resume=True)
    )
    runs.end(grant, first.wanted.place)
    late = runs.obtain(first, run_id=grant.run_id, resume=True)  # its manifest was on the way
    assert key_of(late).reveal() == key_of(grant).reveal()
    assert audited(runs.world).holds


def test_withdrawn_data_trains_no_further_model(runs: Runs) -> None:
    """The next run need not read it: the model has learned from it."""
    grant = runs.obtain()
    first = runs.end(grant)
    second = runs.obtain(first)
    runs.withdraw(OWNERS[2])
    rest = [dataset.asked for owner, dataset in runs.world.sealed.items() if owner != OWNERS[2]]
    with pytest.raises(DatasetWithdrawn):
        runs.obtain(first, datasets=rest)
    with pytest.raises(DatasetWithdrawn):
        renewed(runs.world, second)


@pytest.mark.claim("C233")
def test_status_says_no_of_a_chain_that_read_withdrawn_data(tmp_path: Path) -> None:
    """Its owner sealed the records anew, so that nothing a guest would ask for is withdrawn."""
    with served_world(tmp_path) as (world, url):
        grown(world)
        chain = Runs(world=world, folder=tmp_path)
        run = PlannedRun(lock=world.locked.lock, target=world.target, platform="simulator")
        pin = world.pin.model_copy(update={"url": url})

        def told() -> list[str]:
            with BrokerClient(url, 3.0, total=6.0) as client:
                found = ask(
                    client,
                    pin,
                    run,
                    progress=lambda _size: nullcontext(lambda _entries: None),
                    clock=world.clock,
                )
            return [obstacle.error.code for obstacle in found.obstacles]

        first = chain.end(chain.obtain())
        assert told() == []
        chain.withdraw(OWNERS[2])
        world.sealed[OWNERS[2]] = world.seal(OWNERS[2])
        world.register(world.sealed[OWNERS[2]])
        with pytest.raises(DatasetWithdrawn):
            chain.obtain(first)
        assert told() == [DatasetWithdrawn.code]


def test_a_broker_with_another_root_opens_no_model(runs: Runs) -> None:
    """The operator sealed to a key of its own under the broker's name."""
    grant = runs.obtain()
    runs.end(grant)
    evil = Keyring(Secret(bytes(reversed(ROOT))))
    forged = runs.sealed(grant.run_id, "forged", evil)
    runs.assert_refused(WrongKey, "model stanza", lambda: runs.obtain(forged))


def test_a_model_that_is_swapped_after_the_release_does_not_open(runs: Runs) -> None:
    """By its recipients, who have the run's data key, or by bytes of another file."""
    first = runs.end(runs.obtain())
    key = key_of(runs.obtain(first))
    names = check_sealed_names(first.model.names)
    weights = first.folder / names[1]
    genuine = weights.read_bytes()
    opened = first.open(key)
    data = bytearray(genuine)
    data[-20_000] ^= 1
    weights.write_bytes(data)
    with pytest.raises(SealRefused), opened.open_file("model.safetensors") as file:
        file.read()
    other = runs.sealed(first.model.run_id, "other")
    weights.write_bytes((other.folder / names[1]).read_bytes())
    with pytest.raises((RootMismatch, SealRefused)), opened.open_file("model.safetensors") as file:
        file.read()
    (first.folder / names[0]).write_bytes(genuine)
    with pytest.raises((WrongContext, SealRefused)):
        first.open(key).open_file("config.json").read()


@pytest.mark.parametrize("change", ["strip", "other", "number"])
def test_an_answer_about_another_model_is_refused(runs: Runs, change: str) -> None:
    """The receipt comes from a broker that is asked by somebody else, or is altered on its way."""
    first = runs.end(runs.obtain())

    def asks_otherwise(document: dict[str, Any]) -> None:
        if change == "strip":
            document.pop("continues")
        elif change == "number":
            document["continues"]["number"] = 3
        else:
            document["continues"]["manifest_digest"] = "ab" * 32

    runs.world.wire.on_request = asks_otherwise
    with pytest.raises(SealtrainError) as refused:
        runs.obtain(first)
    assert refused.value.code in {"report-data-mismatch", "run-chain-broken", AnswerInvalid.code}
    assert runs.world.kinds().count("release") == 1


def test_such_a_recipe_has_one_broker(runs: Runs) -> None:
    with pytest.raises(LockInvalid, check=carries(check="brokers")):
        lock_changed(runs.world.consortium.consortium_id, tuple(sorted(BROKER_IDS[:2])), follows)


def entries_of(runs: Runs) -> list[dict[str, Any]]:
    """Three runs that follow each other, as the ledger has them; the third was resumed."""
    first = runs.end(runs.obtain())
    second = runs.end(runs.obtain(first), first.wanted.place)
    third = runs.obtain(second)
    runs.obtain(second, run_id=third.run_id, resume=True)
    return [json.loads(canonical_json(entry)) for entry in runs.world.ledger.entries()]


def findings(runs: Runs, entries: list[dict[str, Any]]) -> int:
    """Entries that break a rule of the ledger."""
    rules = EntryRules(runs.world.consortium)
    return sum(
        bool(list(rules.problems(entry["kind"], from_rfc3339(entry["at"]), entry["body"])))
        for entry in entries
    )


@pytest.mark.parametrize("change", ["older", "number", "unknown", "another on resume"])
def test_an_audit_finds_a_model_that_should_not_have_been_released(runs: Runs, change: str) -> None:
    """A broker that lent an old model, and wrote its ledger accordingly."""
    entries = entries_of(runs)
    assert findings(runs, entries) == 0
    releases = [entry["body"] for entry in entries if entry["kind"] == "release"]
    second, third, resumed = releases[1:]
    if change == "older":
        third["continues"] = resumed["continues"] = second["continues"]
    elif change == "number":
        third["continues"]["number"] = resumed["continues"]["number"] = 7
    elif change == "unknown":
        third["continues"]["manifest_digest"] = resumed["continues"]["manifest_digest"] = "ab" * 32
    else:
        resumed["continues"] = second["continues"]
    assert findings(runs, entries) >= 1


@pytest.mark.claim("C193")
@pytest.mark.parametrize("change", ["number", "fork"])
def test_an_audit_finds_a_manifest_at_another_place_of_its_chain(runs: Runs, change: str) -> None:
    entries = entries_of(runs)
    _first, second = (entry["body"] for entry in entries if entry["kind"] == "manifest")
    if change == "number":
        second["continues"]["number"] = 3
    else:
        copied = json.loads(canonical_json(second)) | {"manifest_digest": "ab" * 32}
        entries.append(entries[-1] | {"kind": "manifest", "body": copied})
    assert findings(runs, entries) >= 1
