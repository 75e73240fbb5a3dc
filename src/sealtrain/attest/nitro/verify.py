"""Verification of a Nitro document: structure, chain, signature; then what the enclave is.

``verify_document`` shows that the Nitro Secure Module made a document; it holds for every enclave
of every customer. ``verify_nitro`` also asks for a production enclave that measured its deployment
document into PCR16 the way sealtrain's enclaves do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.nitro.chain import verify_chain
from sealtrain.attest.nitro.parse import PCR_BYTES, NitroDocument, parse_document
from sealtrain.attest.nitro.policy import NitroPolicy
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import (
    ComposeHashMismatch,
    DebugGuest,
    EvidenceStale,
    MeasurementMismatch,
    QuoteInvalid,
    ReportDataMismatch,
)

__all__ = [
    "COMPOSE_PCR",
    "VerifiedDocument",
    "VerifiedNitro",
    "check_age",
    "check_compose",
    "check_parent",
    "compose_register",
    "extended",
    "verify_document",
    "verify_nitro",
]

COMPOSE_PCR = 16
"""The first register that is the enclave's own; holds the hash of its deployment document."""
PARENT_PCR = 4
FUTURE_TOLERANCE_S = 60
REPORT_DATA_BYTES = 64
_UNSET = bytes(PCR_BYTES)
_IMAGE_PCRS = (0, 1, 2)
_ECDSA = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDocument:
    """A document whose chain and signature hold at a moment.

    Attributes:
        document: Its fields.
        simulated: Whether a simulator's root stands behind it.
        valid_from: First second at which every certificate is valid.
        valid_until: Last such second.
    """

    document: NitroDocument
    simulated: bool
    valid_from: int
    valid_until: int

    @property
    def debug(self) -> bool:
        """Whether the enclave runs in debug mode: its image registers are zero."""
        return any(self.document.pcrs[index] == _UNSET for index in _IMAGE_PCRS)

    @property
    def module_id(self) -> str:
        """``i-<parent>-enc<enclave>``."""
        return self.document.module_id

    @property
    def timestamp_ms(self) -> int:
        """When the document was made."""
        return self.document.timestamp_ms

    @property
    def parent_id(self) -> str:
        """The parent instance."""
        return self.document.parent_id

    @property
    def pcrs(self) -> Mapping[int, str]:
        """Locked registers in hex."""
        return _in_hex(self.document)

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Fields of the payload that this version does not know."""
        return self.document.unknown_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedNitro:
    """A production enclave that measured ``app_compose``.

    Attributes:
        simulated: Whether a simulator's root stands behind it.
        quote_identity: SHA-256 of what the signature covers, hex.
        report_data: The document's ``user_data``, 64 bytes.
        app_id: First 20 bytes of the compose hash, hex.
        compose_hash: SHA-256 of ``app_compose``, hex.
        app_compose: The deployment document that PCR16 holds.
        instance_id: The enclave's id, 16 hex digits.
        module_id: ``i-<parent>-enc<enclave>``.
        parent_id: The parent instance.
        timestamp_ms: When the document was made.
        pcrs: Locked registers in hex.
        unknown_fields: Fields of the payload that this version does not know.
    """

    simulated: bool
    quote_identity: str
    report_data: bytes
    app_id: str
    compose_hash: str
    app_compose: bytes
    instance_id: str
    module_id: str
    parent_id: str
    timestamp_ms: int
    pcrs: Mapping[int, str]
    unknown_fields: tuple[str, ...]

    @property
    def key_provider(self) -> str:
        """No broker gives such a guest keys."""
        return ""


def verify_document(raw: bytes, *, simulator_root: bytes | None, now: int) -> VerifiedDocument:
    """Verify structure, chain and signature.

    Args:
        raw: The document.
        simulator_root: The one software root to trust, or ``None`` for AWS's.
        now: Verification time, seconds since 1970.

    Raises:
        EvidenceMalformed: Not a document of the module's form.
        SimulatedEvidence: A simulator's document where hardware is asked for.
        QuoteRootUntrusted: The chain leads to another root.
        CertificateChainInvalid: The chain does not hold at ``now``.
        QuoteInvalid: The signature does not hold.
    """
    document = parse_document(raw)
    chain = verify_chain(
        document.cabundle, document.certificate, simulator_root=simulator_root, now=now
    )
    half = len(document.signature) // 2
    signature = encode_dss_signature(
        int.from_bytes(document.signature[:half], "big"),
        int.from_bytes(document.signature[half:], "big"),
    )
    try:
        chain.key.verify(signature, document.signed, _ECDSA)
    except InvalidSignature:
        raise QuoteInvalid(
            "signature of the Nitro document does not verify", check="document signature"
        ) from None
    return VerifiedDocument(
        document=document,
        simulated=chain.simulated,
        valid_from=chain.valid_from,
        valid_until=chain.valid_until,
    )


def verify_nitro(
    document: bytes,
    app_compose: bytes,
    policy: NitroPolicy,
    *,
    simulator_root: bytes | None,
    now: int,
) -> VerifiedNitro:
    """Verify that a production enclave with this deployment document made a document.

    Args:
        document: The document.
        app_compose: The deployment document, raw bytes.
        policy: How old a document may be; images and places are compared by ``claims_of``.
        simulator_root: The one software root to trust, or ``None`` for AWS's.
        now: Verification time, seconds since 1970.

    Raises:
        EvidenceRefused: As ``verify_document``.
        EvidenceStale: Made too long ago or in the future.
        DebugGuest: PCR0, PCR1 or PCR2 is zero.
        MeasurementMismatch: PCR4 is of another parent than the module's name says.
        ComposeHashMismatch: PCR16 is not locked over the hash of ``app_compose``.
        ReportDataMismatch: ``user_data`` is not 64 bytes.
    """
    verified = verify_document(document, simulator_root=simulator_root, now=now)
    parsed = verified.document
    check_age(parsed.timestamp_ms, policy.max_age_s, now)
    if verified.debug:
        raise DebugGuest(
            "enclave runs in debug mode",
            check="debug",
            got="an image register of zeros",
            expected="measurements",
            hint="start the enclave without --debug-mode",
        )
    check_parent(parsed)
    compose_hash = hashlib.sha256(app_compose).digest()
    check_compose(parsed, compose_hash)
    if parsed.user_data is None or len(parsed.user_data) != REPORT_DATA_BYTES:
        raise ReportDataMismatch(
            "document does not hold report data",
            check="report data",
            got="none" if parsed.user_data is None else f"{len(parsed.user_data)} bytes",
            expected=f"{REPORT_DATA_BYTES} bytes of user_data",
        )
    return VerifiedNitro(
        simulated=verified.simulated,
        quote_identity=parsed.identity,
        report_data=parsed.user_data,
        app_id=compose_hash[:20].hex(),
        compose_hash=compose_hash.hex(),
        app_compose=app_compose,
        instance_id=parsed.enclave_id,
        module_id=parsed.module_id,
        parent_id=parsed.parent_id,
        timestamp_ms=parsed.timestamp_ms,
        pcrs=_in_hex(parsed),
        unknown_fields=parsed.unknown_fields,
    )


def extended(register: bytes, data: bytes) -> bytes:
    """A register after one extension: ``SHA-384(register ‖ data)``."""
    return hashlib.sha384(register + data).digest()


def compose_register(compose_hash: bytes) -> bytes:
    """What PCR16 holds for a deployment document; key policies of a KMS name it, too."""
    return extended(_UNSET, compose_hash)


def check_age(timestamp_ms: int, max_age_s: int, now: int) -> int:
    """Age of a document in whole seconds, at least 0.

    Raises:
        EvidenceStale: Older than ``max_age_s``, or more than a minute in the future.
    """
    age_ms = now * 1000 - timestamp_ms
    if not -FUTURE_TOLERANCE_S * 1000 <= age_ms <= max_age_s * 1000:
        raise EvidenceStale(
            "document was made too long ago or in the future",
            check="document age",
            got=f"made {to_rfc3339(timestamp_ms // 1000)}",
            expected=f"at most {max_age_s} s before the verification time",
            hint="ask for a new document" if age_ms > 0 else "check the clock",
        )
    return max(0, age_ms // 1000)


def _in_hex(document: NitroDocument) -> Mapping[int, str]:
    return MappingProxyType({index: value.hex() for index, value in document.pcrs.items()})


def check_parent(document: NitroDocument) -> None:
    """The module names its parent twice: in its id and in PCR4. Absent or zero says nothing.

    Raises:
        MeasurementMismatch: PCR4 is of another parent than the module's name says.
    """
    found = document.pcrs.get(PARENT_PCR, _UNSET)
    expected = extended(_UNSET, document.parent_id.encode("ascii"))
    if found != _UNSET and found != expected:
        raise MeasurementMismatch(
            "PCR4 is of another parent instance than the module's name says",
            check="parent instance",
            got=found.hex(),
            expected=f"{expected.hex()} for {document.parent_id}",
        )


def check_compose(document: NitroDocument, compose_hash: bytes) -> None:
    """Require PCR16 to be locked over a deployment document's SHA-256.

    Raises:
        ComposeHashMismatch: It is not locked, or over another hash.
    """
    found = document.pcrs.get(COMPOSE_PCR)
    expected = compose_register(compose_hash)
    if found is None or not hmac.compare_digest(found, expected):
        raise ComposeHashMismatch(
            "enclave measured another deployment document",
            check="compose hash",
            got="PCR16 is not locked" if found is None else f"PCR16 {found.hex()}",
            expected=f"PCR16 {expected.hex()}",
            hint="the enclave's init extends PCR16 with the document's SHA-256 and locks it",
        )
