"""Documents that an owner signs about their own data: the checks that all of them share.

1. the envelope carries exactly one signature,
2. by the signing key of an owner of this consortium,
3. that verifies,
4. over a canonical document that follows its format, and
5. that names this consortium, and the signer as the owner.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, Self, TypeVar

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.models import Document, Hex32, Hex64, OwnerName, RealTime
from sealtrain.base.secret import Random
from sealtrain.consortium.errors import ApprovalUnknown, DatasetMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import PublicIdentity


class OwnedDocument(Document):
    """The fields that state owner and signing time; a subclass adds the document's subject."""

    payload_type: ClassVar[str]
    """Of the envelope."""
    refusal = StatementInvalid

    version: Literal[1]
    consortium_id: Hex64
    owner: OwnerName
    owner_id: Hex64
    nonce: Hex32
    signed_at: RealTime

    @classmethod
    def write(
        cls,
        own: dict[str, JsonValue],
        *,
        consortium_id: str,
        owner: PublicIdentity,
        signed_at: int,
        random: Random = os.urandom,
    ) -> Self:
        """Write a document.

        Args:
            own: The fields that this kind has besides.
            consortium_id: The owner's consortium.
            owner: The owner who signs it.
            signed_at: Now, seconds since the epoch.
            random: Source of the nonce.

        Raises:
            StatementInvalid: The document would break its format.
        """
        document: dict[str, JsonValue] = {
            "version": 1,
            "consortium_id": consortium_id,
            "owner": owner.name,
            "owner_id": owner.owner_id,
            "nonce": random(16).hex(),
            "signed_at": to_rfc3339(signed_at),
            **own,
        }
        return cls.from_dict(document)


class RecordedBefore(Protocol):
    """What a ledger held before a document: a broker asks its database, an audit what it read."""

    def newest(self, kind: str, owner: str) -> str | None:
        """Digest of the newest document of a kind by an owner; ``None`` where there is none."""

    def owners_of(self, dataset_id: str) -> Collection[tuple[str, str]]:
        """Name and id of each owner that registered a dataset."""


class RecordedDocument(OwnedDocument):
    """A document that owners hand to brokers, whose ledgers record it (``consortium.documents``).

    A broker and an audit judge it by the same rules: ``verify_owned``, then ``follow``.
    """

    entry_kind: ClassVar[str]
    """Of its ledger entry."""
    path: ClassVar[str]
    """Of a broker's API, where it is posted."""
    summary: ClassVar[str]
    """What handing it in does, for the API's description."""

    def ledger_fields(self) -> dict[str, JsonValue]:
        """Fields of the ledger's entry besides owner, digest and envelope."""
        return {}

    def subjects(self) -> tuple[str, ...]:
        """What it is about, by which a broker finds it again; nothing by default."""
        return ()

    def follow(self, before: RecordedBefore) -> None:
        """Return if it may come after what was recorded before; any may by default.

        Raises:
            Refused: It may not.
        """


Owned = TypeVar("Owned", bound=OwnedDocument)
Recorded = TypeVar("Recorded", bound=RecordedDocument)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDocument(Generic[Owned]):
    """A document whose signature was verified, and its signer."""

    owner: PublicIdentity
    document: Owned
    envelope: dsse.Envelope
    digest: str
    """SHA-256 of the envelope's bytes, 64 hex digits."""


def entry_of(signed: SignedDocument[Recorded]) -> dict[str, JsonValue]:
    """Body of the ledger's entry about a document."""
    return {
        "owner": signed.owner.name,
        "owner_id": signed.owner.owner_id,
        **signed.document.ledger_fields(),
        "digest": signed.digest,
        "envelope": signed.envelope.to_dict(),
    }


def sign_owned(document: OwnedDocument, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of ``document`` under its owner's signing key."""
    return dsse.sign(document.to_bytes(), document.payload_type, signer)


def verify_owned(
    cls: type[Owned], envelope: dsse.Envelope, consortium: Consortium
) -> SignedDocument[Owned]:
    """Return a document's signer and the document, once the module's checks hold.

    Args:
        cls: Its format.
        envelope: As received.
        consortium: The consortium that must be named and whose owners may sign.

    Raises:
        SignatureInvalid: Not one signature, another payload type, or it does not verify.
        ApprovalUnknown: No owner here signed it, or it is about another consortium.
        StatementInvalid: Signed by an owner but malformed.
        DatasetMismatch: An owner signs for another owner.
    """
    what = cls.what
    owner = consortium.signer_of(envelope, what)
    payload = dsse.verify(envelope, [owner.signing_bytes], payload_type=cls.payload_type)
    document = cls.from_bytes(payload)
    if document.consortium_id != consortium.consortium_id:
        raise ApprovalUnknown(
            f"the {what} is about another consortium",
            check="consortium",
            owner=owner.name,
            got=document.consortium_id,
            expected=consortium.consortium_id,
            hint="sign again with the current consortium file",
        )
    if (document.owner, document.owner_id) != (owner.name, owner.owner_id):
        raise DatasetMismatch(
            f"the {what} names another owner than its signer",
            check="dataset owner",
            owner=owner.name,
            got=f"{document.owner} {document.owner_id}",
            expected=f"{owner.name} {owner.owner_id}",
            hint="name only your own datasets and sign again",
        )
    return SignedDocument(owner=owner, document=document, envelope=envelope, digest=envelope.digest)
