"""AMD SEV-SNP, for the rest of attest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.snp.evidence import SnpEvidence
from sealtrain.attest.snp.policy import COMMENTS, LINES, PRESETS, SIMULATED, SnpPolicy
from sealtrain.attest.tee import Device, Given, Shown, Tee
from sealtrain.base.encoding import to_base64

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.claims import Claim
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Exhibit, Statement
    from sealtrain.attest.part import Part, Situation
    from sealtrain.attest.snp.verify import VerifiedSnp

__all__ = ["TEE"]


def _verify(evidence: SnpEvidence, rules: SnpPolicy, given: Given) -> VerifiedSnp:
    from sealtrain.attest.snp.verify import verify_snp

    return verify_snp(
        evidence.report_bytes,
        evidence.certificates_der,
        evidence.app_compose_bytes,
        simulator_root=given.simulator_root,
        now=given.now,
        crl=evidence.crl_der if given.crl is None else given.crl,
    )


def _claims(verified: VerifiedSnp, rules: SnpPolicy, now: int) -> tuple[Claim, ...]:
    from sealtrain.attest.snp.appraise import claims_of

    return claims_of(verified, rules, now)


def _eat(verified: VerifiedSnp) -> dict[str, str]:
    from sealtrain.attest.snp.appraise import eat

    return eat(verified)


def _part(evidence: SnpEvidence, beside: Beside, at: Situation) -> Part:
    from sealtrain.attest.snp.exhibit import snp_part

    crl = evidence.crl_der if beside.crl is None else beside.crl
    return snp_part(evidence.report_bytes, evidence.certificates_der, crl, at)


def _fields(evidence: SnpEvidence) -> list[Field]:
    from sealtrain.attest.snp.exhibit import snp_fields
    from sealtrain.attest.snp.parse import parse_report

    return snp_fields(parse_report(evidence.report_bytes), evidence.certificates_der)


def _recognise(data: bytes) -> Exhibit | None:
    from sealtrain.attest.snp.exhibit import recognise

    return recognise(data)


def _show(place: Path, report_data: bytes) -> tuple[Statement, Beside]:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.snp.collect import collect
    from sealtrain.attest.snp.exhibit import Snp
    from sealtrain.attest.snp.parse import parse_report

    found = collect(place, report_data)
    shown = Snp(raw=found.report, report=parse_report(found.report))
    return shown, Beside(certificates=found.certificates, crl=found.crl)


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    from sealtrain.attest.snp.collect import certificates_in, collect, revocations_in

    folder = Path(options["certificates"]) if options.get("certificates") else None
    found = collect(device, report_data, certificates=certificates_in(folder))
    crl = revocations_in(folder) or found.crl
    return {
        "tee": "snp",
        "report": to_base64(found.report),
        "certificates": [to_base64(certificate) for certificate in found.certificates],
        "crl": None if crl is None else to_base64(crl),
    }


def _pinned_roots() -> dict[str, str]:
    from sealtrain.attest.snp.chain import AMD_ROOT_SHA256

    return {
        digest: f"AMD's pinned root of {product}" for digest, product in AMD_ROOT_SHA256.items()
    }


TEE = Tee(
    name="snp",
    vendor="amd",
    vendor_root="AMD's root",
    evidence=SnpEvidence,
    policy=SnpPolicy,
    verify=_verify,
    claims=_claims,
    eat=_eat,
    part=_part,
    fields=_fields,
    kinds=("snp-report",),
    recognise=_recognise,
    show=_show,
    pinned_roots=_pinned_roots,
    device=Device(
        path="dev/sev-guest",
        flag="sev_snp",
        reports=True,
        options=("certificates",),
        absent="the processor says SEV-SNP guest, there is no /dev/sev-guest",
    ),
    collect=_collect,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
