"""Keys of a ledger that are connected by rotations. See ``spec/ledger.md`` §10.

``present_key`` believes another key than the remembered one only when

1. rotations lead to it from the key remembered, each signed by the key before,
2. the newest tree head is signed by it, and
3. the ledger holds each of those rotations.

``rotations_to`` says the same backwards, of a key that a broker attested.
"""

from __future__ import annotations

from collections.abc import Mapping

from sealtrain.base.canonical import canonical_json
from sealtrain.client.broker_api import BrokerClient
from sealtrain.ledger.ledger import verify_proof
from sealtrain.ledger.rotation import KIND, Rotation, key_after, read_rotation
from sealtrain.release.errors import AnswerInvalid
from sealtrain.signing.note import SignedNote, note_key_id
from sealtrain.signing.tree_head import verify_tree_head


def present_key(client: BrokerClient, known: bytes, newest: str, *, origin: str) -> bytes:
    """The key that signs a ledger now.

    Args:
        known: The key remembered, 32 bytes.
        newest: The newest tree head, as received.
        origin: The ledger's origin.

    Returns:
        ``known``, unless the ledger's key was rotated from it.

    Raises:
        SignatureInvalid: The tree head is no note, or not signed by the key that was rotated to.
        ProofInvalid: The ledger does not hold a rotation.
        Refused: A rotation does not hold.
    """
    own = note_key_id(origin, known)
    lines = SignedNote.from_text(newest).signatures
    if not any(line.name == origin and line.key_id != own for line in lines):
        return known
    followed: dict[int, Rotation] = {}
    key = known
    for index, rotation in _read_rotations(client, origin).items():
        if rotation.old == key:
            key = key_after(key, [rotation])
            followed[index] = rotation
    if key == known:
        return known
    verify_tree_head(newest, key, origin=origin)
    _require_in_ledger(client, followed, key, origin=origin)
    return key


def rotations_to(client: BrokerClient, key: bytes, *, origin: str) -> tuple[Rotation, ...]:
    """The rotations that led to a ledger's key, newest first; none for a key it was made with.

    Args:
        key: That the broker attested, 32 bytes.
        origin: The ledger's origin.

    Raises:
        ProofInvalid: The ledger does not hold a rotation.
        Refused: A rotation does not hold.
    """
    followed: dict[int, Rotation] = {}
    reached = key
    for index, rotation in sorted(_read_rotations(client, origin).items(), reverse=True):
        if rotation.new == reached:
            followed[index] = rotation
            reached = rotation.old
    _require_in_ledger(client, followed, key, origin=origin)
    return tuple(followed.values())


def _read_rotations(client: BrokerClient, origin: str) -> dict[int, Rotation]:
    """Rotations as the broker shows them, by the index of their entry; signed by their own keys."""
    return {index: read_rotation(body, origin=origin) for index, body in client.ledger_rotations()}


def _require_in_ledger(
    client: BrokerClient, rotations: Mapping[int, Rotation], key: bytes, *, origin: str
) -> None:
    """Return if the ledger that ``key`` signs holds each rotation at its index."""
    for index, rotation in rotations.items():
        entry = verify_proof(client.ledger_proof(index), key, origin=origin)
        held = entry["body"]
        envelope = held.get("envelope") if isinstance(held, dict) else None
        if entry["kind"] != KIND or canonical_json(envelope) != rotation.envelope.to_bytes():
            raise AnswerInvalid(
                "the ledger's entry is not the rotation that was shown",
                check="ledger entry",
                got=str(entry["kind"])[:80],
                expected=KIND,
            )
