"""Verification of a Nitro document: structure, chain, signature; then what the enclave is.

``verify_document`` shows that the Nitro Secure Module made a document; it holds for every enclave
of every customer. sealtrain's enclaves also measure their deployment document into PCR16
(``compose_register``), and have the module sign report data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.errors import EvidenceStale, MeasurementMismatch, QuoteInvalid
from sealtrain.attest.nitro.chain import verify_chain
from sealtrain.attest.nitro.parse import (
    ENCLAVE,
    PCR_BYTES,
    DocumentForm,
    NitroDocument,
    parse_document,
)
from sealtrain.base.clock import to_rfc3339

SOURCE = "NSM document"
COMPOSE_PCR = 16
"""The first register that is the enclave's own; holds the hash of its deployment document."""
PARENT_PCR = 4
FUTURE_TOLERANCE_S = 60
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
        pcrs: Locked registers in hex.
    """

    document: NitroDocument
    simulated: bool
    valid_from: int
    valid_until: int
    pcrs: Mapping[int, str]

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the signature covers, hex."""
        return self.document.identity

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
    def unknown_fields(self) -> tuple[str, ...]:
        """Fields of the payload that this version does not know."""
        return self.document.unknown_fields


def verify_document(
    raw: bytes, *, simulator_root: bytes | None, now: int, form: DocumentForm = ENCLAVE
) -> VerifiedDocument:
    """Verify structure, chain and signature.

    Args:
        raw: The document.
        simulator_root: The one software root to trust, or ``None`` for AWS's.
        now: Verification time, seconds since 1970.
        form: Whose document it must be.

    Raises:
        EvidenceMalformed: Not a document of the module's form.
        SimulatedEvidence: A simulator's document where hardware is asked for.
        QuoteRootUntrusted: The chain leads to another root.
        CertificateChainInvalid: The chain does not hold at ``now``.
        QuoteInvalid: The signature does not hold.
    """
    document = parse_document(raw, form)
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
        pcrs=MappingProxyType({index: value.hex() for index, value in document.pcrs.items()}),
    )


def extend(register: bytes, data: bytes) -> bytes:
    """A register after one extension: ``SHA-384(register ‖ data)``."""
    return hashlib.sha384(register + data).digest()


def compose_register(compose_hash: str) -> bytes:
    """What PCR16 holds for a deployment document's SHA-256 (hex); a KMS's key policies name it."""
    return extend(_UNSET, bytes.fromhex(compose_hash))


def measure_document(document: NitroDocument) -> str:
    """PCR16 in hex, where it is locked."""
    return document.pcr(COMPOSE_PCR) or "PCR16 is not locked"


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


def check_parent(document: NitroDocument) -> None:
    """The module names its parent twice: in its id and in PCR4. Absent or zero says nothing.

    Raises:
        MeasurementMismatch: PCR4 is of another parent than the module's name says.
    """
    found = document.pcrs.get(PARENT_PCR, _UNSET)
    expected = extend(_UNSET, document.parent_id.encode("ascii"))
    if found != _UNSET and found != expected:
        raise MeasurementMismatch(
            "PCR4 is of another parent instance than the module's name says",
            check="parent instance",
            got=found.hex(),
            expected=f"{expected.hex()} for {document.parent_id}",
        )
