"""A broker's ledger changes its key: the old one names the new one. See ``spec/ledger.md`` §10.

A rotation is a DSSE envelope that both keys signed, inside an entry of the ledger it is about. A
client that pinned either key thereby knows the other: the old one vouches for what comes after it,
the new one for what it replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import Base64, StrictModel, Timestamp, load_model
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing import dsse
from sealtrain.signing.ed25519 import Ed25519Signer, key_id
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.note import SignedNote, note_key_id

KIND = "rotation"
"""Of the ledger's entry."""
PAYLOAD_TYPE = "application/vnd.sealtrain.key-rotation+json"


class _RotationStatement(StrictModel):
    version: Literal[1]
    origin: str = Field(max_length=256)
    old_key: Base64
    new_key: Base64
    rotated_at: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What a rotation says, once both keys' signatures hold.

    Attributes:
        old: Raw Ed25519 key that signed the ledger before, 32 bytes.
        new: The key that signs it from now on.
        rotated_at: Seconds since the epoch.
        envelope: As received.
    """

    old: bytes
    new: bytes
    rotated_at: int
    envelope: dsse.Envelope


def sign_rotation(
    origin: str, *, old: Ed25519Signer, new: Ed25519Signer, now: int
) -> dsse.Envelope:
    """Write down that ``new`` takes the place of ``old``.

    Args:
        origin: Of the ledger.
        old: Its present key.
        new: Another one.
        now: Seconds since the epoch.
    """
    statement = {
        "version": 1,
        "origin": origin,
        "old_key": to_base64(old.public),
        "new_key": to_base64(new.public),
        "rotated_at": to_rfc3339(now),
    }
    return dsse.sign(canonical_json(statement), PAYLOAD_TYPE, old, new)


def rotation_entry(envelope: dsse.Envelope) -> dict[str, JsonValue]:
    """Body of the ledger's entry about a rotation."""
    return {"digest": envelope.digest, "envelope": envelope.to_dict()}


def read_rotation(body: Any, *, origin: str) -> Rotation:
    """What the body of an entry says, once both keys signed it.

    It holds between its own two keys: the caller sees that one of them is trusted.

    Args:
        body: Of an entry of kind ``rotation``.
        origin: Of the ledger it must be about.

    Raises:
        SignatureInvalid: It is not signed by exactly its two keys.
        StatementInvalid: It is of another form, or about another ledger.
    """
    if not isinstance(body, dict) or set(body) != {"digest", "envelope"}:
        raise StatementInvalid("a rotation is {digest, envelope}", check="rotation")
    envelope = dsse.Envelope.from_dict(body["envelope"])
    try:
        said = load_model(
            _RotationStatement, parse_canonical(envelope.payload), StatementInvalid, "key rotation"
        )
        old, new = (from_base64(text, length=32) for text in (said.old_key, said.new_key))
        rotated_at = from_rfc3339(said.rotated_at)
    except DataInvalid as error:
        raise StatementInvalid(f"key rotation: {error.message}", check="rotation") from error
    if old == new:
        raise StatementInvalid("a rotation to the same key changes nothing", check="rotation")
    dsse.verify(envelope, [old, new], payload_type=PAYLOAD_TYPE, threshold=2)
    if said.origin != origin:
        raise StatementInvalid(
            "the rotation is about another ledger",
            check="ledger origin",
            got=said.origin,
            expected=origin,
        )
    if body["digest"] != envelope.digest:
        raise StatementInvalid(
            "the entry names another rotation than it holds",
            check="digest",
            got=str(body["digest"])[:80],
            expected=envelope.digest,
        )
    return Rotation(old=old, new=new, rotated_at=rotated_at, envelope=envelope)


def key_after(key: bytes, rotations: Sequence[Rotation]) -> bytes:
    """The newest key that rotations lead to from ``key``.

    Args:
        key: A trusted one, 32 bytes.
        rotations: In the order of the ledger.
    """
    for rotation in rotations:
        if rotation.old == key:
            key = rotation.new
    return key


def keys_with(key: bytes, rotations: Iterable[Rotation]) -> frozenset[bytes]:
    """Every key that rotations connect with a trusted one, backwards and forwards."""
    known, left = {key}, list(rotations)
    while left:
        near = [rotation for rotation in left if rotation.old in known or rotation.new in known]
        if not near:
            break
        known |= {public for rotation in near for public in (rotation.old, rotation.new)}
        left = [rotation for rotation in left if rotation not in near]
    return frozenset(known)


def find_signing_key(note: str, keys: Sequence[bytes], *, origin: str) -> bytes:
    """The newest of a ledger's keys that a tree head has a line of, the newest of all if none has.

    Args:
        note: A signed tree head; nothing is verified here.
        keys: Oldest first.
        origin: Of the ledger.

    Raises:
        SignatureInvalid: Not a note.
    """
    lines = {
        signature.key_id
        for signature in SignedNote.from_text(note).signatures
        if signature.name == origin
    }
    return next((key for key in reversed(keys) if note_key_id(origin, key) in lines), keys[-1])


def lineage(first: str, last: str, rotations: Sequence[Rotation]) -> tuple[bytes, ...]:
    """The keys of a ledger from the one it was made with to the present one.

    Args:
        first: Key id that the ledger says it was made with.
        last: Key id of the key that is to sign it.
        rotations: In the order of the ledger.

    Raises:
        SignatureInvalid: Rotations do not lead from one to the other.
    """
    reached, keys = first, []
    for rotation in rotations:
        if key_id(rotation.old) != reached:
            raise SignatureInvalid(
                "a rotation in the ledger is not by the key before it",
                check="ledger key",
                got=key_id(rotation.old),
                expected=reached,
            )
        keys.append(rotation.old)
        reached = key_id(rotation.new)
    if reached != last:
        raise SignatureInvalid(
            "the ledger is signed by another key now",
            check="ledger key",
            got=last,
            expected=reached,
            hint="serve with the root secret that the broker was rotated to, and the one before as "
            "--former-root-secret",
        )
    return tuple(keys)
