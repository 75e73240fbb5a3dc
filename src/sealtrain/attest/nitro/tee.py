"""AWS Nitro Enclaves, for the rest of attest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.nitro.evidence import NitroEvidence
from sealtrain.attest.nitro.policy import COMMENTS, LINES, PRESETS, SIMULATED, NitroPolicy
from sealtrain.attest.tee import Device, Given, Shown, Tee
from sealtrain.base.encoding import to_base64
from sealtrain.errors import GuestApiUnreachable

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.claims import Claim
    from sealtrain.attest.dstack.client import DstackClient
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Exhibit, Statement
    from sealtrain.attest.nitro.verify import VerifiedNitro
    from sealtrain.attest.part import Part, Situation

__all__ = ["TEE"]


def _verify(evidence: NitroEvidence, rules: NitroPolicy, given: Given) -> VerifiedNitro:
    from sealtrain.attest.nitro.verify import verify_nitro

    return verify_nitro(
        evidence.document_bytes,
        evidence.app_compose_bytes,
        rules,
        simulator_root=given.simulator_root,
        now=given.now,
    )


def _claims(verified: VerifiedNitro, rules: NitroPolicy, now: int) -> tuple[Claim, ...]:
    from sealtrain.attest.nitro.appraise import claims_of

    return claims_of(verified, rules, now)


def _eat(verified: VerifiedNitro) -> dict[str, str]:
    from sealtrain.attest.nitro.appraise import eat

    return eat(verified)


def _part(evidence: NitroEvidence, beside: Beside, at: Situation) -> Part:
    from sealtrain.attest.nitro.exhibit import nitro_part

    return nitro_part(evidence.document_bytes, at, own=True)


def _fields(evidence: NitroEvidence) -> list[Field]:
    from sealtrain.attest.nitro.exhibit import nitro_fields
    from sealtrain.attest.nitro.parse import parse_document

    return nitro_fields(parse_document(evidence.document_bytes))


def _recognise(data: bytes) -> Exhibit | None:
    from sealtrain.attest.nitro.exhibit import recognise

    return recognise(data)


def _show(place: Path, report_data: bytes) -> tuple[Statement, Beside]:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.nitro.collect import attestation, device_nsm
    from sealtrain.attest.nitro.exhibit import Nitro
    from sealtrain.attest.nitro.parse import parse_document

    raw = attestation(device_nsm(place), user_data=report_data)
    return Nitro(raw=raw, document=parse_document(raw)), Beside()


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    from sealtrain.attest.nitro.collect import attestation, device_nsm

    document = attestation(device_nsm(device), user_data=report_data)
    return {"tee": "nitro", "document": to_base64(document)}


def _ask_agent(client: DstackClient, report_data: bytes) -> Shown:
    """A simulated security module, which answers on the guest's socket."""
    from sealtrain.attest.nitro.collect import attestation

    def nsm(request: bytes) -> bytes:
        answer = client.call("/simulator/Nsm", {"request": request.hex()}).get("response")
        try:
            return bytes.fromhex(answer)  # type: ignore[arg-type]  # anything else is refused
        except (TypeError, ValueError) as error:
            raise GuestApiUnreachable("simulated security module answers no hex") from error

    return {"tee": "nitro", "document": to_base64(attestation(nsm, user_data=report_data))}


def _pinned_roots() -> dict[str, str]:
    from sealtrain.attest.nitro.chain import AWS_NITRO_ROOT_SHA256

    return {AWS_NITRO_ROOT_SHA256: "AWS's pinned root of Nitro Enclaves"}


TEE = Tee(
    name="nitro",
    vendor="aws",
    vendor_root="the root of AWS",
    evidence=NitroEvidence,
    policy=NitroPolicy,
    verify=_verify,
    claims=_claims,
    eat=_eat,
    part=_part,
    fields=_fields,
    kinds=("nitro-document",),
    recognise=_recognise,
    show=_show,
    pinned_roots=_pinned_roots,
    device=Device(path="dev/nsm", flag="nitro_enclaves", reports=False),
    collect=_collect,
    ask_agent=_ask_agent,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
