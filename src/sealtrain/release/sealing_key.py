"""A broker's signed statement of the key that an owner's data is sealed to for a recipe (§2.3).

An owner takes this key from evidence that it appraised itself. A guest's appraisal policy comes
from its operator, so a guest takes the key only under the signature of a broker of its lock.

``verify_sealing_key`` checks, in order:

1. the envelope carries the signature of the broker's key and no other;
2. its payload is canonical JSON and a ``SealingKey`` without unknown fields;
3. it is about the owner, the recipe and the nonce that were asked for, and names that broker.
"""

from __future__ import annotations

from typing import Literal

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Document, Hex40, Hex64, StrictModel
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import HPKE_KEY, EnvelopeDocument
from sealtrain.signing import dsse
from sealtrain.signing.identity import broker_id

SEALING_KEY_PAYLOAD_TYPE = "application/vnd.sealtrain.sealing-key+json"


class SealingKey(Document):
    """The statement.

    Attributes:
        broker_id: Of the broker that signs it.
        owner_id: Of the owner whose data is sealed to the key.
        public_key: HPKE public key, base64 of 1216 bytes.
        nonce: Chosen by the guest.
    """

    what = "sealing key"
    refusal = AnswerInvalid
    max_bytes = 8 << 10

    version: Literal[1] = 1
    broker_id: Hex64
    consortium_id: Hex64
    app_id: Hex40
    compose_hash: Hex64
    owner_id: Hex64
    public_key: HPKE_KEY
    nonce: Hex64


class SignedSealingKey(StrictModel):
    """Answer to a request for a signed key."""

    version: Literal[1]
    statement: EnvelopeDocument


def sign_sealing_key(key: SealingKey, signer: dsse.Ed25519Signer) -> SignedSealingKey:
    """The statement under the broker's signing key."""
    envelope = dsse.sign(canonical_json(key.to_dict()), SEALING_KEY_PAYLOAD_TYPE, signer)
    return SignedSealingKey(version=1, statement=EnvelopeDocument.of(envelope))


def verify_sealing_key(
    answer: SignedSealingKey, signing_key: bytes, asked: dict[str, str]
) -> bytes:
    """The HPKE public key in a broker's answer, once the module's checks hold.

    Args:
        answer: As received.
        signing_key: Of the broker that the lock names, or that rotations lead to from it.
        asked: The fields ``consortium_id``, ``app_id``, ``compose_hash``, ``owner_id``, ``nonce``.

    Returns:
        1216 bytes.

    Raises:
        SignatureInvalid: Not signed by this broker.
        AnswerInvalid: Signed, but no such statement, or about something else.
    """
    envelope = answer.statement.envelope()
    payload = dsse.verify(envelope, [signing_key], payload_type=SEALING_KEY_PAYLOAD_TYPE)
    key = SealingKey.from_bytes(payload)
    expected = {**asked, "broker_id": broker_id(signing_key)}
    for name, wanted in expected.items():
        got = getattr(key, name)
        if got != wanted:
            what = name.replace("_", " ")
            raise AnswerInvalid(
                f"the broker's signed key is for another {what}",
                check=what,
                got=got,
                expected=wanted,
            )
    return from_base64(key.public_key)
