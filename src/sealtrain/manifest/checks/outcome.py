"""Checks 7, 16, 17 and 19: the run log, simulation and limits, the files themselves."""

from __future__ import annotations

from sealtrain.attest.errors import SimulatedEvidence
from sealtrain.base.clock import from_rfc3339
from sealtrain.manifest import limits
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.outputs import model_of, require_named_files
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.sealing.trainedmodel import MODEL_FOLDER
from sealtrain.signing import runlog


def run_log_holds(case: Case) -> str:
    """(7) The chain leads to its head, and its events are of this kind of run and within it."""
    run, log = case.predicate.run, case.predicate.run_log
    runlog.verify(run.run_id, log.entries, head=log.head)
    collaboration = case.predicate.collaboration
    runlog.require_events_of(log.entries, None if collaboration is None else collaboration.kind)
    first = from_rfc3339(run.started_at) - CLOCK_TOLERANCE_S
    last = from_rfc3339(run.finished_at) + CLOCK_TOLERANCE_S
    for entry in log.entries:
        if not first <= from_rfc3339(entry["at"]) <= last:
            raise ClaimContradicted(
                f"run log entry {entry['seq']} lies outside the run",
                check="run log",
                got=entry["at"],
                expected=f"{run.started_at} to {run.finished_at}",
            )
    case.log = log.entries
    return f"{len(log.entries)} events, head {log.head[:16]}…"


def simulation_is_said(case: Case) -> str:
    """(16) Flag, marker, evidence and receipts agree on whether hardware was involved."""
    predicate, verified = case.predicate, case.need_verified()
    simulated = verified.simulated
    said = {
        "the simulated flag": predicate.simulated,
        "the marker": predicate.marker == SIMULATED_MARKER,
        "the platform": predicate.deployment.platform == "simulator",
        "the evidence's platform": verified.platform == "simulator",
    }
    for index, receipt in enumerate(case.need_receipts()):
        said[f"receipt {index + 1}"] = receipt.simulated
    for what, value in said.items():
        if value != simulated:
            raise ClaimContradicted(
                f"{what} and the quote disagree on whether the run was simulated",
                check="simulation",
                got="simulated" if value else "hardware",
                expected="simulated" if simulated else "hardware",
            )
    if simulated and case.trust.simulated != "accept-insecure":
        raise SimulatedEvidence("the trust file refuses simulated runs", check="simulation")
    return SIMULATED_MARKER if simulated else "hardware evidence, and nothing says otherwise"


def limits_are_said(case: Case) -> str:
    """(17) The manifest names every limit that its facts require."""
    predicate = case.predicate
    listed = [limit.id for limit in predicate.limits]
    if len(set(listed)) != len(listed):
        raise ClaimContradicted("the manifest lists a limit twice", check="limits")
    needed = [*limits.list_required(predicate), *_of_evidence(case)]
    missing = [name for name in dict.fromkeys(needed) if name not in listed]
    if missing:
        raise ClaimContradicted(
            "the manifest conceals a limit of what it proves",
            check="limits",
            got=", ".join(listed),
            expected=", ".join(missing),
        )
    return f"{len(listed)} limits stated"


def _of_evidence(case: Case) -> tuple[str, ...]:
    """Limits that the final evidence shows, whatever the brokers' verdicts said before."""
    gpu = None if case.evidence is None else case.evidence.gpu
    in_clear = gpu is not None and gpu.claims.multi_gpu_mode == "protected_pcie"
    return ("nvlink-in-clear",) if in_clear else ()


def artefacts_match(case: Case) -> str:
    """(19) The folder holds every output as it was signed, and nothing that was not."""
    if case.artefacts is None:
        raise ValueError("artefacts_match needs a folder")
    case.need_binding()
    model = model_of(case.predicate, case.manifest.subjects)
    require_named_files(model, case.artefacts / MODEL_FOLDER)
    total = sum(file.size for file in model.files)
    return f"{len(model.files)} files, {total} bytes, as signed, and no other"
