"""A guest uses no key from an answer that anybody touched, or that another broker gave."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_world import ROOT, ReleaseWorld, Wire, release_world
from world import simulated_pki

from sealtrain.attest.errors import (
    ComposeHashMismatch,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.grant import renew
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.receipts import RECEIPT_PAYLOAD_TYPE
from sealtrain.errors import SealtrainError, SignatureInvalid
from sealtrain.release.errors import AnswerInvalid
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing import dsse
from sealtrain.signing.errors import BrokerMismatch, ProofInvalid

pytestmark = pytest.mark.claim("C18")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path_factory.mktemp("transit")) as made:
        yield made


@pytest.fixture(autouse=True)
def _honest_again(world: ReleaseWorld) -> Iterator[None]:
    yield
    world.wire = Wire(broker=world.broker)


def flip(document: dict[str, Any], name: str) -> None:
    data = bytearray(from_base64(document[name]))
    data[len(data) // 2] ^= 1
    document[name] = to_base64(bytes(data))


def resigned(document: dict[str, Any], signer: dsse.Ed25519Signer, **changed: Any) -> None:
    """Replace the receipt by another, signed with ``signer``."""
    payload = json.loads(from_base64(document["receipt"]["payload"])) | changed
    envelope = dsse.sign(canonical_json(payload), RECEIPT_PAYLOAD_TYPE, signer)
    document["receipt"] = envelope.to_dict()


STRANGER = Keyring(Secret(bytes(32))).signer
BROKER = Keyring(Secret(ROOT)).signer

ANSWER_TAMPERINGS: dict[str, tuple[Callable[[dict[str, Any]], None], type[SealtrainError]]] = {
    "ciphertext altered": (lambda answer: flip(answer, "enc"), AnswerInvalid),
    "ciphertext emptied": (lambda answer: answer.update(enc=""), AnswerInvalid),
    "another run id": (lambda answer: answer.update(run_id="ab" * 16), AnswerInvalid),
    "receipt payload altered": (
        lambda answer: flip(answer["receipt"], "payload"),
        SignatureInvalid,
    ),
    "receipt signed by a stranger": (
        lambda answer: resigned(answer, STRANGER),
        SignatureInvalid,
    ),
    "receipt about another transcript": (
        lambda answer: resigned(answer, BROKER, transcript_digest="ab" * 32),
        AnswerInvalid,
    ),
    "receipt about another recipe": (
        lambda answer: resigned(answer, BROKER, recipe_hash="ab" * 32),
        AnswerInvalid,
    ),
    "receipt about fewer datasets": (
        lambda answer: resigned(answer, BROKER, datasets=[]),
        AnswerInvalid,
    ),
    "receipt that the ledger does not hold": (
        lambda answer: resigned(answer, BROKER, approved_by=["hospital-c"]),
        AnswerInvalid,
    ),
    "ledger entry altered": (
        lambda answer: answer["proof"]["entry"]["body"].update(simulated=False),
        ProofInvalid,
    ),
    "ledger path cut": (lambda answer: answer["proof"]["path"].pop(), ProofInvalid),
    "checkpoint altered": (
        lambda answer: answer["proof"].update(
            checkpoint=answer["proof"]["checkpoint"].replace(
                "sealtrain/ledger/", "sealtrain/other/"
            )
        ),
        SignatureInvalid,
    ),
}


@pytest.mark.parametrize("name", ANSWER_TAMPERINGS)
def test_an_answer_altered_in_transit(world: ReleaseWorld, name: str) -> None:
    tamper, error = ANSWER_TAMPERINGS[name]
    attested = world.attest()

    def only_answers_with_keys(document: dict[str, Any]) -> None:
        if "enc" in document:
            tamper(document)

    world.wire.on_answer = only_answers_with_keys
    with pytest.raises(error):
        world.obtain(attested=attested)


def test_an_unknown_field_in_an_answer(world: ReleaseWorld) -> None:
    attested = world.attest()
    world.wire.on_answer = lambda document: document.update(extra=1)
    with pytest.raises(SealtrainError):
        world.obtain(attested=attested)


@pytest.mark.negative(59)
def test_an_answer_replayed_from_an_earlier_release(world: ReleaseWorld) -> None:
    kept: list[dict[str, Any]] = []

    def keep(document: dict[str, Any]) -> None:
        if "enc" in document:
            kept.append(copy.deepcopy(document))

    world.wire.on_answer = keep
    run_id = os.urandom(16).hex()
    world.obtain(run_id=run_id)

    def replay(document: dict[str, Any]) -> None:
        if "enc" in document:
            document.clear()
            document.update(kept[0])

    world.wire.on_answer = replay
    with pytest.raises(AnswerInvalid):
        world.obtain(run_id=run_id, resume=True)


@pytest.mark.negative(59)
def test_only_the_sealed_keys_replayed_into_a_fresh_answer(world: ReleaseWorld) -> None:
    kept: list[str] = []
    world.wire.on_answer = lambda document: kept.append(document.get("enc", ""))
    run_id = os.urandom(16).hex()
    world.obtain(run_id=run_id)

    def replay(document: dict[str, Any]) -> None:
        if "enc" in document:
            document["enc"] = kept[-1]

    world.wire.on_answer = replay
    with pytest.raises(AnswerInvalid):
        world.obtain(run_id=run_id, resume=True)


@pytest.mark.negative(57)
def test_a_receipt_of_the_wrong_broker(world: ReleaseWorld) -> None:
    attested = replace(world.attest(), signing_key=STRANGER.public)
    with pytest.raises(BrokerMismatch):  # the broker finds out first
        world.obtain(attested=attested)


def test_a_ledger_of_another_consortium(world: ReleaseWorld) -> None:
    attested = world.attest()

    class Elsewhere:
        def __getattr__(self, name: str) -> Any:
            return "sealtrain/ledger/" + "ab" * 32 if name == "origin" else getattr(attested, name)

    with pytest.raises(SignatureInvalid):
        world.obtain(attested=Elsewhere())


def test_a_renewal_receipt_for_another_lease(world: ReleaseWorld) -> None:
    guest = world.guest()
    grant = world.obtain(guest=guest)
    attested = world.attest()

    def other_lease(document: dict[str, Any]) -> None:
        if "receipt" in document:
            resigned(
                document,
                BROKER,
                lease={"lease_id": "ab" * 32, "not_after": "2126-01-01T00:00:00Z"},
            )

    world.wire.on_answer = other_lease
    with pytest.raises(AnswerInvalid):
        renew(world.wire, attested, world.collect(guest), grant)


def swap_first_key(document: dict[str, Any]) -> None:
    mine = HpkePrivateKey(Secret(bytes(32))).public.raw
    document["keys"][0]["public_key"] = to_base64(mine)


KEYS_TAMPERINGS: dict[str, tuple[Callable[[dict[str, Any]], None], type[SealtrainError]]] = {
    "another key for an owner": (swap_first_key, ReportDataMismatch),
    "another signing key": (
        lambda keys: keys.update(signing_key=to_base64(STRANGER.public)),
        ReportDataMismatch,
    ),
    "an old nonce": (lambda keys: keys.update(nonce="ab" * 32), AnswerInvalid),
    "another recipe": (lambda keys: keys.update(compose_hash="ab" * 32), AnswerInvalid),
    "another consortium": (lambda keys: keys.update(consortium_id="ab" * 32), AnswerInvalid),
    "an owner left out": (lambda keys: keys["keys"].pop(), AnswerInvalid),
    "owners in another order": (lambda keys: keys["keys"].reverse(), AnswerInvalid),
}


@pytest.mark.parametrize("name", KEYS_TAMPERINGS)
@pytest.mark.negative(55)
def test_a_brokers_keys_altered_in_transit(world: ReleaseWorld, name: str) -> None:
    tamper, error = KEYS_TAMPERINGS[name]
    world.wire.on_answer = tamper
    with pytest.raises(error):
        world.attest()


@pytest.mark.negative(56)
def test_a_brokers_statement_replayed(world: ReleaseWorld) -> None:
    kept: list[dict[str, Any]] = []
    world.wire.on_answer = lambda document: kept.append(copy.deepcopy(document))
    world.attest()

    def replay(document: dict[str, Any]) -> None:
        nonce = document["nonce"]
        document.update(kept[0])
        document["nonce"] = nonce

    world.wire.on_answer = replay
    with pytest.raises(ReportDataMismatch):
        world.attest()


@pytest.mark.negative(57)
def test_a_broker_that_runs_something_else(world: ReleaseWorld) -> None:
    pin = world.pin.model_copy(update={"compose_hash": "ab" * 32})
    with pytest.raises(ComposeHashMismatch):
        _fetch(world, pin)


@pytest.mark.negative(57)
def test_a_broker_under_another_root(world: ReleaseWorld, tmp_path: Path) -> None:
    with (
        release_world(tmp_path, guest_pki=simulated_pki("somebody else")) as other,
        pytest.raises(QuoteRootUntrusted),
    ):
        _fetch(world, world.pin, other.wire)


def test_a_simulated_broker_under_a_policy_for_hardware(world: ReleaseWorld) -> None:
    policy = world.policy.to_dict() | {"platform": "dstack", "root": "intel"}
    pin = world.pin.model_copy(update={"appraisal": policy_from_dict(policy)})
    with pytest.raises(SimulatedEvidence):
        _fetch(world, pin)


def test_a_broker_of_another_consortium(world: ReleaseWorld, tmp_path: Path) -> None:
    attested = world.attest()
    with (
        release_world(tmp_path, owners=("hospital-a", "hospital-b"), approved_by=()) as other,
        pytest.raises(ConsortiumMismatch),
    ):
        world.obtain(wire=other.wire, attested=attested)


def _fetch(world: ReleaseWorld, pin: BrokerPin, wire: Wire | None = None) -> AttestedBroker:
    return world.keys_from(wire or world.wire, pin)
