"""What a submitter signs about a run: a submission, and a stop. See ``spec/run-control.md``.

A submission asks for one run of an approved document with a run ticket. Its id follows from name,
target and ticket, so that signing it again asks for no second run. It approves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import StringConstraints, model_validator

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Document, Hex32, Hex40, Hex64, OwnerName, RealTime
from sealtrain.base.secret import Random
from sealtrain.consortium.errors import ConsortiumMismatch, SignerUnknown
from sealtrain.errors import SignatureInvalid
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.target import Target

AHEAD_SECONDS: Final = 300
"""Seconds that a document may be signed ahead of the broker's clock, or an event before it."""
LONGEST_SECONDS: Final = 30 * 24 * 3600
"""Longest time from signing to the last second of a first claim."""
MAX_TICKET_BYTES: Final = 128 << 10
_ID_TAG: Final = b"sealtrain/submission/v1:"

KeyId = Annotated[str, StringConstraints(pattern=r"^ed25519:[0-9a-f]{64}$")]
"""Name of a signing key (``signing.ed25519.key_id``)."""


class ControlDocument(Document):
    """What a signed document of run control has: its consortium, its nonce and its time."""

    payload_type: ClassVar[str]
    """Of the envelope."""
    entry_kind: ClassVar[str]
    """Of the ledger entry that records it."""
    path: ClassVar[str]
    """Of a broker's API, where it is posted."""
    refusal = StatementInvalid

    version: Literal[1]
    consortium_id: Hex64
    nonce: Hex32
    signed_at: RealTime

    @classmethod
    def write(
        cls, own: Mapping[str, JsonValue], *, signed_at: int, random: Random = os.urandom
    ) -> Self:
        """Write a document.

        Args:
            own: Every field but version, nonce and time.
            signed_at: Now, seconds since the epoch.
            random: Source of the nonce.

        Raises:
            StatementInvalid: It would break its format.
        """
        fixed = {"version": 1, "nonce": random(16).hex(), "signed_at": to_rfc3339(signed_at)}
        return cls.from_dict({**fixed, **own})

    @property
    def signed(self) -> int:
        """When it was signed, seconds since the epoch."""
        return from_rfc3339(self.signed_at)

    @property
    def signer_id(self) -> str:
        """Key id of its signer, as the document says."""
        raise NotImplementedError

    def ledger_fields(self) -> dict[str, JsonValue]:
        """Fields of its ledger entry besides signer, digest and envelope."""
        raise NotImplementedError

    def require_recent(self, now: int, *, past: bool) -> None:
        """Return if it was signed around now.

        Args:
            now: The broker's time, seconds since the epoch.
            past: Whether one that was signed too long ago is refused too.

        Raises:
            StatementInvalid: It was not.
        """
        ahead = self.signed - now
        if ahead > AHEAD_SECONDS or (past and -ahead > AHEAD_SECONDS):
            raise StatementInvalid(
                f"the {self.what} was not signed just now",
                check="signed at",
                got=self.signed_at,
                expected=f"within {AHEAD_SECONDS} s of {to_rfc3339(now)}",
                hint="set your clock, or the broker's",
            )


class Submission(ControlDocument):
    """The signed request for one run."""

    payload_type = "application/vnd.sealtrain.submission+json"
    entry_kind = "submission"
    path = "/v1/submissions"
    what = "submission"
    max_bytes = 160 << 10

    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    name: OwnerName
    """One name means one submission in a ledger."""
    ticket: dict[str, Any]
    """The run ticket; ``client.ticket`` reads it."""
    submitter: KeyId
    not_after: RealTime
    """Last second at which it may be claimed for the first time."""

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if len(canonical_json(self.ticket)) > MAX_TICKET_BYTES:
            raise ValueError(f"its ticket is longer than {MAX_TICKET_BYTES} bytes")
        signed, ends = from_rfc3339(self.signed_at), from_rfc3339(self.not_after)
        if not signed < ends <= signed + LONGEST_SECONDS:
            raise ValueError("not_after must be after signed_at, by 30 days at most")
        return self

    @classmethod
    def of(  # each field by its name
        cls,
        *,
        consortium_id: str,
        target: Target,
        name: str,
        ticket: Mapping[str, JsonValue],
        submitter: str,
        signed_at: int,
        not_after: int,
        random: Random = os.urandom,
    ) -> Self:
        """Write a submission.

        Args:
            target: The document to start.
            name: Of the submission; the same one again asks for nothing new.
            ticket: The run ticket without the fields that are not given.
            submitter: Key id of the signer.
            signed_at: Now, seconds since the epoch.
            not_after: Last second at which it may be claimed.
            random: Source of the nonce.

        Raises:
            StatementInvalid: It would break its format.
        """
        own: dict[str, JsonValue] = {
            "consortium_id": consortium_id,
            **target.to_dict(),
            "name": name,
            "ticket": dict(ticket),
            "submitter": submitter,
            "not_after": to_rfc3339(not_after),
        }
        return cls.write(own, signed_at=signed_at, random=random)

    @property
    def target(self) -> Target:
        """The document to start."""
        return Target(
            app_id=self.app_id, compose_hash=self.compose_hash, recipe_hash=self.recipe_hash
        )

    @property
    def ticket_digest(self) -> str:
        """SHA-256 of the canonical ticket, 64 hex digits."""
        return sha256_hex(canonical_json(self.ticket))

    @property
    def submission_id(self) -> str:
        """The id, 32 hex digits: it depends on what is asked for, not on who asks or when."""
        named = {
            "consortium_id": self.consortium_id,
            **self.target.to_dict(),
            "name": self.name,
            "ticket_digest": self.ticket_digest,
        }
        return sha256_hex(_ID_TAG + canonical_json(named))[:32]

    @property
    def ends(self) -> int:
        """``not_after``, seconds since the epoch."""
        return from_rfc3339(self.not_after)

    @property
    def has_store(self) -> bool:
        """Whether another guest can continue the run from an output store."""
        return isinstance(self.ticket.get("store"), str)

    @property
    def signer_id(self) -> str:
        """As ``ControlDocument.signer_id``."""
        return self.submitter

    def ledger_fields(self) -> dict[str, JsonValue]:
        """As ``ControlDocument.ledger_fields``."""
        return {
            "submission_id": self.submission_id,
            "name": self.name,
            **self.target.to_dict(),
            "ticket_digest": self.ticket_digest,
        }


class RunStop(ControlDocument):
    """The signed word that a submitted run is to end."""

    payload_type = "application/vnd.sealtrain.run-stop+json"
    entry_kind = "run-stop"
    path = "/v1/run-stops"
    what = "stop"
    max_bytes = 8 << 10

    submission_id: Hex32
    signer: KeyId

    @property
    def signer_id(self) -> str:
        """As ``ControlDocument.signer_id``."""
        return self.signer

    def ledger_fields(self) -> dict[str, JsonValue]:
        """As ``ControlDocument.ledger_fields``."""
        return {"submission_id": self.submission_id}


Control = TypeVar("Control", bound=ControlDocument)


def sign_control(document: ControlDocument, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of a document under its signer's key."""
    return dsse.sign(document.to_bytes(), document.payload_type, signer)


def verify_control(
    cls: type[Control], envelope: dsse.Envelope, keys: Mapping[str, bytes], consortium_id: str
) -> Control:
    """Return a signed document.

    Args:
        cls: Its format.
        envelope: As received.
        keys: Key id → raw Ed25519 key of everybody who may sign it.
        consortium_id: That it must name.

    Raises:
        SignatureInvalid: Not one signature, another payload type, or it does not verify.
        SignerUnknown: No such key signed it.
        StatementInvalid: It breaks its format, or names another signer.
        ConsortiumMismatch: It is about another consortium.
    """
    if len(envelope.signatures) != 1:
        raise SignatureInvalid(
            f"a {cls.what} carries exactly one signature",
            check="signatures",
            got=len(envelope.signatures),
            expected=1,
        )
    named = envelope.signatures[0].keyid
    key = keys.get(named)
    if key is None:
        raise SignerUnknown(
            f"none of the keys that may sign a {cls.what} here signed it",
            check="signer",
            got=named,
            hint="an owner signs it, or the broker's operator lists your public key",
        )
    document = cls.from_bytes(dsse.verify(envelope, [key], payload_type=cls.payload_type))
    if document.signer_id != named:
        raise StatementInvalid(
            f"the {cls.what} names another signer", check="signer", got=document.signer_id,
            expected=named,
        )  # fmt: skip
    if document.consortium_id != consortium_id:
        raise ConsortiumMismatch(
            f"the {cls.what} is about another consortium",
            check="consortium",
            got=document.consortium_id,
            expected=consortium_id,
        )
    return document
