"""Intel TDX without dstack, for the rest of attest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.tdx.evidence import TdxEvidence
from sealtrain.attest.tdx.policy import COMMENTS, LINES, SIMULATED, TdxPolicy
from sealtrain.attest.tee import Device, Given, Shown, Tee
from sealtrain.base.encoding import to_base64

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.claims import Claim
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Exhibit, Statement
    from sealtrain.attest.part import Part, Situation
    from sealtrain.attest.tdx.verify import VerifiedTdx

__all__ = ["TEE", "pinned_roots"]


def _verify(evidence: TdxEvidence, rules: TdxPolicy, given: Given) -> VerifiedTdx:
    from sealtrain.attest.tdx.verify import needed, verify_tdx

    return verify_tdx(
        evidence.quote_bytes,
        evidence.app_compose_bytes,
        needed(given.collateral),
        rules,
        simulator_root=given.simulator_root,
        now=given.now,
    )


def _claims(verified: VerifiedTdx, rules: TdxPolicy, now: int) -> tuple[Claim, ...]:
    from sealtrain.attest.tdx.appraise import claims_of

    return claims_of(verified, rules, now)


def _eat(verified: VerifiedTdx) -> dict[str, str]:
    from sealtrain.attest.tdx.appraise import eat

    return eat(verified)


def _part(evidence: TdxEvidence, beside: Beside, at: Situation) -> Part:
    from sealtrain.attest.tdx.exhibit import quote_part

    return quote_part(evidence.quote_bytes, beside.collateral, at)


def _fields(evidence: TdxEvidence) -> list[Field]:
    from sealtrain.attest.tdx.exhibit import quote_fields
    from sealtrain.attest.tdx.parse import parse_quote

    return quote_fields(parse_quote(evidence.quote_bytes))


def _recognise(data: bytes) -> Exhibit | None:
    from sealtrain.attest.tdx.exhibit import recognise

    return recognise(data)


def _show(place: Path, report_data: bytes) -> tuple[Statement, Beside]:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.tdx.collect import collect_quote
    from sealtrain.attest.tdx.exhibit import Quote
    from sealtrain.attest.tdx.parse import parse_quote

    raw = collect_quote(report_data, base=place)
    return Quote(raw=raw, quote=parse_quote(raw)), Beside()


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    from sealtrain.attest.tdx.collect import collect_quote

    return {"tee": "tdx", "quote": to_base64(collect_quote(report_data, base=device))}


def pinned_roots() -> dict[str, str]:
    """Intel's."""
    from sealtrain.attest.roots import INTEL_ROOT_SHA256

    return {INTEL_ROOT_SHA256: "Intel's pinned root"}


TEE = Tee(
    name="tdx",
    vendor="intel",
    vendor_root="Intel's root",
    evidence=TdxEvidence,
    policy=TdxPolicy,
    verify=_verify,
    claims=_claims,
    eat=_eat,
    part=_part,
    fields=_fields,
    kinds=("tdx-quote",),
    recognise=_recognise,
    show=_show,
    pinned_roots=pinned_roots,
    dcap=True,
    device=Device(
        path="dev/tdx_guest",
        flag="tdx_guest",
        reports=True,
        alone=False,
        absent="the processor says TDX guest, there is no /dev/tdx_guest",
    ),
    collect=_collect,
    lines=LINES,
    comments=COMMENTS,
    presets={},
    simulated=SIMULATED,
)
