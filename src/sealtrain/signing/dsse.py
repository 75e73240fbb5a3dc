"""DSSE envelopes (protocol v1.0.2), read strictly and signed with Ed25519.

On disk an envelope is canonical JSON (RFC 8785) of ``{payload, payloadType, signatures}``: one byte
string for one envelope, so a digest of the file is a digest of what it says. It verifies when

1. its payload type is the expected one,
2. it carries at least one signature and no two by the same key,
3. every signature names a trusted key (``ed25519:<sha256 of the raw key>``),
4. every signature verifies over the pre-authentication encoding, and
5. at least ``threshold`` keys signed.

A signature that cannot be checked refuses the envelope: a reader never has to ask which of several
signatures that were looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing.ed25519 import SIGNATURE_BYTES, Ed25519Signer, key_id, verify_signature

__all__ = [
    "MAX_ENVELOPE_BYTES",
    "MAX_SIGNATURES",
    "Ed25519Signer",
    "Envelope",
    "Signature",
    "pae",
    "sign",
    "verify",
]

MAX_ENVELOPE_BYTES = 16 << 20
MAX_SIGNATURES = 64
_MAX_TYPE_CHARS = 128
_MAX_KEY_ID_CHARS = 128


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: what is really signed (DSSE protocol, §Signature Definition)."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One signature: the signer's key id and 64 bytes."""

    keyid: str
    sig: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A payload, its type and who signed both. Nothing here is verified yet."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    def to_dict(self) -> dict[str, JsonValue]:
        """The JSON object of the DSSE specification, standard base64."""
        return {
            "payload": to_base64(self.payload),
            "payloadType": self.payload_type,
            "signatures": [
                {"keyid": signature.keyid, "sig": to_base64(signature.sig)}
                for signature in self.signatures
            ],
        }

    def to_bytes(self) -> bytes:
        """Canonical JSON of ``to_dict()``."""
        return canonical_json(self.to_dict())

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hex digits."""
        return sha256_hex(self.to_bytes())

    @classmethod
    def from_dict(cls, data: JsonValue) -> Self:
        """Parse a JSON object that has these fields and no other.

        Raises:
            SignatureInvalid: A field is missing, unknown, of another type, or not canonical base64.
        """
        payload, payload_type, signatures = _fields(data, "payload", "payloadType", "signatures")
        if not isinstance(signatures, list) or not 1 <= len(signatures) <= MAX_SIGNATURES:
            raise _refuse_malformed(f"signatures is not a list of 1 to {MAX_SIGNATURES}")
        return cls(
            payload=_base64(payload, "payload", None),
            payload_type=_text(payload_type, "payloadType", _MAX_TYPE_CHARS),
            signatures=tuple(_signature(signature) for signature in signatures),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse an envelope that must be in canonical form.

        Raises:
            SignatureInvalid: Not canonical JSON, too long, or as ``from_dict``.
        """
        try:
            value = parse_canonical(data, max_bytes=MAX_ENVELOPE_BYTES)
        except DataInvalid as error:
            raise _refuse_malformed(str(error)) from error
        return cls.from_dict(value)


def sign(payload: bytes, payload_type: str, *signers: Ed25519Signer) -> Envelope:
    """Put ``payload`` into an envelope signed by each of ``signers``.

    Args:
        payload: The bytes to sign; for our own documents canonical JSON.
        payload_type: Media type of the payload, at most 128 printable ASCII characters.
        signers: At least one, no key twice.

    Raises:
        ValueError: No signer, or one twice.
    """
    if not signers or len({signer.key_id for signer in signers}) != len(signers):
        raise ValueError("an envelope needs at least one signer and none of them twice")
    message = pae(payload_type, payload)
    return Envelope(
        payload=payload,
        payload_type=payload_type,
        signatures=tuple(
            Signature(keyid=signer.key_id, sig=signer.sign(message)) for signer in signers
        ),
    )


def verify(
    envelope: Envelope, public_keys: Sequence[bytes], *, payload_type: str, threshold: int = 1
) -> bytes:
    """Return the payload of an envelope that passes the module's checks.

    Args:
        envelope: What was received.
        public_keys: Trusted raw Ed25519 keys, 32 bytes each.
        payload_type: The only accepted type.
        threshold: How many different keys must have signed, at least 1.

    Raises:
        SignatureInvalid: The first check that fails.
    """
    if threshold < 1:
        raise ValueError("threshold must be at least 1")
    if envelope.payload_type != payload_type:
        raise SignatureInvalid(
            "envelope holds another type of payload",
            check="payload type",
            got=envelope.payload_type,
            expected=payload_type,
        )
    trusted = {key_id(public): public for public in public_keys}
    names = [signature.keyid for signature in envelope.signatures]
    if not names or len(set(names)) != len(names):
        raise SignatureInvalid("envelope is unsigned or a key signed twice", check="signatures")
    message = pae(envelope.payload_type, envelope.payload)
    for signature in envelope.signatures:
        public = trusted.get(signature.keyid)
        if public is None:
            raise SignatureInvalid(
                "envelope is signed by a key that is not trusted here",
                check="signer",
                got=signature.keyid,
                expected=" or ".join(sorted(trusted)) or "no key",
                hint="compare the signer's public identity with the one you pinned",
            )
        verify_signature(public, signature.sig, message)
    if len(names) < threshold:
        raise SignatureInvalid(
            "too few signatures",
            check="signature threshold",
            got=len(names),
            expected=f"at least {threshold}",
        )
    return envelope.payload


def _signature(data: JsonValue) -> Signature:
    keyid, sig = _fields(data, "keyid", "sig")
    return Signature(
        keyid=_text(keyid, "keyid", _MAX_KEY_ID_CHARS), sig=_base64(sig, "sig", SIGNATURE_BYTES)
    )


def _fields(data: JsonValue, *names: str) -> list[JsonValue]:
    if not isinstance(data, dict) or set(data) != set(names):
        raise _refuse_malformed(f"expected an object with exactly the fields {', '.join(names)}")
    return [data[name] for name in names]


def _text(value: JsonValue, name: str, max_chars: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= max_chars:
        raise _refuse_malformed(f"{name} is not a text of 1 to {max_chars} characters")
    if not (value.isascii() and value.isprintable()):
        raise _refuse_malformed(f"{name} holds other than printable ASCII")
    return value


def _base64(value: JsonValue, name: str, length: int | None) -> bytes:
    if not isinstance(value, str):
        raise _refuse_malformed(f"{name} is not a text")
    try:
        return from_base64(value, length=length)
    except DataInvalid as error:
        raise _refuse_malformed(f"{name}: {error}") from error


def _refuse_malformed(why: str) -> SignatureInvalid:
    return SignatureInvalid(
        f"not a DSSE envelope: {why}",
        check="envelope",
        hint="pass the file as it was signed, byte for byte",
    )
