"""Verify a run manifest offline: every check of spec/run-manifest.md §3, each reported by itself.

``examine`` never raises for a bad manifest: it runs every check whose inputs exist and returns a
``Report``. ``verify_manifest`` raises the report's first refusal or returns what was verified.

A check is *not-done* when an earlier check that it builds on failed, or when the caller chose not
to check the output files; only the latter is compatible with acceptance. Refusals are always of the
``Refused`` family (exit 3), also where a document inside the manifest is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from sealtrain.attest.appraise import Verdict
from sealtrain.attest.verify import Verified
from sealtrain.base.digests import sha256_hex
from sealtrain.base.distributions import load
from sealtrain.consortium.approvals import ApprovalTally, SignedDecision
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.receipts import ReleaseReceipt
from sealtrain.errors import Refused, SealtrainError
from sealtrain.manifest import form, limits
from sealtrain.manifest.checks.case import Case, NotEstablished
from sealtrain.manifest.checks.chain_proofs import chain_blocks
from sealtrain.manifest.errors import ClaimContradicted, ManifestMalformed
from sealtrain.manifest.form import Manifest
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.trust import Trust
from sealtrain.recipe.kinds import KINDS
from sealtrain.recipe.lockfile import Lock
from sealtrain.signing.statement import Subject

Outcome = Literal["passed", "failed", "not-done"]
_Examination = Callable[[Case], str]

_TABLE: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("form", "File is well formed", None),
    ("signature", "Statement is signed", "evidence:statement_is_signed"),
    ("evidence-signature", "Evidence is signed by the same key", "evidence:evidence_is_signed"),
    ("quote", "Quote verifies", "evidence:quote_verifies"),
    ("binding", "Quote names this statement", "evidence:binding_holds"),
    ("appraisal", "Measurements satisfy your policy", "evidence:appraisal_fits"),
    ("run-log", "Run log is unbroken", "outcome:run_log_holds"),
    ("recipe", "Recipe is the measured one", "recipe:recipe_is_measured"),
    ("trust", "It is what you trust", "recipe:check_trusted"),
    ("datasets", "Datasets are their owners'", "governance:datasets_are_their_owners"),
    ("releases", "Broker released the keys", "releases:receipts_hold"),
    ("approvals", "Enough owners had approved", "governance:approvals_sufficed"),
    ("ledger", "Ledger holds the releases", "releases:ledger_holds_receipts"),
    ("times", "Events are in order", "releases:events_are_in_order"),
    ("policy", "Release policy was kept", "recipe:policy_kept"),
    ("simulation", "Simulation is declared", "outcome:simulation_is_said"),
    ("limits", "Limits are stated", "outcome:limits_are_said"),
    ("collaboration", "Parties kept to their rules", "collaboration:collaboration_holds"),
    ("artefacts", "Output files match", "outcome:artefacts_match"),
)
"""Every check, in the order of the specification: name, title, and its function."""


def _examination(place: str) -> _Examination:
    module, _, name = place.partition(":")
    found: _Examination = getattr(import_module(f"sealtrain.manifest.checks.{module}"), name)
    return found


CHECKS: Final[tuple[tuple[str, str, _Examination | None], ...]] = tuple(
    (name, title, None if place is None else _examination(place)) for name, title, place in _TABLE
)
"""The same with the functions themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name in the specification.
        title: The same for people.
        outcome: ``passed``, ``failed`` or ``not-done``.
        detail: The finding, or the reason why the check was not done; one line.
        error: The refusal of a failed check.
    """

    name: str
    title: str
    outcome: Outcome
    detail: str
    error: Refused | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        fields: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "outcome": self.outcome,
            "detail": self.detail,
        }
        return fields if self.error is None else {**fields, "error": self.error.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that the checks established; ``None`` where a check did not pass.

    ``unasked`` are the owners whose data the run used without their approval.
    """

    verified: Verified | None
    verdict: Verdict | None
    lock: Lock | None
    datasets: tuple[DatasetManifest, ...] | None
    decisions: tuple[SignedDecision, ...] | None
    tally: ApprovalTally | None
    unasked: tuple[str, ...] | None
    receipts: tuple[ReleaseReceipt, ...] | None
    brokers: tuple[str, ...] | None
    log: tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a reader should know about a manifest, accepted or not.

    Attributes:
        data: The file that was read, as it is.
        digest: SHA-256 of the file that was read.
        trust: The trust file of the auditor.
        now: Time of the verification, seconds since the epoch.
        checks: Each check's result, in the order of the specification.
        limits: The facts that the manifest does not prove and the checks that the auditor left
            out, in plain words.
        simulated: The run says or the evidence shows that it was simulated.
        manifest: Parsed file, ``None`` when it is malformed. Unverified where a check failed.
        facts: The facts that the checks established.
        refusal: First refusal, ``None`` when the manifest is accepted.
    """

    data: bytes = field(repr=False)
    digest: str
    trust: Trust
    now: int
    checks: tuple[Check, ...]
    limits: tuple[str, ...]
    simulated: bool
    manifest: Manifest | None
    facts: Facts
    refusal: Refused | None

    @property
    def accepted(self) -> bool:
        """No check failed."""
        return self.refusal is None

    @property
    def foreign(self) -> bool:
        """The trust file is about another recipe, and nothing else was refused."""
        failed = [check.name for check in self.checks if check.outcome == "failed"]
        if self.manifest is None or failed != ["trust"]:
            return False
        return self.manifest.predicate.recipe.recipe_hash != self.trust.recipe_hash

    @property
    def weak(self) -> bool:
        """The run is simulated, or the trust file leaves something open."""
        return (
            self.simulated
            or bool(limits.list_skipped(self.trust, artefacts_checked=True))
            or limits.chain_is_open(self.trust, self.facts.receipts or ())
        )

    def _own_data(self) -> dict[str, Any] | None:
        """Whether owners had to approve the use of their data, and the owners that had not."""
        if self.manifest is None:
            return None
        unasked = self.facts.unasked
        return {
            "consent": self.manifest.predicate.consortium.own_data_consent,
            "used_without_approval": None if unasked is None else list(unasked),
        }

    @property
    def guests(self) -> list[dict[str, Any]] | None:
        """The run's other guests as its log names them; ``None`` where check 18 did not pass."""
        passed = {check.name for check in self.checks if check.outcome == "passed"}
        if self.manifest is None or self.facts.lock is None or "collaboration" not in passed:
            return None
        how = self.facts.lock.recipe.collaboration
        place = None if how is None else KINDS[how.kind].guests
        if place is None:
            return []
        found: list[dict[str, Any]] = load(place)(self.manifest.predicate.run_log.entries)
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form for ``--json``."""
        run = None if self.manifest is None else self.manifest.predicate.run
        return {
            "accepted": self.accepted,
            "simulated": self.simulated,
            "manifest_digest": self.digest,
            "run_id": None if run is None else run.run_id,
            "scripts": None if self.facts.lock is None else self.facts.lock.script_digests,
            "own_data": self._own_data(),
            "guests": self.guests,
            "checks": [check.to_dict() for check in self.checks],
            "limits": list(self.limits),
            "error": None if self.refusal is None else self.refusal.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedManifest:
    """A manifest that passed every check; only ``verify_manifest`` makes one."""

    digest: str
    subjects: tuple[Subject, ...]
    predicate: Predicate
    evidence: Verified
    lock: Lock
    checks: tuple[Check, ...]
    limits: tuple[str, ...]
    simulated: bool


def examine(
    data: bytes,
    trust: Trust,
    *,
    artefacts: Path | None,
    now: int,
    on_check: Callable[[Check], None] | None = None,
) -> Report:
    """Run every check that can be run and report them all.

    Args:
        data: The manifest file.
        trust: The trust file of the auditor.
        artefacts: Folder with the output files; ``None`` is the choice not to check them.
        now: Seconds since the epoch; quotes are verified at the time of the run's end instead.
        on_check: Called with each result as it is known.
    """
    case, first = _open(data, trust, artefacts, now)
    checks = [first]
    if on_check is not None:
        on_check(first)
    for name, title, examination in CHECKS[1:]:
        check = _result(name, title, examination, case)
        checks.append(check)
        if on_check is not None:
            on_check(check)
    refusal = _first_refusal(checks)
    return Report(
        data=data,
        digest=sha256_hex(data),
        trust=trust,
        now=now,
        checks=tuple(checks),
        limits=_limits(case, trust, artefacts is not None),
        simulated=_is_simulated(case),
        manifest=None if case is None else case.manifest,
        facts=_facts(case),
        refusal=refusal,
    )


def verify_manifest(
    data: bytes,
    trust: Trust,
    *,
    artefacts: Path | None,
    now: int,
    on_check: Callable[[Check], None] | None = None,
) -> VerifiedManifest:
    """Return the contents of a manifest that passes every check. Arguments as ``examine``.

    Raises:
        Refused: The first refusal in the order of the specification; every class has exit code 3.
    """
    report = examine(data, trust, artefacts=artefacts, now=now, on_check=on_check)
    if report.refusal is not None:
        raise report.refusal
    manifest, facts = report.manifest, report.facts
    if manifest is None or facts.verified is None or facts.lock is None:
        raise ManifestMalformed("run manifest was not examined", check="form")
    return VerifiedManifest(
        digest=report.digest,
        subjects=manifest.subjects,
        predicate=manifest.predicate,
        evidence=facts.verified,
        lock=facts.lock,
        checks=report.checks,
        limits=report.limits,
        simulated=report.simulated,
    )


def _open(data: bytes, trust: Trust, artefacts: Path | None, now: int) -> tuple[Case | None, Check]:
    name, title, _ = CHECKS[0]
    try:
        manifest = form.read(data)
    except ManifestMalformed as error:
        failed = Check(name=name, title=title, outcome="failed", detail=error.message, error=error)
        return None, failed
    case = Case(manifest=manifest, trust=trust, artefacts=artefacts, now=now)
    detail = f"canonical, {len(data)} bytes, {len(manifest.subjects)} subjects"
    return case, Check(name=name, title=title, outcome="passed", detail=detail)


def _result(name: str, title: str, examination: _Examination | None, case: Case | None) -> Check:
    if case is None or examination is None:
        return Check(name=name, title=title, outcome="not-done", detail="needs the check 'form'")
    if name == "artefacts" and case.artefacts is None:
        return Check(name=name, title=title, outcome="not-done", detail="not looked at, as asked")
    try:
        detail = examination(case)
    except NotEstablished as missing:
        needed = f"needs the check {missing.args[0]!r}"
        return Check(name=name, title=title, outcome="not-done", detail=needed)
    except Refused as error:
        return Check(name=name, title=title, outcome="failed", detail=str(error), error=error)
    except SealtrainError as error:
        # A malformed document inside a manifest is the manifest's fault: refused, not exit 2 or 5.
        refused = ClaimContradicted(
            f"{title}: {error.message}",
            check=name,
            owner=error.owner,
            got=error.got,
            expected=error.expected,
            hint=error.hint,
        )
        refused.__cause__ = error
        return Check(name=name, title=title, outcome="failed", detail=str(refused), error=refused)
    return Check(name=name, title=title, outcome="passed", detail=detail)


def _first_refusal(checks: list[Check]) -> Refused | None:
    for check in checks:
        if check.error is not None:
            return check.error
    undone = [check for check in checks if check.outcome == "not-done"]
    if any(check.name != "artefacts" for check in undone):
        return ClaimContradicted("a check could not be done", check=undone[0].name)
    return None


def _is_simulated(case: Case | None) -> bool:
    if case is None:
        return False
    shown = case.verified is not None and case.verified.simulated
    return shown or case.predicate.simulated or case.predicate.deployment.platform == "simulator"


def _limits(case: Case | None, trust: Trust, artefacts_checked: bool) -> tuple[str, ...]:
    if case is None:
        return ()
    stated = limits.state_limits(case.predicate, case.unasked)
    released = ", ".join(limits.list_uncompared(case.receipts or ()))
    if released:
        stated += (f"Brokers released keys without a demand on: {released}.",)
    if trust.chain is None:
        stated += limits.chain_open(chain_blocks(case.receipts or ()))
    return (*stated, *limits.list_skipped(trust, artefacts_checked=artefacts_checked))


def _facts(case: Case | None) -> Facts:
    return Facts(**{item.name: getattr(case, item.name, None) for item in fields(Facts)})
