"""Documents of the Nitro Secure Module: strict structure, nothing trusted yet.

A document is a COSE_Sign1 array (untagged, or under tag 18) around a CBOR map. What is checked
here and in which order stands in ``spec/evidence.md``. Two traits of genuine documents look like
defects and are accepted: the payload may be a map of indefinite length, and optional fields may be
present with the value null. Signatures come with high and low S.

The identity of a document is the SHA-256 of exactly what its signature covers, so neither another
encoding of the outer array nor the other form of an ECDSA signature makes a second document of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nitro.cbor import decode, encode
from sealtrain.base.digests import sha256_hex

MAX_DOCUMENT_BYTES = 16 << 10
PCR_BYTES = 48
SIGNATURE_BYTES = 96
MAX_CERTIFICATES = 8
_MAX_CERTIFICATE_BYTES = 1024
_MAX_FIELD_BYTES = 1024
_LAST_MILLISECOND = 253_402_300_799_999  # of the year 9999
_COSE_SIGN1 = b"\xd2"  # tag 18
_ALGORITHM, _ES384 = 1, -35
_PCRS = 32
_REQUIRED = ("module_id", "digest", "timestamp", "certificate", "cabundle")
_OPTIONAL = ("public_key", "user_data", "nonce")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentForm:
    """What the documents of enclaves and those of a NitroTPM do not share.

    Attributes:
        registers: Name of the field that holds the registers.
        module: Form of the module's id: the instance, then which enclave or TPM of it.
        required: Registers that every such document holds.
    """

    registers: str
    module: re.Pattern[str]
    required: tuple[int, ...]


ENCLAVE = DocumentForm(
    registers="pcrs",
    module=re.compile(r"(i-[0-9a-f]{8,32})-enc([0-9a-f]{16})"),
    required=(0, 1, 2),
)
NITRO_TPM = DocumentForm(
    registers="nitrotpm_pcrs",
    module=re.compile(r"(i-[0-9a-f]{8,32})-tpm([0-9a-f]{16})"),
    required=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NitroDocument:
    """Fields of a parsed document; claims until its signature and chain are verified.

    Attributes:
        raw: The whole document.
        signed: What the signature covers (COSE ``Sig_structure``, payload as received).
        signature: ``r ‖ s``, 96 bytes.
        identity: SHA-256 of ``signed``, hex.
        module_id: ``i-<instance>-enc<enclave>``, of a NitroTPM ``i-<instance>-tpm<TPM>``.
        parent_id: The parent instance, first part of ``module_id``.
        enclave_id: The enclave or TPM, 16 hex digits of ``module_id``.
        timestamp_ms: When the document was made, milliseconds since 1970.
        pcrs: Locked registers, 48 bytes each. A register that is absent is not locked.
        certificate: Leaf, DER.
        cabundle: Its issuers, DER, the root first.
        public_key: As the enclave asked, or ``None``.
        user_data: As the enclave asked, or ``None``.
        nonce: As the enclave asked, or ``None``.
        unknown_fields: Names of fields that this version does not know; signed, not understood.
    """

    raw: bytes
    signed: bytes
    signature: bytes
    identity: str
    module_id: str
    parent_id: str
    enclave_id: str
    timestamp_ms: int
    pcrs: Mapping[int, bytes]
    certificate: bytes
    cabundle: tuple[bytes, ...]
    public_key: bytes | None
    user_data: bytes | None
    nonce: bytes | None
    unknown_fields: tuple[str, ...]

    def pcr(self, index: int) -> str:
        """A register in hex, empty where the document does not hold it."""
        return self.pcrs.get(index, b"").hex()


def parse_document(raw: bytes, form: DocumentForm = ENCLAVE) -> NitroDocument:
    """Parse a document.

    Args:
        raw: The whole document, at most 16 KiB.
        form: Whose document it must be.

    Raises:
        EvidenceMalformed: Anything but a COSE_Sign1 of the module's form.
    """
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise _refuse_malformed("document", f"{len(raw)} bytes", f"at most {MAX_DOCUMENT_BYTES}")
    outer = decode(bytes(raw).removeprefix(_COSE_SIGN1), "document")
    if not isinstance(outer, list) or len(outer) != 4:
        raise _refuse_malformed("document", "another structure", "COSE_Sign1, an array of four")
    protected, unprotected, payload, signature = outer
    if not isinstance(protected, bytes) or not isinstance(payload, bytes):
        raise _refuse_malformed("COSE_Sign1", "another type", "byte strings")
    _check_header(protected, unprotected)
    if not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES:
        raise _refuse_malformed("COSE signature", _form(signature), f"{SIGNATURE_BYTES} bytes")
    half = SIGNATURE_BYTES // 2
    if not any(signature[:half]) or not any(signature[half:]):
        raise _refuse_malformed("COSE signature", "a zero half", "two numbers above zero")
    fields = decode(payload, "payload")
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise _refuse_malformed("payload", "another structure", "a map with text keys")
    signed = encode(["Signature1", protected, b"", payload])
    return _document(bytes(raw), signed, signature, fields, form)


def _document(
    raw: bytes, signed: bytes, signature: bytes, fields: dict[str, Any], form: DocumentForm
) -> NitroDocument:
    for name in (*_REQUIRED, form.registers):
        if name not in fields:
            raise _refuse_malformed(name, "nothing", "a required field")
    module_id, timestamp = fields["module_id"], fields["timestamp"]
    module = form.module.fullmatch(module_id) if isinstance(module_id, str) else None
    if module is None:
        raise _refuse_malformed("module_id", _form(module_id), form.module.pattern)
    if fields["digest"] != "SHA384":
        raise _refuse_malformed("digest", _form(fields["digest"]), "SHA384")
    # bool is an int in Python; neither is a time.
    if type(timestamp) is not int or not 0 < timestamp <= _LAST_MILLISECOND:
        raise _refuse_malformed("timestamp", _form(timestamp), "milliseconds since 1970")
    return NitroDocument(
        raw=raw,
        signed=signed,
        signature=signature,
        identity=sha256_hex(signed),
        module_id=module_id,
        parent_id=module[1],
        enclave_id=module[2],
        timestamp_ms=timestamp,
        pcrs=MappingProxyType(_pcrs(fields[form.registers], form.required)),
        certificate=_certificate(fields["certificate"]),
        cabundle=_cabundle(fields["cabundle"]),
        public_key=_optional(fields, "public_key"),
        user_data=_optional(fields, "user_data"),
        nonce=_optional(fields, "nonce"),
        unknown_fields=tuple(sorted(set(fields) - {*_REQUIRED, form.registers, *_OPTIONAL})),
    )


def _check_header(protected: bytes, unprotected: object) -> None:
    """One algorithm, named where the signature covers it, and nowhere else anything."""
    _check_protected(protected)
    if unprotected != {} or not isinstance(unprotected, dict):
        raise _refuse_malformed("unprotected header", "something", "an empty map")


@lru_cache(maxsize=8)
def _check_protected(protected: bytes) -> None:
    """Remembered by its exact bytes, of which all modules write the same; refusals never are."""
    header = decode(protected, "protected header")
    if (
        not isinstance(header, dict)
        or [(type(k), k) for k in header] != [(int, _ALGORITHM)]
        or type(header[_ALGORITHM]) is not int
        or header[_ALGORITHM] != _ES384
    ):
        raise _refuse_malformed("protected header", "another one", "ES384 and nothing else")


def _pcrs(value: object, required: tuple[int, ...]) -> dict[int, bytes]:
    if not isinstance(value, dict) or len(value) > _PCRS:
        raise _refuse_malformed("pcrs", _form(value), f"a map of at most {_PCRS} registers")
    for index, register in value.items():
        if type(index) is not int or not 0 <= index < _PCRS:
            raise _refuse_malformed("index of a PCR", _form(index), f"0 to {_PCRS - 1}")
        if not isinstance(register, bytes) or len(register) != PCR_BYTES:
            raise _refuse_malformed(f"PCR{index}", _form(register), f"{PCR_BYTES} bytes")
    for index in required:
        if index not in value:
            raise _refuse_malformed(f"PCR{index}", "nothing", "a measurement of the image")
    return dict(sorted(value.items()))


def _certificate(value: object) -> bytes:
    if not isinstance(value, bytes) or not 1 <= len(value) <= _MAX_CERTIFICATE_BYTES:
        raise _refuse_malformed("certificate", _form(value), f"1 to {_MAX_CERTIFICATE_BYTES} bytes")
    return value


def _cabundle(value: object) -> tuple[bytes, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CERTIFICATES:
        raise _refuse_malformed("cabundle", _form(value), f"1 to {MAX_CERTIFICATES} certificates")
    return tuple(_certificate(item) for item in value)


def _optional(fields: dict[str, Any], name: str) -> bytes | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) > _MAX_FIELD_BYTES:
        raise _refuse_malformed(name, _form(value), f"at most {_MAX_FIELD_BYTES} bytes, or null")
    return value


def _form(value: object) -> str:
    """What a value is, in words and bounded: documents come from strangers."""
    if isinstance(value, (bytes, list, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)[:64] if isinstance(value, (int, str)) else type(value).__name__


def _refuse_malformed(what: str, got: str, expected: str) -> EvidenceMalformed:
    return EvidenceMalformed(
        f"Nitro document is malformed: {what}", check="document form", got=got, expected=expected
    )
