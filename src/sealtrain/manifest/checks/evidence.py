"""Checks 2 to 6: the signer, what the quote proves, and that it is about this manifest."""

from __future__ import annotations

import hmac

from sealtrain.attest.appraise import appraise
from sealtrain.attest.errors import ReportDataMismatch, SimulatedEvidence
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.clock import from_rfc3339
from sealtrain.manifest import form
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.signing import dsse, statement
from sealtrain.signing.ed25519 import key_id


def statement_is_signed(case: Case) -> str:
    """(2) The statement is signed by the guest key it names, and by no other."""
    dsse.verify(
        case.manifest.signed_statement,
        [case.manifest.guest_key],
        payload_type=statement.PAYLOAD_TYPE,
    )
    return f"signed by the guest key {key_id(case.manifest.guest_key)[:24]}…"


def evidence_is_signed(case: Case) -> str:
    """(3) The evidence is signed by the same key and parses."""
    payload = dsse.verify(
        case.manifest.signed_evidence,
        [case.manifest.guest_key],
        payload_type=form.EVIDENCE_PAYLOAD_TYPE,
    )
    case.evidence = Evidence.from_bytes(payload)
    return f"{len(payload)} bytes of evidence signed by the same key"


def quote_verifies(case: Case) -> str:
    """(4) Quote, certificates, archived collateral and event log verify at the end of the run."""
    evidence = case.need_evidence()
    finished = case.predicate.run.finished_at
    verified = verify(
        evidence, case.trust.appraisal, from_rfc3339(finished), binding=binding_of(case)
    )
    if verified.simulated and case.trust.simulated != "accept-insecure":
        raise SimulatedEvidence(
            "the evidence comes from a simulator and the trust file refuses simulators",
            check="quote",
            got="simulated",
            expected="hardware",
            hint="a rehearsal is accepted only with simulated: accept-insecure in the trust file",
        )
    case.verified = verified
    shown = "" if verified.gpus is None else f" and {len(verified.gpus.devices)} accelerators"
    return f"{evidence.cpu.tee} quote{shown} on {verified.platform}, as of {finished}"


def binding_holds(case: Case) -> str:
    """(5) The quote commits to this statement, this key and this run log."""
    verified = case.need_verified()
    expected = binding_of(case).report_data(verified.gpu_digest)
    if not hmac.compare_digest(verified.report_data, expected):
        raise ReportDataMismatch(
            "the final quote was made for another statement, key or run log",
            check="report data",
            got=verified.report_data.hex()[:32] + "…",
            expected=expected.hex()[:32] + "…",
            hint="statement and evidence do not belong together",
        )
    case.bound = True
    return "the quote names this statement, this key and this run log"


def appraisal_fits(case: Case) -> str:
    """(6) What was measured meets the policy and is the deployment and tier named here."""
    deployment = case.predicate.deployment
    verdict = appraise(
        case.need_verified(),
        case.trust.appraisal,
        binding=binding_of(case),
        compose_hash=deployment.compose_hash,
        app_id=deployment.app_id,
    )
    if verdict.tier != deployment.tier:
        raise ClaimContradicted(
            "the manifest claims another tier than its evidence proves",
            check="tier",
            got=deployment.tier,
            expected=verdict.tier,
        )
    case.verdict = verdict
    return (
        f"{len(verdict.claims)} claims appraised; tier {verdict.tier}; "
        f"compose {deployment.compose_hash[:16]}…"
    )


def binding_of(case: Case) -> Binding:
    """What the final evidence must have been made for: this manifest."""
    return Binding(
        "manifest",
        form.commitment(
            case.manifest.signed_statement.payload,
            case.manifest.guest_key,
            case.predicate.run_log.head,
        ),
    )
