"""TDX quote, version 4: strict structure, nothing trusted yet.

A quote is accepted only in its one length: header (48) || TD report (584) || length (4) ||
signature data, every inner length exact and no byte after the last. Without this rule a quote has
many encodings that all verify. Even so the ECDSA signature itself can be re-encoded, hence the
identity of a quote is ``sha256(bytes 0..631)``, the part the signature covers.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import PlatformMismatch, QuoteInvalid

__all__ = ["SIGNED_BYTES", "TdxQuote", "canonical_quote", "parse_quote"]

SIGNED_BYTES = 632
_AUTH_AT = SIGNED_BYTES + 4
_TDX = 0x81
_SGX = 0x00
_DEBUG_BIT = 0x01
_PEM = re.compile(
    rb"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)\n-----END CERTIFICATE-----\n?"
)
_MAX_CERTIFICATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxQuote:
    """Fields of a parsed quote. Registers are lower-case hex (96 digits)."""

    raw: bytes
    identity: str
    td_attributes: bytes
    mrtd: str
    mr_config_id: bytes
    rtmr: tuple[str, str, str, str]
    report_data: bytes
    certificates: tuple[bytes, ...]
    """DER: PCK leaf, its issuer, the root."""

    @property
    def debug(self) -> bool:
        """Whether the guest's memory is open to its host."""
        return bool(self.td_attributes[0] & _DEBUG_BIT)

    @property
    def root_der(self) -> bytes:
        """Last certificate of the embedded chain, DER; a claim until verified."""
        return self.certificates[-1]


def canonical_quote(raw: bytes) -> bytes:
    """Cut the zero bytes with which platforms pad a quote; collectors call this, verifiers never.

    Raises:
        QuoteInvalid: Too short, or something else than zeros follows the signature data.
    """
    if len(raw) < _AUTH_AT:
        raise QuoteInvalid("quote is too short", got=f"{len(raw)} bytes")
    end = _AUTH_AT + struct.unpack_from("<I", raw, SIGNED_BYTES)[0]
    if len(raw) < end or raw[end:].strip(b"\0"):
        raise QuoteInvalid("quote has the wrong length", check="quote structure")
    return raw[:end]


def parse_quote(raw: bytes) -> TdxQuote:
    """Parse the one encoding of a version 4 TDX quote.

    Args:
        raw: The whole quote.

    Raises:
        PlatformMismatch: A quote of SGX or of an unknown kind of platform.
        QuoteInvalid: Another version, a truncated quote, trailing bytes, an inconsistent length.
    """
    if len(raw) < _AUTH_AT:
        raise QuoteInvalid(
            "quote is too short",
            check="quote structure",
            got=f"{len(raw)} bytes",
            expected=f"over {_AUTH_AT} bytes",
        )
    version, key_type, tee_type = struct.unpack_from("<HHI", raw, 0)
    if tee_type != _TDX or version == 3:
        kind = "SGX" if tee_type == _SGX or version == 3 else f"tee type {tee_type:#x}"
        raise PlatformMismatch(
            "quote is not of a TDX guest", check="quote kind", got=kind, expected="TDX"
        )
    if version != 4:
        raise QuoteInvalid(
            "quote has an unsupported version", check="quote structure", got=version, expected=4
        )
    if key_type != 2:
        raise QuoteInvalid(
            "quote has an unsupported attestation key",
            check="quote structure",
            got=key_type,
            expected="2 (ECDSA P-256)",
        )
    return TdxQuote(
        raw=bytes(raw),
        identity=sha256_hex(raw[:SIGNED_BYTES]),
        td_attributes=bytes(raw[168:176]),
        mrtd=raw[184:232].hex(),
        mr_config_id=bytes(raw[232:280]),
        rtmr=(raw[376:424].hex(), raw[424:472].hex(), raw[472:520].hex(), raw[520:568].hex()),
        report_data=bytes(raw[568:632]),
        certificates=_certificates(_signature_data(raw)),
    )


def _signature_data(raw: bytes) -> bytes:
    """Walk the nested lengths and return the PEM chain they end in."""
    (auth_size,) = struct.unpack_from("<I", raw, SIGNED_BYTES)
    _exact("signature data", _AUTH_AT + auth_size, len(raw))
    outer = _AUTH_AT + 128
    cert_type, cert_size = _header(raw, outer)
    _exact("certification data", outer + 6 + cert_size, len(raw))
    _known("certification data type", cert_type, 6)
    qe_auth = outer + 6 + 384 + 64
    if len(raw) < qe_auth + 2:
        raise QuoteInvalid("quote is truncated", check="quote structure")
    (qe_auth_size,) = struct.unpack_from("<H", raw, qe_auth)
    inner = qe_auth + 2 + qe_auth_size
    chain_type, chain_size = _header(raw, inner)
    _exact("certificate chain", inner + 6 + chain_size, len(raw))
    _known("certificate chain type", chain_type, 5)
    return raw[inner + 6 :]


def _header(raw: bytes, at: int) -> tuple[int, int]:
    if len(raw) < at + 6:
        raise QuoteInvalid("quote is truncated", check="quote structure")
    kind, size = struct.unpack_from("<HI", raw, at)
    return kind, size


def _exact(what: str, end: int, length: int) -> None:
    if end != length:
        raise QuoteInvalid(
            f"{what} of the quote does not end where the quote ends",
            check="quote structure",
            got=f"end at byte {end}",
            expected=f"byte {length}",
            hint="trailing bytes are refused; collectors cut the platform's zero padding",
        )


def _known(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise QuoteInvalid(
            f"quote has an unsupported {what}", check="quote structure", got=got, expected=expected
        )


def _certificates(chain: bytes) -> tuple[bytes, ...]:
    """DER certificates of a PEM chain that holds nothing else (one final NUL is the platform's)."""
    text = chain.removesuffix(b"\0")
    found: list[bytes] = []
    at = 0
    while at < len(text) and len(found) < _MAX_CERTIFICATES:
        match = _PEM.match(text, at)
        if match is None:
            break
        try:
            found.append(base64.b64decode(match[1].replace(b"\n", b""), validate=True))
        except binascii.Error as error:
            raise QuoteInvalid(
                "certificate in the quote is not PEM", check="quote structure"
            ) from error
        at = match.end()
    if at != len(text) or len(found) < 2:
        raise QuoteInvalid("certificate chain of the quote is malformed", check="quote structure")
    return tuple(found)
