"""What every TEE's evidence is made of: its form, its rules, and what vendors publish beside it.

``attest.evidence`` puts the forms of all TEEs together, ``attest.policy`` their rules.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import StrictModel, load_model

MAX_EVIDENCE_BYTES = 16 << 20
MAX_EVIDENCE_VALUES = 1 << 16
"""The longest log has an eighth of them."""
MAX_QUOTE_BYTES = 32 << 10
MAX_CRL_BYTES = 64 << 10
"""Longest revocation list that is read; AMD's have a few hundred bytes."""
MAX_LOG_ENTRIES = 1024
MAX_COMPOSE_CHARS = 4 << 20
_MAX_PAYLOAD_HEX = 128 << 10

_Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=_MAX_PAYLOAD_HEX)]
_CrlHex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})+$", max_length=4 << 20)]
_SignatureHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Chain = Annotated[str, StringConstraints(min_length=1, max_length=64 << 10)]
_Signed = Annotated[str, StringConstraints(min_length=1, max_length=512 << 10)]
_Compose = Annotated[str, StringConstraints(min_length=2, max_length=MAX_COMPOSE_CHARS)]


def limit_base64(most: int) -> StringConstraints:
    """Length of base64 that stands for 1 to ``most`` bytes."""
    return StringConstraints(min_length=4, max_length=(most + 2) // 3 * 4)


class GuestEvidence(StrictModel):
    """A guest that measured ``app_compose``: the deployment document's raw text, byte for byte.

    Each TEE's form names its ``tee`` and adds what the processor signed.
    """

    tee: str
    app_compose: _Compose

    @property
    def app_compose_bytes(self) -> bytes:
        """The deployment document's raw bytes."""
        return self.app_compose.encode("utf-8")


class GuestPolicy(StrictModel):
    """Rules for the guests of one TEE; each TEE's form names its ``tee`` and adds its fields."""

    tee: str


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
