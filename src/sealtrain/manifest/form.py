"""A manifest file as bytes (spec/run-manifest.md §1): read strictly, written canonically.

``read`` accepts a file that

1. is canonical JSON of at most 48 MiB with exactly the fields of the specification,
2. holds a Sigstore bundle with a public-key hint and a DSSE envelope of an in-toto statement,
3. whose predicate and subjects have the shape of ``manifest.predicate``, subjects and
   ``outputs.files`` naming the same files of a model in the same order,
4. whose hint is that of the guest key the predicate names.

``read`` verifies nothing; ``manifest.verify`` does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.base.models import load_model
from sealtrain.errors import SealtrainError
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.manifest.predicate import PREDICATE_TYPE, Predicate, output_name
from sealtrain.sealing.trainedmodel import check_sealed_names
from sealtrain.signing import dsse, statement

BUNDLE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
EVIDENCE_PAYLOAD_TYPE = "application/vnd.sealtrain.evidence+json"
_MAX_VALUES = 10_000
"""Cap of the file: statement and evidence are texts in it."""
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A file of the right shape, unverified."""

    signed_statement: dsse.Envelope
    signed_evidence: dsse.Envelope
    subjects: tuple[statement.Subject, ...]
    predicate: Predicate
    digest: str
    """SHA-256 of the whole file, 64 hex digits."""

    @property
    def guest_key(self) -> bytes:
        """Raw Ed25519 public key that both envelopes must be signed by, 32 bytes."""
        return from_base64(self.predicate.signer.public_key, length=32)


def key_hint(public: bytes) -> str:
    """Sigstore's hint of an Ed25519 key: base64 of the SHA-256 of its SubjectPublicKeyInfo."""
    info = Ed25519PublicKey.from_public_bytes(public).public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return to_base64(hashlib.sha256(info).digest())


def commitment(payload: bytes, guest_key: bytes, run_log_head: str) -> dict[str, JsonValue]:
    """The commitment of the final quote, under the report-data purpose ``manifest``.

    Args:
        payload: Bytes of the in-toto statement.
        guest_key: Raw public key, 32 bytes.
        run_log_head: 64 hex digits.
    """
    return {
        "statement_digest": sha256_hex(payload),
        "signing_key": to_base64(guest_key),
        "run_log_head": run_log_head,
    }


def write(signed_statement: dsse.Envelope, signed_evidence: dsse.Envelope, public: bytes) -> bytes:
    """File of two envelopes, both signed by the guest key ``public``."""
    return canonical_json(_document(signed_statement, signed_evidence, public))


def read(data: bytes) -> Manifest:
    """Parse a manifest file.

    Raises:
        ManifestMalformed: A check of the module's list fails.
    """
    try:
        return _read(data)
    except ManifestMalformed:
        raise
    except (SealtrainError, ValueError) as error:
        message = error.message if isinstance(error, SealtrainError) else "holds an unusable key"
        raise ManifestMalformed(
            f"run manifest: {message}",
            check="form",
            hint="pass the file byte for byte as the guest wrote it",
        ) from error


def _document(
    signed_statement: dsse.Envelope, signed_evidence: dsse.Envelope, public: bytes
) -> dict[str, JsonValue]:
    return {
        "version": VERSION,
        "bundle": {
            "mediaType": BUNDLE_MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": key_hint(public)}, "tlogEntries": []},
            "dsseEnvelope": signed_statement.to_dict(),
        },
        "evidence": signed_evidence.to_dict(),
    }


def _read(data: bytes) -> Manifest:
    document = parse_canonical(data, max_bytes=MAX_MANIFEST_BYTES, max_values=_MAX_VALUES)
    match document:
        case {"bundle": {"dsseEnvelope": dict(first)}, "evidence": dict(second)}:
            signed_statement = dsse.Envelope.from_dict(first)
            signed_evidence = dsse.Envelope.from_dict(second)
        case _:
            raise ManifestMalformed(
                "bundle or evidence is missing from the run manifest",
                check="form",
                hint="pass the manifest.json of a sealtrain run",
            )
    parsed = statement.parse(signed_statement.payload, PREDICATE_TYPE)
    predicate = load_model(Predicate, parsed.predicate, ManifestMalformed, "run manifest")
    # A default must not hide a second spelling of the same predicate. Both sides are plain JSON
    # without bool-int mixtures (the models are strict), so equal values have equal bytes.
    if predicate.to_dict() != parsed.predicate:
        raise ManifestMalformed("run manifest: predicate is not spelled out", check="form")
    check_sealed_names([output_name(subject.name) for subject in parsed.subjects])
    if [subject.name for subject in parsed.subjects] != [
        file.name for file in predicate.outputs.files
    ]:
        raise ManifestMalformed(
            "run manifest: subjects and outputs name different files", check="form"
        )
    public = from_base64(predicate.signer.public_key, length=32)
    # Rebuilding the file from its parts leaves no field, known or unknown, unread.
    if canonical_json(_document(signed_statement, signed_evidence, public)) != data:
        raise ManifestMalformed(
            "run manifest has an unknown field, another version, or the hint of another key",
            check="form",
        )
    return Manifest(
        signed_statement=signed_statement,
        signed_evidence=signed_evidence,
        subjects=parsed.subjects,
        predicate=predicate,
        digest=sha256_hex(data),
    )
