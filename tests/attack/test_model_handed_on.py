"""A model that is handed on: no operator's key, no person, no other recipe, no withdrawal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from quorum_world import QuorumWire, QuorumWorld, quorum_world
from release_world import document_of
from world import OWNERS, deployed, identity

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grants import Grants, WantedKey
from sealtrain.client.quorum import Quorum
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.datasets import sign_dataset
from sealtrain.consortium.errors import (
    ApprovalRevoked,
    ApprovalsMissing,
    ApprovalUnknown,
    DatasetMismatch,
)
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import BrokerNotApproved, SealtrainError, SignatureInvalid
from sealtrain.guest.outputs import NextRecipe, hand_on_model
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.manifest.outputs import require_named_files
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.errors import AnswerInvalid, DatasetWithdrawn
from sealtrain.release.messages import BrokerKeys, load_message
from sealtrain.release.sealing_key import SealingKey, SignedSealingKey, sign_sealing_key
from sealtrain.sealing.description import DatasetDescription
from sealtrain.sealing.errors import NoStanza, RootMismatch, WrongContext, WrongKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.opened_model import open_unnamed_model
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.stanza import BrokerBinding, RecipeBinding
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, TrainedModel
from sealtrain.signing.identity import broker_id

A, B, C = OWNERS
"""C adopts the model."""
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(range(256)) * 300}
RUN_ID = "5a" * 16
EVIL = Keyring(Secret(b"\x66" * 32))
"""Keys of an operator."""

Forge = Callable[[Callable[..., SignedSealingKey], dict[str, str]], SignedSealingKey]


@dataclass(kw_only=True)
class Relay(QuorumWire):
    """The way to a broker, which leads through the operator of the guest.

    Attributes:
        shown: Evidence of the operator's own machine for the broker's name; ``None`` when honest.
        forge: Answers a request for a signed key.
    """

    shown: Callable[[Binding], Evidence] | None = None
    forge: Forge = lambda ask, query: ask(**query)

    def keys(self, **query: str) -> BrokerKeys:
        genuine = super().keys(**query)
        if self.shown is None:
            return genuine
        recipe = {name: query[name] for name in ("app_id", "compose_hash")}
        keys = [key.to_dict() for key in EVIL.public_keys(self.broker.consortium, **recipe)]
        statement = genuine.transcript() | {"keys": keys}
        evidence = self.shown(Binding("broker-keys", statement)).to_dict()
        answer = {"version": 1, **statement, "evidence": evidence}
        return load_message(BrokerKeys, canonical_json(answer))

    def sealing_key(self, **query: str) -> SignedSealingKey:
        return self.forge(self._up().broker.sealing_key, query)


@dataclass(kw_only=True)
class HandedOn:
    """Three brokers, a recipe that takes a model over, and the model."""

    quorum: QuorumWorld
    wires: list[Relay]
    room: LockedRecipe
    run: Path

    @property
    def folder(self) -> Path:
        return self.run / MODEL_FOLDER

    def asking(self, locked: LockedRecipe, *at: int) -> Quorum:
        wires = {wire.url: wire for wire in self.wires}
        return Quorum(
            [self.quorum.pin(place) for place in (at or range(len(self.wires)))],
            consortium_id=self.quorum.first.consortium.consortium_id,
            deployed=deployed(locked),
            clock=self.quorum.first.clock,
            on_failure=lambda _url, _error: None,
            client=lambda url: wires[url],
        )

    def keys_for(self, *at: int, owner: str = C) -> tuple[AttestedBroker, ...]:
        """What the guest that trained asks the brokers for."""
        return self.asking(self.quorum.first.locked, *at).keys_for(
            identity(owner).public, app_id=self.room.app_id, compose_hash=self.room.compose_hash
        )

    def hand_on(self, run: Path) -> TrainedModel:
        run.mkdir(exist_ok=True)
        to = NextRecipe(
            owner=identity(C).public, dataset="biopsies", brokers=self.keys_for(), threshold=2
        )
        consortium_id = self.quorum.first.consortium.consortium_id
        return hand_on_model(FILES, run, run_id=RUN_ID, owner_id=consortium_id, to=to)

    def adopt(self, made: DatasetDescription, locked: LockedRecipe | None = None) -> None:
        """Have C sign and register a dataset, and B and C approve a recipe with it."""
        locked = locked or self.room
        binding = replace(made.binding, app_id=locked.app_id, compose_hash=locked.compose_hash)
        signed_at = to_rfc3339(self.quorum.first.clock() - 60)
        envelope = sign_dataset(
            replace(made, binding=binding), identity(C).signer, sealed_at=signed_at
        )
        for world in self.quorum.worlds:
            world.broker.registry.hand_in("dataset", document_of(envelope))
        self.approve(made, locked, B, C)

    def approve(self, made: DatasetDescription, locked: LockedRecipe, *owners: str) -> None:
        pin = DatasetPin(dataset_id=made.dataset_id, root=made.root)
        for world in self.quorum.worlds:
            for owner in owners:
                pins = [pin] if owner == C else []
                world.approve(owner, target=locked.target, datasets=pins)

    def obtain(
        self, made: DatasetDescription, locked: LockedRecipe | None = None, **changed: Any
    ) -> Grants:
        """A guest of a recipe asks for the model's key."""
        locked = locked or self.room
        wanted = WantedKey(
            **{
                "dataset_id": made.dataset_id,
                "root": made.root,
                "owner": C,
                "owner_id": identity(C).public.owner_id,
                "stanzas": read_stanzas(self.folder)[1],
            }
            | changed
        )
        first = self.quorum.first
        return self.asking(locked).obtain(
            first.collect(first.guest(locked)),
            run_id=os.urandom(16).hex(),
            recipe_hash=locked.recipe_hash,
            datasets=[wanted],
            resume=False,
        )

    def assert_refused(self, error: type[SealtrainError], act: Callable[[], object]) -> None:
        with pytest.raises(error):
            act()
        for world in self.quorum.worlds:
            assert "release" not in world.kinds()


def described(model: TrainedModel) -> DatasetDescription:
    assert model.dataset is not None
    return model.dataset


def named(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda recipe: recipe.update(name=name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HandedOn]:
    with quorum_world(tmp_path, threshold=None) as made:
        wires = [Relay(broker=wire.broker, url=wire.url) for wire in made.wires]
        room = made.first.lock(named("clean-room"))
        yield HandedOn(quorum=made, wires=wires, room=room, run=tmp_path / "run")


@pytest.fixture
def made(world: HandedOn) -> DatasetDescription:
    """The model of the run, not adopted yet."""
    return described(world.hand_on(world.run))


# --- C140: no person, no operator, no other recipe ----------------------------------------------


@pytest.mark.claim("C140")
def test_guests_of_the_next_recipe_open_it_by_two_of_three_brokers(
    world: HandedOn, made: DatasetDescription
) -> None:
    world.adopt(made)
    world.wires[1].down = True
    key = world.obtain(made).data_keys[made.dataset_id]
    with SealedDataset.open(world.folder, key, root=made.root) as opened:
        assert set(opened.file_names) == set(FILES)
        for name, content in FILES.items():
            with opened.open_file(name) as file:
                assert file.read() == content


@pytest.mark.claim("C140")
def test_evidence_of_the_operators_machine_gives_it_no_model(world: HandedOn) -> None:
    """The guest's policy for brokers is its operator's, so evidence may name any key."""
    genuine = {dataset.named_as: dataset.key_of(C) for dataset in world.keys_for()}
    for wire, each_world in zip(world.wires, world.quorum.worlds, strict=True):
        wire.shown = each_world.parts.collect
    asking = world.asking(world.quorum.first.locked)
    asking.meet()  # the evidence is believed
    assert {dataset.named_as: dataset.key_of(C) for dataset in world.keys_for()} == genuine


def _forged(ask: Callable[..., SignedSealingKey], query: dict[str, str]) -> SignedSealingKey:
    """Signed by the operator in the place of the broker."""
    payload = SealingKey.model_validate_json(ask(**query).statement.envelope().payload)
    own = payload.model_copy(update={"broker_id": broker_id(EVIL.signer.public)})
    return sign_sealing_key(own, EVIL.signer)


def _resigned(ask: Callable[..., SignedSealingKey], query: dict[str, str]) -> SignedSealingKey:
    """The broker's own signature over another payload."""
    answer = ask(**query)
    payload = answer.statement.envelope().payload.replace(query["nonce"].encode(), b"0" * 64)
    envelope = replace(answer.statement.envelope(), payload=payload)
    return SignedSealingKey(version=1, statement=type(answer.statement).of(envelope))


@pytest.mark.claim("C140")
@pytest.mark.parametrize("forge", [_forged, _resigned])
def test_a_key_that_the_broker_did_not_sign_is_not_sealed_to(world: HandedOn, forge: Forge) -> None:
    world.wires[2].forge = forge
    with pytest.raises(SignatureInvalid):
        world.keys_for()


@pytest.mark.claim("C140")
@pytest.mark.parametrize(
    ("check", "changed"),
    [
        ("app id", {"app_id": "0" * 40}),
        ("compose hash", {"compose_hash": "0" * 64}),
        ("owner id", {"owner_id": identity(A).public.owner_id}),
        ("nonce", {"nonce": "0" * 64}),
    ],
)
def test_a_signed_key_for_something_else_is_not_sealed_to(
    world: HandedOn, check: str, changed: dict[str, str]
) -> None:
    world.wires[0].forge = lambda ask, query: ask(**query | changed)
    with pytest.raises(AnswerInvalid, check=carries(check=check)):
        world.keys_for()


@pytest.mark.claim("C140")
def test_a_signed_key_of_another_broker_is_not_sealed_to(world: HandedOn) -> None:
    other = world.wires[1].broker
    world.wires[0].forge = lambda _ask, query: other.sealing_key(**query)
    with pytest.raises(SignatureInvalid):
        world.keys_for()


@pytest.mark.claim("C140")
def test_no_share_is_left_out(world: HandedOn) -> None:
    """With fewer brokers than the lock names, a single one could have the key."""
    with pytest.raises(BrokerNotApproved):
        world.keys_for(0, 1)
    world.wires[2].down = True
    with pytest.raises(BrokerUnreachable):
        world.keys_for()


@pytest.mark.claim("C140")
def test_a_stranger_has_no_key_at_the_brokers(world: HandedOn) -> None:
    with pytest.raises(ApprovalUnknown):
        world.wires[0].broker.sealing_key(
            app_id=world.room.app_id,
            compose_hash=world.room.compose_hash,
            owner_id="0" * 64,
            nonce="0" * 64,
        )


@pytest.mark.claim("C140")
@pytest.mark.parametrize("owner", OWNERS)
def test_a_person_has_no_stanza(world: HandedOn, made: DatasetDescription, owner: str) -> None:
    dataset_id, stanzas = read_stanzas(world.folder)
    assert [stanza.kind for stanza in stanzas] == ["share"] * 3
    with pytest.raises(NoStanza):
        identity(owner).unwrap(dataset_id, stanzas)
    with pytest.raises(WrongContext):
        open_unnamed_model(world.folder, identity(owner).unwrap)


@pytest.mark.claim("C140")
def test_another_recipes_guest_gets_no_key_even_where_all_owners_approve_it(
    world: HandedOn, made: DatasetDescription
) -> None:
    """Its owner registers it for a recipe of its own, and every owner approves that recipe."""
    other = world.quorum.first.lock(named("lets-all-out"))
    world.adopt(made, other)
    world.approve(made, other, A)
    world.assert_refused(NoStanza, lambda: world.obtain(made, other))
    of_other = RecipeBinding(other.app_id, other.compose_hash, identity(C).public.owner_id)
    relabelled = [
        replace(stanza, recipient=BrokerBinding.of(of_other, item.broker_id).recipient)
        for stanza, item in zip(read_stanzas(world.folder)[1], world.keys_for(), strict=True)
    ]
    world.assert_refused(WrongKey, lambda: world.obtain(made, other, stanzas=relabelled))


@pytest.mark.claim("C140")
def test_before_its_owner_adopts_it_and_owners_approve_nobody_gets_a_key(
    world: HandedOn, made: DatasetDescription
) -> None:
    world.assert_refused(ApprovalsMissing, lambda: world.obtain(made))
    world.approve(made, world.room, C)
    world.assert_refused(ApprovalsMissing, lambda: world.obtain(made))


# --- C141: the model that the run made, and no other ---------------------------------------------


@pytest.mark.claim("C141")
def test_a_model_that_the_operator_made_is_not_the_runs(
    world: HandedOn, made: DatasetDescription, tmp_path: Path
) -> None:
    """The brokers' keys are public: anyone can seal a dataset to them."""
    signed = world.hand_on(tmp_path / "signed")
    with pytest.raises(SubjectMismatch):
        require_named_files(signed, world.folder)


@pytest.mark.claim("C141")
def test_a_swapped_model_gets_no_key_and_does_not_open(
    world: HandedOn, made: DatasetDescription, tmp_path: Path
) -> None:
    world.adopt(made)
    forged = described(world.hand_on(tmp_path / "forged"))
    stanzas = read_stanzas(tmp_path / "forged" / MODEL_FOLDER)[1]
    world.assert_refused(
        DatasetMismatch, lambda: world.obtain(made, root=forged.root, stanzas=stanzas)
    )
    key = world.obtain(made).data_keys[made.dataset_id]
    with pytest.raises(SealtrainError):
        SealedDataset.open(tmp_path / "forged" / MODEL_FOLDER, key, root=made.root)
    mixed = tmp_path / "mixed"
    shutil.copytree(world.folder, mixed)
    shard = mixed / "shard-00001.sealed"
    data = bytearray(shard.read_bytes())
    data[-20_000] ^= 1
    shard.write_bytes(data)
    with (
        SealedDataset.open(mixed, key, root=made.root) as opened,
        pytest.raises(RootMismatch),
        opened.open_file("model.safetensors") as file,
    ):
        file.read()


# --- C142: consent that ended --------------------------------------------------------------------


@pytest.mark.claim("C142")
def test_a_withdrawn_model_is_released_to_nobody(world: HandedOn, made: DatasetDescription) -> None:
    world.adopt(made)
    for each_world in world.quorum.worlds:
        withdrawal = Withdrawal.of(
            [made.dataset_id],
            consortium_id=each_world.consortium.consortium_id,
            owner=identity(C).public,
            signed_at=each_world.clock(),
        )
        signed = sign_owned(withdrawal, identity(C).signer)
        each_world.broker.registry.hand_in(Withdrawal.entry_kind, document_of(signed))
    world.assert_refused(DatasetWithdrawn, lambda: world.obtain(made))


@pytest.mark.claim("C142")
def test_a_revoked_recipe_gets_no_model(world: HandedOn, made: DatasetDescription) -> None:
    world.adopt(made)
    for each_world in world.quorum.worlds:
        each_world.submit(each_world.decision(B, revoke=True, target=world.room.target))
    world.assert_refused(ApprovalRevoked, lambda: world.obtain(made))
