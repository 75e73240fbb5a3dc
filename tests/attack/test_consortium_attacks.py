"""Somebody wants a recipe to run that the owners did not approve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.secret import Secret
from sealtrain.consortium.approvals import (
    ApprovalTally,
    Decision,
    SignedDecision,
    require,
    sign_decision,
    tally,
    verify_decision,
)
from sealtrain.consortium.datasets import PAYLOAD_TYPE as DATASET_TYPE
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.decisions import PAYLOAD_TYPE as DECISION_TYPE
from sealtrain.consortium.errors import (
    ApprovalExpired,
    ApprovalRevoked,
    ApprovalsMissing,
    ApprovalUnknown,
)
from sealtrain.consortium.members import Consortium
from sealtrain.errors import RecipeChanged, Refused, SignatureInvalid
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing import dsse, statement
from sealtrain.signing.dsse import Ed25519Signer, Envelope
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

pytestmark = [pytest.mark.claim("C10"), pytest.mark.claim("C11"), pytest.mark.claim("C12")]

NOW = 1_772_366_400
DAY = 86_400
TARGET = Target(app_id="0a" * 20, compose_hash="0b" * 32, recipe_hash="0c" * 32)
EVIL = Target(app_id="ea" * 20, compose_hash="eb" * 32, recipe_hash="ec" * 32)


def owner(name: str, number: int) -> tuple[PublicIdentity, Ed25519Signer]:
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    sealing = HpkePrivateKey(Secret(signer.public)).public.raw
    return PublicIdentity.of(name, signing_key=signer.public, sealing_key=sealing), signer


(ADA, ADA_KEY), (BEN, BEN_KEY), (CYD, CYD_KEY) = (
    owner(name, number) for number, name in enumerate(("ada", "ben", "cyd"), 1)
)
EVE, EVE_KEY = owner("eve", 9)
NEEDS = Needs(actions=("approve", "export_model"), owners=("ada",))
LABS = Consortium.found(name="labs", owners=[ADA, BEN, CYD], approve=2, own_data_consent=False)


def approval(key: Ed25519Signer, target: Target = TARGET, **changes: Any) -> Envelope:
    fields = {"signed_at": NOW, "not_after": NOW + DAY, "needs": NEEDS, **changes}
    of = fields.pop("of", LABS)
    named = {"consortium_id": of.consortium_id, "brokers": ["b1" * 32]}
    decision = Decision.approve(**named, target=target, **fields)
    return sign_decision(decision, key)


def revocation(key: Ed25519Signer, target: Target = TARGET) -> Envelope:
    named = {"consortium_id": LABS.consortium_id, "brokers": ["b1" * 32]}
    decision = Decision.revoke(**named, target=target, signed_at=NOW)
    return sign_decision(decision, key)


@dataclass
class Board:
    """What a broker does with what arrives: verify, keep in order, count."""

    kept: list[SignedDecision] = field(default_factory=list)

    def submit(self, *envelopes: Envelope) -> Board:
        for envelope in envelopes:
            read = Envelope.from_bytes(envelope.to_bytes())
            self.kept.append(verify_decision(read, LABS, now=NOW))
        return self

    def status(self, target: Target = TARGET, now: int = NOW) -> ApprovalTally:
        return tally(self.kept, LABS, target, now, needs=NEEDS)


def test_two_of_three_honest_owners_unseal() -> None:
    assert require(Board().submit(approval(ADA_KEY), approval(BEN_KEY)).status()).progress == 2


def test_one_owner_short_stays_sealed_however_often_they_approve() -> None:
    board = Board().submit(*(approval(ADA_KEY) for _ in range(20)))
    assert board.status().progress == 1
    with pytest.raises(ApprovalsMissing):
        require(board.status())


def test_a_copy_of_an_approval_is_no_second_owner() -> None:
    once = approval(ADA_KEY)
    board = Board().submit(once, once, once)
    assert board.status().progress == 1


def test_an_outsider_is_not_heard_and_changes_nothing() -> None:
    board = Board().submit(approval(ADA_KEY))
    for envelope in (approval(EVE_KEY), revocation(EVE_KEY)):
        with pytest.raises(ApprovalUnknown):
            board.submit(envelope)
    assert (board.status().progress, board.status().revoked_by) == (1, ())


def test_an_outsider_with_an_owners_name_is_not_heard() -> None:
    twin, twin_key = owner("ada", 8)
    assert twin.name == ADA.name
    with pytest.raises(ApprovalUnknown):
        Board().submit(approval(twin_key))


def test_a_signature_under_anothers_key_id_is_refused() -> None:
    for forger in (EVE_KEY, BEN_KEY):
        genuine = approval(forger)
        claimed = dsse.Signature(keyid=ADA_KEY.key_id, sig=genuine.signatures[0].sig)
        forged = Envelope(
            payload=genuine.payload, payload_type=genuine.payload_type, signatures=(claimed,)
        )
        with pytest.raises(SignatureInvalid):
            Board().submit(forged)


def test_a_second_signature_does_not_make_a_second_owner() -> None:
    payload = approval(ADA_KEY).payload
    with pytest.raises(SignatureInvalid, check=carries(check="signatures", got="2")):
        Board().submit(dsse.sign(payload, DECISION_TYPE, ADA_KEY, BEN_KEY))


def test_an_approval_given_to_another_consortium_of_the_same_owners_is_refused() -> None:
    for other in (
        Consortium.found(name="labs", owners=[ADA, BEN, CYD], approve=3),
        Consortium.found(name="labs-two", owners=[ADA, BEN, CYD], approve=2),
        Consortium.found(name="labs", owners=[ADA, BEN], approve=2),
    ):
        with pytest.raises(ApprovalUnknown, check=carries(check="consortium")):
            Board().submit(approval(ADA_KEY, of=other))


def test_approvals_of_a_harmless_recipe_do_not_open_another() -> None:
    board = Board().submit(approval(ADA_KEY), approval(BEN_KEY), approval(CYD_KEY))
    with pytest.raises(RecipeChanged):
        require(board.status(EVIL))
    mixes = [
        Target(app_id=app.app_id, compose_hash=compose.compose_hash, recipe_hash=recipe.recipe_hash)
        for app in (TARGET, EVIL)
        for compose in (TARGET, EVIL)
        for recipe in (TARGET, EVIL)
    ]
    assert sum(not board.status(target).sealed for target in mixes) == 1


@pytest.mark.parametrize("name", ["app_id", "compose_hash", "recipe_hash", "not_after", "decision"])
def test_a_field_changed_after_signing_is_refused(name: str) -> None:
    genuine = approval(ADA_KEY)
    values = {
        **EVIL.to_dict(),
        "not_after": "2036-01-01T00:00:00Z",
        "decision": "revoke",
    }
    document = {**parse_json(genuine.payload), name: values[name]}
    forged = Envelope(
        payload=canonical_json(document),
        payload_type=genuine.payload_type,
        signatures=genuine.signatures,
    )
    with pytest.raises(SignatureInvalid):
        Board().submit(forged)


def test_the_last_second_counts_and_the_next_one_does_not() -> None:
    board = Board().submit(approval(ADA_KEY), approval(BEN_KEY, not_after=NOW + 60))
    assert require(board.status(now=NOW + 60)).valid_until == NOW + 60
    with pytest.raises(ApprovalExpired):
        require(board.status(now=NOW + 61))


def test_an_old_approval_sent_again_does_not_undo_a_newer_one() -> None:
    long, short = approval(ADA_KEY), approval(ADA_KEY, not_after=NOW + 60)
    board = Board().submit(long, short, approval(BEN_KEY), long)
    with pytest.raises(ApprovalExpired):
        require(board.status(now=NOW + 61))


def test_nobody_approves_for_years_to_come_with_a_date_in_the_future() -> None:
    with pytest.raises(StatementInvalid, check=carries(check="signed at")):
        Board().submit(approval(ADA_KEY, signed_at=NOW + 301, not_after=NOW + 10 * DAY))


def test_any_one_owner_stops_the_recipe_for_good() -> None:
    board = Board().submit(approval(ADA_KEY), approval(BEN_KEY), revocation(CYD_KEY))
    for more in ([], [approval(CYD_KEY)], [approval(ADA_KEY), approval(BEN_KEY)]):
        with pytest.raises(ApprovalRevoked) as caught:
            require(board.submit(*more).status(now=NOW + 60))
        assert caught.value.owner == "cyd"
    assert require(Board(board.kept[:2]).status()).progress == 2  # before it, it ran


def test_a_revocation_sent_before_the_approvals_stops_as_well() -> None:
    board = Board().submit(revocation(CYD_KEY), approval(ADA_KEY), approval(BEN_KEY))
    with pytest.raises(ApprovalRevoked):
        require(board.status())


def test_a_revocation_cannot_be_turned_into_an_approval() -> None:
    genuine = revocation(CYD_KEY)
    document = {
        **parse_json(genuine.payload),
        "decision": "approve",
        "not_after": "2036-01-01T00:00:00Z",
    }
    forged = Envelope(
        payload=canonical_json(document),
        payload_type=genuine.payload_type,
        signatures=genuine.signatures,
    )
    with pytest.raises(SignatureInvalid):
        Board().submit(forged)


def test_what_an_owner_signed_for_another_purpose_is_no_decision() -> None:
    payload = approval(ADA_KEY).payload
    other_types = [DATASET_TYPE, statement.PAYLOAD_TYPE, "application/json"]
    for payload_type in other_types:
        signed = dsse.sign(payload, payload_type, ADA_KEY)
        relabelled = Envelope(
            payload=payload, payload_type=DECISION_TYPE, signatures=signed.signatures
        )
        for envelope in (signed, relabelled):
            with pytest.raises(SignatureInvalid):
                Board().submit(envelope)
        with pytest.raises(Refused):
            verify_dataset(signed, LABS)
    raw = dsse.Signature(keyid=ADA_KEY.key_id, sig=ADA_KEY.sign(payload))
    bare = Envelope(payload=payload, payload_type=DECISION_TYPE, signatures=(raw,))
    with pytest.raises(SignatureInvalid):
        Board().submit(bare)
