"""TDX quotes, versions 4 and 5: strict structure, nothing trusted yet.

A quote is accepted only in its one length: header (48) || TD report || length (4) || signature
data, every inner length exact and no byte after the last. In version 4 the report is 584 bytes
long; version 5 puts its type (2) and size (4) before it and knows a second one of 648 bytes, which
adds the service guest that could migrate this one. Without the length rule a quote has many
encodings that all verify. Even so the ECDSA signature itself can be re-encoded, hence the identity
of a quote is the SHA-256 of what the signature covers: ``bytes 0..631`` in version 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sealtrain.attest.errors import PlatformMismatch, QuoteInvalid
from sealtrain.attest.roots import certificates_of_pem
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid

_HEADER_BYTES = 48
_REPORT_BYTES = {2: 584, 3: 648}
"""Report sizes by the body type of version 5; version 4 always has type 2."""
_QE_SVN = 4 + 128 + 6 + 258
"""Behind the signed part: length, signature and key, head, then ISVSVN in the enclave's report."""
_TDX = 0x81
_SGX = 0x00
_DEBUG_BIT = 0x01


REGISTERS_AND_DATA: Final = slice(328, 584)
"""RTMR0 to RTMR3 and REPORTDATA in a TD report: what a running guest decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxQuote:
    """Fields of a parsed quote. Registers are lower-case hex (96 digits)."""

    raw: bytes
    identity: str
    tee_tcb_svn: bytes
    """Security versions of the TDX module and what loaded it, 16 bytes."""
    qe_svn: int
    """Security version of the quoting enclave."""
    td_attributes: bytes
    mrtd: str
    mr_config_id: bytes
    rtmr: tuple[str, str, str, str]
    report_data: bytes
    service_td: bytes
    """Measurement of the service guest bound to this one, 48 bytes; zeros without one."""
    certificates: tuple[bytes, ...]
    """DER: PCK leaf, its issuer, the root."""

    @property
    def report_span(self) -> tuple[int, int]:
        """First byte of the TD report, and how many bytes from the start are signed."""
        return _report_span(self.raw)

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
        PlatformMismatch: A quote of SGX or of an unknown kind of platform.
        QuoteInvalid: Too short, or something else than zeros follows the signature data.
    """
    auth = _report_span(raw)[1] + 4
    end = auth + int.from_bytes(raw[auth - 4 : auth], "little")
    if len(raw) < end or raw[end:].strip(b"\0"):
        raise QuoteInvalid("quote has the wrong length", check="quote structure")
    return raw[:end]


def parse_quote(raw: bytes) -> TdxQuote:
    """Parse the one encoding of a TDX quote.

    Args:
        raw: The whole quote.

    Raises:
        PlatformMismatch: A quote of SGX or of an unknown kind of platform.
        QuoteInvalid: Another version, a truncated quote, trailing bytes, an inconsistent length.
    """
    start, end = _report_span(raw)
    report = bytes(raw[start:end])
    return TdxQuote(
        raw=bytes(raw),
        identity=sha256_hex(raw[:end]),
        tee_tcb_svn=report[:16],
        qe_svn=int.from_bytes(raw[end + _QE_SVN : end + _QE_SVN + 2], "little"),
        td_attributes=report[120:128],
        mrtd=report[136:184].hex(),
        mr_config_id=report[184:232],
        rtmr=(
            report[328:376].hex(),
            report[376:424].hex(),
            report[424:472].hex(),
            report[472:520].hex(),
        ),
        report_data=report[520:584],
        service_td=report[600:648] or bytes(48),
        certificates=_certificates(_chain(raw, end + 4)),
    )


def _report_span(raw: bytes) -> tuple[int, int]:
    """First byte of the TD report and first byte after it, where the signed part ends."""
    if len(raw) < _HEADER_BYTES + 6:
        raise _refuse_truncated()
    version, key_type, tee_type = struct.unpack_from("<HHI", raw, 0)
    if tee_type != _TDX or version == 3:
        found = "SGX" if tee_type == _SGX or version == 3 else f"tee type {tee_type:#x}"
        raise PlatformMismatch(
            "quote is not of a TDX guest", check="quote kind", got=found, expected="TDX"
        )
    if version not in (4, 5):
        raise QuoteInvalid(
            "quote has an unsupported version",
            check="quote structure",
            got=version,
            expected="4 or 5",
        )
    _require_known("attestation key type", key_type, 2)
    start, kind, size = _HEADER_BYTES, 2, _REPORT_BYTES[2]
    if version == 5:
        kind, size = struct.unpack_from("<HI", raw, start)
        start += 6
    if size != _REPORT_BYTES.get(kind):
        raise QuoteInvalid(
            "quote holds an unsupported report",
            check="quote structure",
            got=f"type {kind}, {size} bytes",
            expected="TD report 1.0 or 1.5",
        )
    if len(raw) < start + size + 4:
        raise _refuse_truncated()
    return start, start + size


def _chain(raw: bytes, auth: int) -> bytes:
    """Walk the nested lengths of the signature data and return the PEM chain they end in."""
    _exact("signature data", auth + int.from_bytes(raw[auth - 4 : auth], "little"), len(raw))
    outer = auth + 128
    cert_type, cert_size = _header(raw, outer)
    _exact("certification data", outer + 6 + cert_size, len(raw))
    _require_known("certification data type", cert_type, 6)
    qe_auth = outer + 6 + 384 + 64
    if len(raw) < qe_auth + 2:
        raise _refuse_truncated()
    inner = qe_auth + 2 + int.from_bytes(raw[qe_auth : qe_auth + 2], "little")
    chain_type, chain_size = _header(raw, inner)
    _exact("certificate chain", inner + 6 + chain_size, len(raw))
    _require_known("certificate chain type", chain_type, 5)
    return raw[inner + 6 :]


def _header(raw: bytes, at: int) -> tuple[int, int]:
    if len(raw) < at + 6:
        raise _refuse_truncated()
    kind, size = struct.unpack_from("<HI", raw, at)
    return kind, size


def _refuse_truncated() -> QuoteInvalid:
    return QuoteInvalid("quote is truncated", check="quote structure")


def _exact(what: str, end: int, length: int) -> None:
    if end != length:
        raise QuoteInvalid(
            f"{what} of the quote does not end where the quote ends",
            check="quote structure",
            got=f"end at byte {end}",
            expected=f"byte {length}",
            hint="trailing bytes are refused; collectors cut the platform's zero padding",
        )


def _require_known(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise QuoteInvalid(
            f"quote has an unsupported {what}", check="quote structure", got=got, expected=expected
        )


@lru_cache(maxsize=64)
def _certificates(chain: bytes) -> tuple[bytes, ...]:
    """Leaf, issuer and root, and nothing else; one final NUL is the platform's.

    Remembered by the exact bytes: all quotes of one machine carry the same.
    """
    try:
        found = certificates_of_pem(chain.removesuffix(b"\0"))
    except DataInvalid as error:
        raise QuoteInvalid(
            f"certificate chain of the quote: {error.message}", check="quote structure"
        ) from error
    if len(found) != 3:
        raise QuoteInvalid(
            "certificate chain of the quote has the wrong length",
            check="quote structure",
            got=len(found),
            expected=3,
        )
    return found
