"""A consortium names its successor: other owners, other keys, other thresholds.

See ``spec/succession.md``. A succession is an in-toto statement about the successor's document,
signed by owners of the predecessor. ``verify_succession`` checks

1. every signature is by an owner of the predecessor and verifies,
2. over a canonical statement of this type that follows the format,
3. whose predecessor is the document given, and whose subject is the successor in it,
4. the successor differs, and
5. as many owners signed as the predecessor asks for such a change.

A file holds the predecessor's document beside the envelope, so that it can be read by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Hex32, Hex64, RealTime, StrictModel, load_model
from sealtrain.base.secret import Random
from sealtrain.consortium.errors import ApprovalsMissing, ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.needs import PURPOSES
from sealtrain.signing.statement import PAYLOAD_TYPE, Subject, build, parse

PREDICATE_TYPE = "https://sealtrain.dev/attestations/succession/v1"
MAX_SUCCESSION_BYTES = 512 << 10
_SUBJECT = "consortium.json"
_MAX_LEDGERS = 16
_MAX_NOTE = 64 << 10

Amendment = Literal["amend_members", "amend_thresholds"]


class _Predicate(StrictModel):
    version: Literal[1]
    predecessor: Hex64
    successor: Consortium
    ledgers: tuple[str, ...] = Field(max_length=_MAX_LEDGERS)
    nonce: Hex32
    not_after: RealTime

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(len(note) > _MAX_NOTE for note in self.ledgers):
            raise ValueError("ledgers hold a note that is too long")
        if len(set(self.ledgers)) != len(self.ledgers):
            raise ValueError("ledgers hold a checkpoint twice")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorChange:
    """A difference of the successor, and the action whose threshold it needs."""

    what: str
    amendment: Amendment


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """A succession that verified, with the signatures so far.

    Attributes:
        predecessor: The consortium whose owners signed.
        successor: The consortium that replaces it.
        ledgers: Checkpoints of the predecessor's ledgers that the signers saw; none where the
            ledgers are lost.
        not_after: Last second at which it may be put in force.
        changes: In what they differ.
        required: Owners it takes.
        signed_by: Owners of the predecessor who signed.
        envelope: As received.
    """

    predecessor: Consortium
    successor: Consortium
    ledgers: tuple[str, ...]
    not_after: int
    changes: tuple[SuccessorChange, ...]
    required: int
    signed_by: tuple[str, ...]
    envelope: dsse.Envelope

    @property
    def complete(self) -> bool:
        """Enough owners signed."""
        return len(self.signed_by) >= self.required

    @property
    def entry(self) -> dict[str, JsonValue]:
        """Body of a ledger's entry about it."""
        return {
            "predecessor": self.predecessor.to_dict(),
            "successor_id": self.successor.consortium_id,
            "digest": self.envelope.digest,
            "envelope": self.envelope.to_dict(),
        }

    def in_time(self, now: int) -> Self:
        """Return it if it may still be put in force.

        Raises:
            StatementInvalid: It expired.
        """
        if now > self.not_after:
            raise StatementInvalid(
                "the succession expired before it was put in force",
                check="not after",
                got=to_rfc3339(now),
                expected=f"at most {to_rfc3339(self.not_after)}",
                hint="propose it again and have it signed anew",
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessionFile:
    """``succession.json``: the predecessor's document and the envelope. Nothing is verified yet."""

    predecessor: Consortium
    envelope: dsse.Envelope

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(
            {
                "version": 1,
                "predecessor": self.predecessor.to_dict(),
                "envelope": self.envelope.to_dict(),
            }
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            DataInvalid: It cannot be read or is too long.
            StatementInvalid: It is no such file.
            ConsortiumInvalid: The document in it is not a consortium.
            SignatureInvalid: The envelope in it is malformed.
        """
        return cls.from_bytes(read_bounded(path, MAX_SUCCESSION_BYTES))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a file's bytes; errors as ``load``."""
        try:
            value = parse_canonical(data, max_bytes=MAX_SUCCESSION_BYTES)
        except DataInvalid as error:
            raise StatementInvalid(f"succession file: {error}", check="succession") from error
        match value:
            case {"version": 1, "predecessor": document, "envelope": envelope, **rest} if not rest:
                return cls(
                    predecessor=Consortium.from_dict(document),
                    envelope=dsse.Envelope.from_dict(envelope),
                )
        raise StatementInvalid(
            "not a succession file",
            check="succession",
            expected="{version: 1, predecessor, envelope}",
            hint="sealtrain consortium propose writes one",
        )

    def verify(self) -> Succession:
        """Return the succession if a quorum signed it. Raises as ``verify_succession``."""
        return verify_succession(self.envelope, self.predecessor)


def changes_between(predecessor: Consortium, successor: Consortium) -> tuple[SuccessorChange, ...]:
    """Differences of two documents, in words without control characters.

    Args:
        predecessor: The one in force.
        successor: The one proposed.
    """
    before = {owner.name: owner for owner in predecessor.owners}
    after = {owner.name: owner for owner in successor.owners}
    changes = [
        SuccessorChange(what=f"{name} leaves", amendment="amend_members")
        for name in before
        if name not in after
    ]
    changes += [
        SuccessorChange(what=f"{name} joins, {owner.key_id}", amendment="amend_members")
        for name, owner in after.items()
        if name not in before
    ]
    changes += [
        SuccessorChange(
            what=f"{name} has other keys, now {owner.key_id}", amendment="amend_members"
        )
        for name, owner in after.items()
        if name in before and before[name] != owner
    ]
    counts = successor.thresholds.to_dict()
    changes += [
        SuccessorChange(
            what=f"to {PURPOSES[action]} takes {counts[action]} owners, not {count}",
            amendment="amend_thresholds",
        )
        for action, count in predecessor.thresholds.to_dict().items()
        if counts[action] != count
    ]
    if predecessor.own_data_consent != successor.own_data_consent:
        word = "" if successor.own_data_consent else "no "
        what = f"{word}consent of owners on their own data"
        changes.append(SuccessorChange(what=what, amendment="amend_thresholds"))
    if predecessor.name != successor.name:
        what = f"it is called {successor.name}, not {predecessor.name}"
        changes.append(SuccessorChange(what=what, amendment="amend_thresholds"))
    return tuple(changes)


def propose(
    predecessor: Consortium,
    successor: Consortium,
    signer: dsse.Ed25519Signer,
    *,
    ledgers: Iterable[str],
    not_after: int,
    random: Random = os.urandom,
) -> SuccessionFile:
    """Write a succession down, signed by its first owner.

    Args:
        predecessor: The consortium in force.
        successor: The consortium to replace it.
        signer: Of an owner of the predecessor.
        ledgers: Newest checkpoint of each of the predecessor's ledgers, signed notes.
        not_after: Last second at which it may be put in force.
        random: Source of the nonce.

    Raises:
        StatementInvalid: It would not verify.
        SignatureInvalid: The signer is no owner of the predecessor.
    """
    predicate: dict[str, JsonValue] = {
        "version": 1,
        "predecessor": predecessor.consortium_id,
        "successor": successor.to_dict(),
        "ledgers": list(ledgers),
        "nonce": random(16).hex(),
        "not_after": to_rfc3339(not_after),
    }
    load_model(_Predicate, predicate, StatementInvalid, "succession")
    subject = Subject(name=_SUBJECT, sha256=successor.consortium_id)
    payload = build([subject], PREDICATE_TYPE, predicate)
    envelope = dsse.sign(payload, PAYLOAD_TYPE, signer)
    read_succession(envelope, predecessor)
    return SuccessionFile(predecessor=predecessor, envelope=envelope)


def with_signature(file: SuccessionFile, signer: dsse.Ed25519Signer) -> SuccessionFile:
    """Add another owner's signature.

    Args:
        file: As proposed; the signer read it (``read_succession``).
        signer: Of an owner of the predecessor who has not signed it yet.

    Raises:
        SignatureInvalid: The owner signed it before, or is not an owner of the predecessor.
    """
    mine = dsse.sign(file.envelope.payload, PAYLOAD_TYPE, signer).signatures[0]
    envelope = dsse.Envelope(
        payload=file.envelope.payload,
        payload_type=file.envelope.payload_type,
        signatures=(*file.envelope.signatures, mine),
    )
    read_succession(envelope, file.predecessor)
    return SuccessionFile(predecessor=file.predecessor, envelope=envelope)


def read_succession(envelope: dsse.Envelope, predecessor: Consortium) -> Succession:
    """Checks 1-4: the succession and its signatures so far.

    Args:
        envelope: As received.
        predecessor: The consortium whose owners may sign.

    Raises:
        SignatureInvalid: Another type, or a signature that is not an owner's or does not verify.
        StatementInvalid: Signed but malformed, or nothing changes.
        ConsortiumMismatch: It is about another predecessor.
    """
    keys = [owner.signing_bytes for owner in predecessor.owners]
    payload = dsse.verify(envelope, keys, payload_type=PAYLOAD_TYPE)
    statement = parse(payload, PREDICATE_TYPE)
    said = load_model(_Predicate, statement.predicate, StatementInvalid, "succession")
    if said.predecessor != predecessor.consortium_id:
        raise ConsortiumMismatch(
            "the succession is of another consortium",
            check="predecessor",
            got=said.predecessor,
            expected=predecessor.consortium_id,
            hint="use the succession that the owners of this consortium signed",
        )
    subjects = (Subject(name=_SUBJECT, sha256=said.successor.consortium_id),)
    if statement.subjects != subjects:
        raise StatementInvalid(
            "the succession names another predecessor than the document in its file",
            check="subject",
            got=statement.subjects[0].sha256,
            expected=said.successor.consortium_id,
        )
    changes = changes_between(predecessor, said.successor)
    if not changes:
        raise StatementInvalid("the successor changes nothing", check="succession")
    thresholds = predecessor.thresholds.to_dict()
    signers = {signature.keyid for signature in envelope.signatures}
    return Succession(
        predecessor=predecessor,
        successor=said.successor,
        ledgers=said.ledgers,
        not_after=from_rfc3339(said.not_after),
        changes=changes,
        required=max(thresholds[change.amendment] for change in changes),
        signed_by=tuple(owner.name for owner in predecessor.owners if owner.key_id in signers),
        envelope=envelope,
    )


def verify_succession(envelope: dsse.Envelope, predecessor: Consortium) -> Succession:
    """Return a succession that enough owners signed, once the module's checks hold.

    Args:
        envelope: As received.
        predecessor: The consortium that it must be of.

    Raises:
        ApprovalsMissing: Too few owners signed.
        Refused: As ``read_succession``.
    """
    found = read_succession(envelope, predecessor)
    if not found.complete:
        missing = [owner.name for owner in predecessor.owners if owner.name not in found.signed_by]
        raise ApprovalsMissing(
            f"{len(found.signed_by)} of {found.required} needed owners signed the succession",
            check="succession",
            owner=", ".join(missing),
            got=f"signed by {', '.join(found.signed_by)}",
            expected=f"{found.required} of {len(predecessor.owners)} owners to "
            + " and ".join(sorted({PURPOSES[change.amendment] for change in found.changes})),
            hint=f"ask {', '.join(missing)} to review and run: sealtrain consortium sign",
        )
    return found
