"""Quotes of a TPM 2.0: strict structure, digest over the quoted registers, signature.

A quote is a ``TPMS_ATTEST`` of type ``TPM_ST_ATTEST_QUOTE`` (TPM 2.0 Library, Part 2, 10.12.12) and
a ``TPMT_SIGNATURE`` over it (11.3.4). The quote holds no register: it holds which registers of
which bank were selected and SHA-256 of their values in ascending order, so the values come along
and are compared with that digest, all of them and no other.

The identity of a quote is the SHA-256 of the ``TPMS_ATTEST``, which is what the signature covers.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.errors import EvidenceMalformed, MeasurementMismatch, QuoteInvalid
from sealtrain.attest.tpm.byte_cursor import Octets
from sealtrain.base.digests import sha256_hex

QUOTE: Final = "TPM quote"
REGISTERS: Final = 24
MAX_QUOTE_BYTES: Final = 1024
MAX_SIGNATURE_BYTES: Final = 4 + 2 + 512

Bank = Literal["sha256", "sha384"]
BANK_BYTES: Final[Mapping[Bank, int]] = {"sha256": 32, "sha384": 48}
AttestationKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_MAGIC, _QUOTE_TYPE = 0xFF544347, 0x8018
_BANKS: Final[Mapping[int, Bank]] = {0x000B: "sha256", 0x000C: "sha384"}
_SHA256, _RSASSA, _ECDSA = 0x000B, 0x0014, 0x0018
_NAME_DIGESTS = {0x000B: 32, 0x000C: 48, 0x000D: 64}
_MAX_NAME_BYTES, _MAX_NONCE_BYTES = 66, 64
_SELECT_BYTES = REGISTERS // 8
_MIN_RSA_BITS, _MAX_RSA_BITS, _RSA_EXPONENT = 2048, 4096, 65537
_SCALAR_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmQuote:
    """Fields of a parsed quote; claims until its signature is verified.

    Attributes:
        raw: The whole ``TPMS_ATTEST``.
        signer: Qualified name of the key that signed.
        qualifying_data: What the caller wanted signed with the registers.
        clock_ms: The TPM's clock in milliseconds.
        resets: How often the TPM was reset.
        restarts: How often it was restarted or resumed since then.
        safe: Whether the clock never went back.
        firmware: Version of the TPM's firmware.
        bank: Hash of the selected bank.
        selection: Selected registers, ascending.
        digest: SHA-256 of the selected registers' values.
    """

    raw: bytes
    signer: bytes
    qualifying_data: bytes
    clock_ms: int
    resets: int
    restarts: int
    safe: bool
    firmware: int
    bank: Bank
    selection: tuple[int, ...]
    digest: bytes

    @property
    def identity(self) -> str:
        """SHA-256 of what the signature covers, hex."""
        return sha256_hex(self.raw)


def parse_quote(raw: bytes) -> TpmQuote:
    """Parse a ``TPMS_ATTEST``.

    Args:
        raw: The whole structure, at most 1 KiB.

    Raises:
        EvidenceMalformed: Anything but a quote of registers of one bank, or bytes after it.
    """
    reader = Octets(raw, QUOTE)
    if len(raw) > MAX_QUOTE_BYTES:
        raise reader.malformed_error(f"it is longer than {MAX_QUOTE_BYTES} bytes")
    if reader.number(4) != _MAGIC or reader.number(2) != _QUOTE_TYPE:
        raise reader.malformed_error("it is no quote that a TPM made")
    signer = reader.read_sized(2, _MAX_NAME_BYTES)
    if signer and _NAME_DIGESTS.get(int.from_bytes(signer[:2], "big")) != len(signer) - 2:
        raise reader.malformed_error("the name of its key has another form")
    qualifying_data = reader.read_sized(2, _MAX_NONCE_BYTES)
    clock_ms, resets, restarts, safe = (reader.number(size) for size in (8, 4, 4, 1))
    if safe > 1:
        raise reader.malformed_error("the state of its clock is neither yes nor no")
    firmware = reader.number(8)
    if reader.number(4) != 1:
        raise reader.malformed_error("it selects registers of more or fewer banks than one")
    bank = _BANKS.get(reader.number(2))
    if bank is None:
        raise reader.malformed_error("it selects another bank than SHA-256 or SHA-384")
    if reader.number(1) != _SELECT_BYTES:
        raise reader.malformed_error(f"its selection is not of {REGISTERS} registers")
    bits = int.from_bytes(reader.take(_SELECT_BYTES), "little")
    digest = reader.read_sized(2, 64)
    if not bits or len(digest) != hashlib.sha256().digest_size:
        raise reader.malformed_error("it selects nothing, or its digest is not SHA-256")
    reader.finish()
    return TpmQuote(
        raw=bytes(raw),
        signer=signer,
        qualifying_data=qualifying_data,
        clock_ms=clock_ms,
        resets=resets,
        restarts=restarts,
        safe=bool(safe),
        firmware=firmware,
        bank=bank,
        selection=tuple(index for index in range(REGISTERS) if bits >> index & 1),
        digest=digest,
    )


def check_registers(quote: TpmQuote, values: Mapping[int, bytes]) -> None:
    """Compare shown values with the quote: the selected registers, all of them and no other.

    Raises:
        EvidenceMalformed: Another set of registers than the selected one, or another length.
        MeasurementMismatch: The quote's digest is of other values.
    """
    if tuple(sorted(values)) != quote.selection:
        raise EvidenceMalformed(
            "shown registers are not those that the quote selects",
            check=QUOTE,
            got=", ".join(map(str, sorted(values))) or "none",
            expected=", ".join(map(str, quote.selection)),
        )
    if any(len(value) != BANK_BYTES[quote.bank] for value in values.values()):
        raise EvidenceMalformed(
            "a shown register has another length than its bank",
            check=QUOTE,
            expected=f"{BANK_BYTES[quote.bank]} bytes",
        )
    found = hashlib.sha256(b"".join(values[index] for index in quote.selection)).digest()
    if not hmac.compare_digest(found, quote.digest):
        raise MeasurementMismatch(
            "shown registers are not those that the TPM quoted",
            check="quoted registers",
            got=found.hex(),
            expected=quote.digest.hex(),
        )


def check_key(key: object) -> AttestationKey:
    """A key that may sign quotes: ECDSA on P-256, or RSA of 2048 to 4096 bits.

    Raises:
        QuoteInvalid: Another kind of key.
    """
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    if (
        isinstance(key, rsa.RSAPublicKey)
        and _MIN_RSA_BITS <= key.key_size <= _MAX_RSA_BITS
        and key.public_numbers().e == _RSA_EXPONENT
    ):
        return key
    raise QuoteInvalid(
        "attestation key is of another kind",
        check="attestation key",
        got=type(key).__name__,
        expected="P-256, or RSA of 2048 to 4096 bits with exponent 65537",
    )


def check_signature(quote: TpmQuote, signature: bytes, key: AttestationKey) -> None:
    """Verify a ``TPMT_SIGNATURE``: ECDSA on P-256 or RSASSA (PKCS #1 1.5), both with SHA-256.

    Raises:
        EvidenceMalformed: Not such a structure.
        QuoteInvalid: It does not verify under the key.
    """
    reader = Octets(signature, "TPM signature")
    if len(signature) > MAX_SIGNATURE_BYTES:
        raise reader.malformed_error(f"it is longer than {MAX_SIGNATURE_BYTES} bytes")
    scheme, digest = reader.number(2), reader.number(2)
    if scheme not in (_RSASSA, _ECDSA) or digest != _SHA256:
        raise reader.malformed_error("it is neither ECDSA nor RSASSA with SHA-256")
    parts = [
        reader.read_sized(2, MAX_SIGNATURE_BYTES) for _ in range(1 if scheme == _RSASSA else 2)
    ]
    reader.finish()
    if scheme == _ECDSA and not all(len(part) <= _SCALAR_BYTES and any(part) for part in parts):
        raise reader.malformed_error("it holds no two numbers of a P-256 signature")
    try:
        if scheme == _ECDSA and isinstance(key, ec.EllipticCurvePublicKey):
            r, s = (int.from_bytes(part, "big") for part in parts)
            key.verify(encode_dss_signature(r, s), quote.raw, ec.ECDSA(hashes.SHA256()))
        elif scheme == _RSASSA and isinstance(key, rsa.RSAPublicKey):
            key.verify(parts[0], quote.raw, padding.PKCS1v15(), hashes.SHA256())
        else:
            raise InvalidSignature  # noqa: TRY301  # a signature of the other kind of key
    except InvalidSignature:
        raise QuoteInvalid(
            "signature of the TPM quote does not verify under its attestation key",
            check="TPM quote signature",
        ) from None
