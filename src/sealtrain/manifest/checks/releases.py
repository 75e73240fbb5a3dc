"""Checks 11, 13 and 14: the broker's receipts, its ledger, and the order of events."""

from __future__ import annotations

from itertools import pairwise

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.consortium.proofs import LedgerProof, verify_proof
from sealtrain.consortium.receipts import ReleaseReceipt, receipt_digest, verify_receipt
from sealtrain.errors import ClaimContradicted, DatasetMismatch, LeaseStale, ProofInvalid
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.checks.privacy import privacy_reserved
from sealtrain.records import dsse

__all__ = ["events_are_in_order", "ledger_holds_receipts", "receipts_hold"]


def receipts_hold(case: Case) -> str:
    """(11) The trusted broker released these datasets to this run of this recipe."""
    receipts = tuple(
        verify_receipt(dsse.Envelope.from_dict(one.receipt), case.trust.broker.signing_bytes)
        for one in case.predicate.releases
    )
    if not receipts:
        raise ClaimContradicted("the manifest holds no release receipt", check="releases")
    for receipt in receipts:
        _refuse_other_run(case, receipt)
    _refuse_other_datasets(case, receipts)
    case.receipts = receipts
    kinds = [receipt.kind for receipt in receipts]
    renewals = kinds.count("renewal")
    return f"{kinds.count('release')} release" + (f", {renewals} renewals" if renewals else "")


def ledger_holds_receipts(case: Case) -> str:
    """(13) The broker's signed log holds each receipt."""
    origin = f"sealtrain/ledger/{case.predicate.consortium.consortium_id}"
    indices = []
    for one, receipt in zip(case.predicate.releases, case.need_receipts(), strict=True):
        proof = LedgerProof.from_dict(one.proof)
        entry = verify_proof(proof, case.trust.broker.signing_bytes, origin=origin)
        body = entry["body"]
        named = body.get("receipt_digest") if isinstance(body, dict) else None
        recorded = (entry["kind"], named)
        expected = (receipt.kind, receipt_digest(dsse.Envelope.from_dict(one.receipt)))
        if recorded != expected:
            raise ProofInvalid(
                "the ledger entry is about something else than this receipt",
                check="ledger",
                got="another receipt",
                expected=" ".join(expected),
            )
        if isinstance(body, dict):
            privacy_reserved(case, receipt, body)
        indices.append(proof.index)
    if indices != sorted(set(indices)):
        raise ProofInvalid("receipts stand in the ledger in another order", check="ledger")
    places = ", ".join(map(str, indices))
    return f"in the broker's signed log at {places}"


def events_are_in_order(case: Case) -> str:
    """(14) Start, releases, resumes, end and leases follow each other as spec §4 says."""
    run = case.predicate.run
    started, finished = from_rfc3339(run.started_at), from_rfc3339(run.finished_at)
    if finished < started:
        raise _disorder("the run ended before it began", run.finished_at, f"≥ {run.started_at}")
    if finished > case.now + CLOCK_TOLERANCE_S:
        raise _disorder("the run ends in the future", run.finished_at, f"≤ {to_rfc3339(case.now)}")
    for resume in run.resumes:
        _refuse_outside(resume.at, started, finished, "a resume")
    _refuse_lease_gaps(case.need_receipts(), started, finished)
    resumed = [one for one in case.need_receipts() if one.kind == "release" and one.resume]
    if len(run.resumes) > len(resumed):
        raise _disorder(
            "the run was resumed without asking for the keys again",
            f"{len(run.resumes)} resumes",
            f"at most {len(resumed)}",
        )
    last_release = max(
        from_rfc3339(one.released_at) for one in case.need_receipts() if one.kind == "release"
    )
    for dataset in case.need_datasets():
        if from_rfc3339(dataset.sealed_at) > last_release + CLOCK_TOLERANCE_S:
            raise _disorder(
                f"the dataset {dataset.name} was sealed after its release",
                dataset.sealed_at,
                f"≤ {to_rfc3339(last_release)}",
            )
    return f"{run.started_at} to {run.finished_at}, under a lease throughout"


def _refuse_other_run(case: Case, receipt: ReleaseReceipt) -> None:
    deployment = case.predicate.deployment
    facts = {
        "run id": (receipt.run_id, case.predicate.run.run_id),
        "consortium": (receipt.consortium_id, case.predicate.consortium.consortium_id),
        "app id": (receipt.app_id, deployment.app_id),
        "compose hash": (receipt.compose_hash, deployment.compose_hash),
        "recipe hash": (receipt.recipe_hash, case.predicate.recipe.recipe_hash),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise ClaimContradicted(
                f"a release receipt is about another {what}",
                check="releases",
                got=got,
                expected=expected,
            )


def _refuse_other_datasets(case: Case, receipts: tuple[ReleaseReceipt, ...]) -> None:
    used = {one.dataset_id: (one.owner_id, one.root, one.name) for one in case.need_datasets()}
    for receipt in receipts:
        released = {one.dataset_id: (one.owner_id, one.root) for one in receipt.datasets}
        if len(released) != len(receipt.datasets):
            raise ClaimContradicted("a receipt releases a dataset twice", check="releases")
        expected = set() if receipt.kind == "renewal" else set(used)
        if set(released) != expected:
            raise DatasetMismatch(
                "the broker released other datasets than the manifest lists",
                check="releases",
                got=f"{len(released)} datasets",
                expected=f"{len(expected)}: the recipe's, each once",
            )
        for dataset_id, (owner_id, root) in released.items():
            if used[dataset_id][:2] != (owner_id, root):
                raise DatasetMismatch(
                    f"the broker released another version of {used[dataset_id][2]}",
                    check="releases",
                    got=root,
                    expected=used[dataset_id][1],
                )


def _refuse_lease_gaps(receipts: tuple[ReleaseReceipt, ...], started: int, finished: int) -> None:
    if receipts[0].kind != "release":
        raise _disorder("the first receipt is a renewal", "renewal", "release")
    for receipt in receipts:
        _refuse_outside(receipt.released_at, started, finished, "a release")
    for before, after in pairwise(receipts):
        moment = from_rfc3339(after.released_at)
        if moment < from_rfc3339(before.released_at):
            raise _disorder("receipts go back in time", after.released_at, before.released_at)
        anew = after.kind == "release" and after.resume
        if not anew and moment >= from_rfc3339(before.lease.not_after):
            raise LeaseStale(
                "a lease ended before it was renewed",
                check="times",
                got=after.released_at,
                expected=f"before {before.lease.not_after}",
            )
        if not anew and (after.kind == "release" or after.lease.lease_id != before.lease.lease_id):
            raise _disorder(
                "a receipt belongs to another lease", after.lease.lease_id, before.lease.lease_id
            )
    end = receipts[-1].lease.not_after
    if finished > from_rfc3339(end) + CLOCK_TOLERANCE_S:
        raise LeaseStale(
            "the run went on after its lease had ended",
            check="times",
            got=to_rfc3339(finished),
            expected=f"before {end}",
        )


def _refuse_outside(moment: str, started: int, finished: int, what: str) -> None:
    at = from_rfc3339(moment)
    if not started - CLOCK_TOLERANCE_S <= at <= finished + CLOCK_TOLERANCE_S:
        raise _disorder(
            f"{what} lies outside the run",
            moment,
            f"{to_rfc3339(started)} to {to_rfc3339(finished)}",
        )


def _disorder(problem: str, got: str, expected: str) -> ClaimContradicted:
    return ClaimContradicted(problem, check="times", got=got, expected=expected)
