"""Checks 7, 16, 17 and 19: the run log, simulation and limits, the files themselves."""

from __future__ import annotations

from pathlib import Path

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.digests import file_sha256
from sealtrain.errors import ClaimContradicted, SimulatedEvidence, SubjectMismatch
from sealtrain.manifest import limits
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.records import runlog

__all__ = ["artefacts_match", "limits_are_said", "run_log_holds", "simulation_is_said"]


def run_log_holds(case: Case) -> str:
    """(7) The chain leads to its head and lies within the run."""
    run, log = case.predicate.run, case.predicate.run_log
    runlog.verify(run.run_id, log.entries, head=log.head)
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
    listed = [one.id for one in predicate.limits]
    if len(set(listed)) != len(listed):
        raise ClaimContradicted("the manifest lists a limit twice", check="limits")
    needed = limits.required(
        simulated=predicate.simulated,
        dp=predicate.privacy.dp,
        accountant=getattr(predicate.privacy, "accountant", None),
        accelerators=bool(predicate.compute.accelerators),
        border_held=limits.border_held(predicate.run_log.entries),
        collaboration=getattr(predicate.collaboration, "kind", None),
    )
    missing = [name for name in needed if name not in listed]
    if missing:
        raise ClaimContradicted(
            "the manifest conceals a limit of what it proves",
            check="limits",
            got=", ".join(listed),
            expected=", ".join(missing),
        )
    return f"{len(listed)} limits stated"


def artefacts_match(case: Case) -> str:
    """(19) Every output file lies in the folder with the size and digest that were signed."""
    folder = case.artefacts
    if folder is None:
        raise ValueError("artefacts_match needs a folder")
    for subject, recorded in zip(case.manifest.subjects, case.predicate.outputs.files, strict=True):
        _refuse_other_file(folder / subject.name, subject.name, subject.sha256, recorded.size)
    total = sum(one.size for one in case.predicate.outputs.files)
    return f"{len(case.manifest.subjects)} files, {total} bytes, as signed"


def _refuse_other_file(path: Path, name: str, digest: str, size: int) -> None:
    try:
        got_size = path.stat().st_size if path.is_file() else None
        got = file_sha256(path) if got_size == size else None
    except OSError as error:
        raise SubjectMismatch(
            f"the output file {name} cannot be read", check="artefacts", hint=error.strerror
        ) from error
    if got_size is None:
        raise SubjectMismatch(
            f"the output file {name} is missing",
            check="artefacts",
            expected=name,
            hint="name the folder with --artefacts, or say --without-artefacts",
        )
    if got is None:
        raise SubjectMismatch(
            f"the output file {name} has another size",
            check="artefacts",
            got=f"{got_size} bytes",
            expected=f"{size} bytes",
        )
    if got != digest:
        raise SubjectMismatch(
            f"the output file {name} has another digest",
            check="artefacts",
            got=got,
            expected=digest,
            hint="the file was changed after the manifest was signed",
        )
