"""Evidence: what a guest shows about itself, in one canonical, bounded document.

The document carries no verdict and no trust; ``attest.verify`` decides. Everything that nothing
signs is kept out or must be empty, so that one guest state has one evidence (spec/evidence.md §3).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import StrictModel, load_model
from sealtrain.errors import DataInvalid, EvidenceMalformed, LimitExceeded

__all__ = [
    "MAX_COMPOSE_CHARS",
    "MAX_EVIDENCE_BYTES",
    "MAX_LOG_ENTRIES",
    "MAX_QUOTE_BYTES",
    "Collateral",
    "Evidence",
    "LogEntry",
]

MAX_EVIDENCE_BYTES = 16 << 20
MAX_QUOTE_BYTES = 32 << 10
MAX_LOG_ENTRIES = 1024
MAX_COMPOSE_CHARS = 4 << 20
_MAX_PAYLOAD_HEX = 128 << 10

_Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=_MAX_PAYLOAD_HEX)]
_CrlHex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})+$", max_length=4 << 20)]
_SignatureHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Chain = Annotated[str, StringConstraints(min_length=1, max_length=64 << 10)]
_Signed = Annotated[str, StringConstraints(min_length=1, max_length=512 << 10)]


class Collateral(StrictModel):
    """What the vendor publishes about a platform; field names are those of DCAP's collateral.

    ``tcb_info`` and ``qe_identity`` are the exact signed texts and are never re-serialised.
    """

    pck_crl_issuer_chain: _Chain
    root_ca_crl: _CrlHex
    pck_crl: _CrlHex
    tcb_info_issuer_chain: _Chain
    tcb_info: _Signed
    tcb_info_signature: _SignatureHex
    qe_identity_issuer_chain: _Chain
    qe_identity: _Signed
    qe_identity_signature: _SignatureHex

    @classmethod
    def from_dict(cls, data: JsonValue) -> Collateral:
        """Validate parsed JSON.

        Raises:
            EvidenceMalformed: A field is missing, unknown, of another form, or too long.
        """
        return load_model(cls, data, EvidenceMalformed, "collateral")


class LogEntry(StrictModel):
    """One event of a measured boot log.

    ``imr`` 0 to 2: a firmware event is its ``digest``; everything else about it is unsigned and
    has its neutral value (type 0, empty texts, version 1). ``imr`` 3: a run-time event is its type,
    name, payload and digest version; its ``digest`` is recomputed and therefore empty here.
    """

    imr: Annotated[int, Field(ge=0, le=3)]
    event_type: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    digest: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{96})?$")]
    event: Annotated[str, StringConstraints(max_length=256)]
    event_payload: _Hex
    version: Annotated[int, Field(ge=1, le=2)]


class Evidence(StrictModel):
    """Evidence of one guest at one moment.

    ``app_compose`` is the raw text of the deployment document, kept byte for byte: its SHA-256 is
    the measured compose hash. ``vm_config`` is the host's unsigned statement, kept for the record.
    """

    version: Annotated[int, Field(ge=1, le=1)]  # unlike Literal[1], refuses true
    platform: Literal["dstack", "simulator"]
    quote: Annotated[str, StringConstraints(min_length=4, max_length=MAX_QUOTE_BYTES * 4 // 3 + 4)]
    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    app_compose: Annotated[str, StringConstraints(min_length=2, max_length=MAX_COMPOSE_CHARS)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None
    collateral: Collateral | None

    @field_validator("quote")
    @classmethod
    def _canonical_base64(cls, text: str) -> str:
        try:
            from_base64(text)
        except DataInvalid as error:
            raise ValueError(error.message) from None
        return text

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)

    @property
    def app_compose_bytes(self) -> bytes:
        """The deployment document's raw bytes."""
        return self.app_compose.encode("utf-8")

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hex digits: names this document, not the quote's state."""
        return sha256_hex(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return canonical_json(self.to_dict())

    def with_collateral(self, collateral: Collateral | None) -> Self:
        """The same evidence with other collateral, to archive a verification and its inputs."""
        return self.model_copy(update={"collateral": collateral})

    @classmethod
    def from_bytes(cls, data: bytes) -> Evidence:
        """Parse canonical JSON of at most ``MAX_EVIDENCE_BYTES``.

        Raises:
            EvidenceMalformed: Too long, too deep, not canonical, or not evidence.
        """
        try:
            value = parse_canonical(data, max_bytes=MAX_EVIDENCE_BYTES)
        except (DataInvalid, LimitExceeded) as error:
            raise EvidenceMalformed(
                f"evidence cannot be parsed: {error.message}",
                check="evidence form",
                hint="evidence is canonical JSON (RFC 8785) as spec/evidence.md describes it",
            ) from error
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, data: JsonValue) -> Evidence:
        """Validate parsed JSON.

        Raises:
            EvidenceMalformed: A field is missing, unknown, of another form, or too long.
        """
        return load_model(cls, data, EvidenceMalformed, "evidence")

    @classmethod
    def build(
        cls,
        *,
        platform: Literal["dstack", "simulator"],
        quote: bytes,
        event_log: tuple[LogEntry, ...],
        app_compose: bytes,
        vm_config: str | None,
        collateral: Collateral | None,
    ) -> Evidence:
        """Evidence from its parts.

        Raises:
            EvidenceMalformed: A part is malformed or over its limit, or the deployment document is
                not UTF-8 text.
        """
        try:
            compose_text = app_compose.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EvidenceMalformed("deployment document is not UTF-8 text") from error
        fields: dict[str, Any] = {
            "version": 1,
            "platform": platform,
            "quote": to_base64(quote),
            "event_log": [entry.to_dict() for entry in event_log],
            "app_compose": compose_text,
            "vm_config": vm_config,
            "collateral": None if collateral is None else collateral.to_dict(),
        }
        return cls.from_dict(fields)
