"""An owner's signed decision on a recipe: approve or revoke. See ``spec/approvals.md``.

A decision is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE``. ``verify_decision`` checks

1. the envelope carries exactly one signature,
2. by the signing key of an owner of this consortium,
3. that verifies,
4. over a canonical document that follows the format,
5. that names this consortium,
6. where the time is given, that an approval is not dated in the future,
7. and, where the reader is a broker or its ledger, that it names this broker.

A revocation is never refused for its date: a wrong clock must not keep an owner from stopping.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue, parse_canonical
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Hex32, Hex40, Hex64, RealTime, StrictModel, load_model
from sealtrain.base.secret import Random
from sealtrain.consortium.errors import ApprovalUnknown
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.standing_terms import StandingTerms
from sealtrain.errors import DataInvalid
from sealtrain.signing import dsse
from sealtrain.signing.errors import BrokerMismatch, StatementInvalid
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

PAYLOAD_TYPE = "application/vnd.sealtrain.decision+json"
CLOCK_SKEW = 300
"""Seconds by which an owner's clock may be ahead of the reader's."""
MAX_PINS = 1024
MAX_NAMED_BROKERS = 64
MAX_LIFTS = 64
KMS_NEEDS = Needs(actions=("approve",), owners=())
"""Needs that an approval of a dstack KMS states: it runs no recipe and reads no data."""
_KMS_TAG = b"sealtrain/dstack-kms/v1:"


def kms_target(*, app_id: str, compose_hash: str) -> Target:
    """The target of an approval of a dstack KMS, which runs no recipe.

    See spec/boot-authority.md §3.

    Args:
        app_id: 40 hex digits.
        compose_hash: SHA-256 of its deployment document, 64 hex digits.
    """
    mark = sha256_hex(_KMS_TAG + compose_hash.encode("ascii"))
    return Target(app_id=app_id, compose_hash=compose_hash, recipe_hash=mark)


class DatasetPin(StrictModel):
    """A dataset as the owner knows it: its id and the root of its ciphertext."""

    dataset_id: Hex32
    root: Hex64


class Decision(StrictModel):
    """The signed document. Build it with ``approve`` or ``revoke``."""

    version: Literal[2]
    consortium_id: Hex64
    brokers: tuple[Hex64, ...] = Field(min_length=1, max_length=MAX_NAMED_BROKERS)
    """Ids of the brokers that it is for; no other counts it. In order, none twice."""
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    datasets: tuple[DatasetPin, ...] = Field(max_length=MAX_PINS)
    """Datasets the owner pins; may be empty. In the order of their ids, none twice."""
    needs: Needs | None
    """Needs of the recipe, as the owner read them; ``None`` in a revocation."""
    lifts: tuple[Hex64, ...] = Field(max_length=MAX_LIFTS)
    """Digests of the owner's own revocations of the target that it takes back; in order."""
    decision: Literal["approve", "revoke"]
    nonce: Hex32
    """16 random bytes: two decisions of one owner never share it."""
    signed_at: RealTime
    not_after: RealTime | None
    """Last second of an approval; ``None`` in a revocation, which never ends."""
    standing: StandingTerms | None = Field(default=None, exclude_if=lambda value: value is None)
    """How often it may run; left out where no number is stated."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        ids = [pin.dataset_id for pin in self.datasets]
        if ids != sorted(set(ids)):
            raise ValueError("datasets must stand in the order of their ids, none twice")
        if list(self.brokers) != sorted(set(self.brokers)):
            raise ValueError("brokers must stand in the order of their ids, none twice")
        signed = from_rfc3339(self.signed_at)
        ends = None if self.not_after is None else from_rfc3339(self.not_after)
        if list(self.lifts) != sorted(set(self.lifts)):
            raise ValueError("lifted revocations must stand in order, none twice")
        said = (ends, self.needs) != (None, None) or bool(ids or self.lifts)
        if self.standing is None and "standing" in self.model_fields_set:
            raise ValueError("standing that states nothing is left out")
        said = said or self.standing is not None
        if self.decision == "revoke" and said:
            raise ValueError("a revocation has no end, pins and lifts nothing, states no needs")
        if self.decision == "approve" and self.needs is None:
            raise ValueError("an approval states what the recipe needs")
        if self.decision == "approve" and (ends is None or ends <= signed):
            raise ValueError("an approval must end after it was signed")
        return self

    @classmethod
    def approve(  # noqa: PLR0913  # what the document holds
        cls,
        *,
        consortium_id: str,
        brokers: Iterable[str],
        target: Target,
        needs: Needs,
        datasets: Iterable[DatasetPin] = (),
        lifts: Iterable[str] = (),
        signed_at: int,
        not_after: int,
        standing: StandingTerms | None = None,
        random: Random = os.urandom,
    ) -> Self:
        """Write an approval.

        Args:
            consortium_id: The owner's consortium.
            brokers: Ids of the brokers that it is for, in any order.
            target: What is approved.
            needs: Of the recipe (``recipe.needs``); an approval that states others does not count.
            datasets: Datasets to pin, in any order.
            lifts: Digests of the owner's own revocations to take back, in any order.
            signed_at: Now, seconds since the epoch.
            not_after: Last second it is valid, after ``signed_at``.
            standing: How often it may run, within which budget, on which series.
            random: Source of the nonce.

        Raises:
            StatementInvalid: The document would break its format.
        """
        pins: list[JsonValue] = sorted(
            (pin.to_dict() for pin in datasets), key=lambda pin: str(pin["dataset_id"])
        )
        fields: dict[str, JsonValue] = {
            "datasets": pins,
            "needs": needs.to_dict(),
            "lifts": [*sorted(set(lifts))],
            **({} if standing is None else {"standing": standing.to_dict()}),
        }
        named = consortium_id, tuple(brokers)
        return cls._write("approve", named, target, fields, signed_at, not_after, random)

    @classmethod
    def revoke(
        cls,
        *,
        consortium_id: str,
        brokers: Iterable[str],
        target: Target,
        signed_at: int,
        random: Random = os.urandom,
    ) -> Self:
        """Write a revocation; arguments and errors as ``approve``."""
        fields: dict[str, JsonValue] = {"datasets": [], "needs": None, "lifts": []}
        named = consortium_id, tuple(brokers)
        return cls._write("revoke", named, target, fields, signed_at, None, random)

    @classmethod
    def _write(
        cls,
        decision: str,
        named: tuple[str, tuple[str, ...]],
        target: Target,
        fields: dict[str, JsonValue],
        signed_at: int,
        not_after: int | None,
        random: Random,
    ) -> Self:
        consortium_id, brokers = named
        document: dict[str, JsonValue] = {
            "version": 2,
            "consortium_id": consortium_id,
            "brokers": [*sorted(set(brokers))],
            **target.to_dict(),
            **fields,
            "decision": decision,
            "nonce": random(16).hex(),
            "signed_at": to_rfc3339(signed_at),
            "not_after": None if not_after is None else to_rfc3339(not_after),
        }
        return load_model(cls, document, StatementInvalid, "decision")

    @property
    def target(self) -> Target:
        """What is decided on."""
        return Target(
            app_id=self.app_id, compose_hash=self.compose_hash, recipe_hash=self.recipe_hash
        )

    def is_for(self, broker_ids: Iterable[str]) -> bool:
        """Whether it names a broker by one of the broker's ids."""
        return not set(self.brokers).isdisjoint(broker_ids)

    @property
    def signed(self) -> int:
        """``signed_at`` in seconds since the epoch."""
        return from_rfc3339(self.signed_at)

    @property
    def ends(self) -> int | None:
        """``not_after`` in seconds since the epoch."""
        return None if self.not_after is None else from_rfc3339(self.not_after)

    @property
    def series(self) -> tuple[str, ...]:
        """Names of series that a standing approval admits."""
        return (
            () if self.standing is None else tuple(series.name for series in self.standing.series)
        )

    def pins(self) -> dict[str, str]:
        """Dataset id → root."""
        return {pin.dataset_id: pin.root for pin in self.datasets}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDecision:
    """A decision whose signature was verified, and its signer."""

    owner: PublicIdentity
    decision: Decision
    envelope: dsse.Envelope
    digest: str
    """SHA-256 of the envelope's bytes, 64 hex digits."""

    @property
    def entry_kind(self) -> str:
        """Kind of the ledger's entry about it."""
        return "approval" if self.decision.decision == "approve" else "revocation"

    @property
    def entry(self) -> dict[str, JsonValue]:
        """Body of the ledger's entry about it."""
        return {
            "owner": self.owner.name,
            "decision": self.decision.decision,
            **self.decision.target.to_dict(),
            "digest": self.digest,
            "envelope": self.envelope.to_dict(),
        }


def sign_decision(decision: Decision, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of ``decision`` under an owner's signing key."""
    return dsse.sign(decision.to_bytes(), PAYLOAD_TYPE, signer)


def verify_decision(
    envelope: dsse.Envelope,
    consortium: Consortium,
    *,
    now: int | None = None,
    skew: int = CLOCK_SKEW,
    broker_ids: Collection[str] | None = None,
) -> SignedDecision:
    """Return the decision of an owner of ``consortium``, once the module's checks hold.

    Args:
        envelope: As received.
        consortium: The consortium that must be named and whose owners may sign.
        now: The reader's time; ``None`` leaves check 6 to the tally.
        skew: Seconds an owner's clock may be ahead.
        broker_ids: Present and former ids of the broker that reads it, or whose ledger holds it;
            ``None`` where a reader compares them itself.

    Raises:
        BrokerMismatch: It is for other brokers.
        SignatureInvalid: Not one signature, another payload type, or it does not verify.
        ApprovalUnknown: No owner here signed it, or it is about another consortium.
        StatementInvalid: Signed by an owner but malformed, or dated in the future.
    """
    owner = consortium.signer_of(envelope, "decision")
    payload = dsse.verify(envelope, [owner.signing_bytes], payload_type=PAYLOAD_TYPE)
    try:
        document = parse_canonical(payload)
    except DataInvalid as error:
        raise StatementInvalid(f"decision: {error}", check="decision", owner=owner.name) from error
    decision = load_model(Decision, document, StatementInvalid, "decision")
    if decision.consortium_id != consortium.consortium_id:
        raise ApprovalUnknown(
            "the decision is about another consortium",
            check="consortium",
            owner=owner.name,
            got=decision.consortium_id,
            expected=consortium.consortium_id,
            hint="decide again with the current consortium file",
        )
    if now is not None and decision.decision == "approve" and decision.signed > now + skew:
        raise StatementInvalid(
            "the approval is dated in the future",
            check="signed at",
            owner=owner.name,
            got=decision.signed_at,
            expected=f"at most {to_rfc3339(now + skew)}",
            hint="set the owner's clock and approve again",
        )
    if broker_ids is not None and not decision.is_for(broker_ids):
        raise BrokerMismatch(
            "the decision is for other brokers",
            check="decision brokers",
            owner=owner.name,
            got=" or ".join(decision.brokers),
            expected=" or ".join(broker_ids),
            hint="its owner decides at this broker too: --broker",
        )
    return SignedDecision(owner=owner, decision=decision, envelope=envelope, digest=envelope.digest)


def not_overtaken(signed: SignedDecision, recorded: Iterable[SignedDecision]) -> SignedDecision:
    """Return an approval that its owner signed after every recorded one of the same target.

    A decision that was held back on its way does not replace a newer one.

    Args:
        signed: As received.
        recorded: Verified decisions.

    Raises:
        StatementInvalid: A newer one is recorded.
    """
    newest = max(
        (
            earlier.decision.signed
            for earlier in recorded
            if earlier.owner == signed.owner
            and earlier.decision.decision == "approve"
            and earlier.decision.target == signed.decision.target
        ),
        default=0,
    )
    if signed.decision.signed < newest:
        raise StatementInvalid(
            "a newer approval by the same owner is recorded",
            check="order of approvals",
            owner=signed.owner.name,
            got=signed.decision.signed_at,
            expected=f"at least {to_rfc3339(newest)}",
            hint="approve again; if it is new, the owner's clock was set back",
        )
    return signed
