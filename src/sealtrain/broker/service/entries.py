"""Ledger entries and receipts of guests' requests: public facts, never a key (§4.5, §7)."""

from __future__ import annotations

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.broker.service.guests import Appraised
from sealtrain.consortium.receipts import Lease, ReleaseReceipt, receipt_digest
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.release.facts import Permit
from sealtrain.release.messages import ReleaseRequest, RenewalRequest, transcript_digest
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.target import Target


def is_refusal(error: SealtrainError) -> bool:
    """Whether an error refuses the caller; otherwise the broker could not decide."""
    return error.http_status < 500 and not isinstance(error, Unreachable)


def target_of(request: ReleaseRequest | RenewalRequest) -> Target:
    """The target that owners' approvals of a request must name."""
    return Target(
        app_id=request.app_id,
        compose_hash=request.compose_hash,
        recipe_hash=request.recipe_hash,
    )


def receipt_of(
    request: ReleaseRequest | RenewalRequest,
    permit: Permit,
    guest: Appraised,
    lease_id: str,
    now: int,
) -> ReleaseReceipt:
    """Receipt of a decision, to be signed.

    Args:
        request: The guest's request.
        permit: The broker's decision.
        guest: The guest's verified evidence.
        lease_id: The lease, 64 hex digits.
        now: The broker's time, seconds since the epoch.
    """
    releasing = isinstance(request, ReleaseRequest)
    return ReleaseReceipt(
        version=2,
        kind="release" if releasing else "renewal",
        broker_id=request.broker_id,
        run_id=request.run_id,
        resume=isinstance(request, ReleaseRequest) and request.resume,
        consortium_id=request.consortium_id,
        app_id=request.app_id,
        compose_hash=request.compose_hash,
        recipe_hash=request.recipe_hash,
        datasets=permit.datasets,
        approved_by=permit.approved_by,
        evidence_digest=guest.evidence_digest,
        transcript_digest=transcript_digest(request.transcript()),
        verdict=guest.verdict.to_dict(),
        simulated=guest.verdict.simulated,
        released_at=to_rfc3339(now),
        lease=Lease(lease_id=lease_id, not_after=to_rfc3339(permit.not_after)),
        checkpoint=permit.checkpoint,
        continues=permit.continues,
        chain=guest.chain,
    )


def write_granted_entry(
    request: ReleaseRequest | RenewalRequest,
    permit: Permit,
    guest: Appraised,
    lease_id: str,
    receipt: Envelope,
    *,
    reserved_at: int | None = None,
) -> dict[str, JsonValue]:
    """Body of an entry ``release`` or ``renewal``.

    Args:
        request: Of the guest.
        permit: The broker's decision.
        guest: The guest's verified evidence.
        lease_id: The lease, 64 hex digits.
        receipt: Of the decision, signed.
        reserved_at: Index of the entry that holds the run's reservation of privacy, where an
            earlier one does.
    """
    reserved = [reserve.to_dict() for reserve in permit.reserves]
    elsewhere = request.elsewhere if isinstance(request, ReleaseRequest) else ()
    return {
        **({"privacy": reserved} if reserved else {}),
        **({} if reserved_at is None else {"reserved_at": reserved_at}),
        **({"standing": [use.to_dict() for use in permit.standing]} if permit.standing else {}),
        **({"series": [chain.to_dict() for chain in permit.series]} if permit.series else {}),
        **({} if permit.continues is None else {"continues": permit.continues.to_dict()}),
        "run_id": request.run_id,
        "submission_id": request.submission_id if isinstance(request, ReleaseRequest) else None,
        **target_of(request).to_dict(),
        "datasets": [
            {
                "owner_id": dataset.owner_id,
                "dataset_id": dataset.dataset_id,
                "root": dataset.root,
            }
            for dataset in permit.datasets
        ],
        "elsewhere": [dataset.to_dict() for dataset in elsewhere],
        "lease_id": lease_id,
        "not_after": to_rfc3339(permit.not_after),
        "evidence_digest": guest.evidence_digest,
        "receipt_digest": receipt_digest(receipt),
        "checkpoint": None if permit.checkpoint is None else permit.checkpoint.to_dict(),
        "simulated": guest.verdict.simulated,
        "needs": guest.measured.needs.to_dict(),
    }


def refusal_entry(
    request: ReleaseRequest | RenewalRequest, action: str, error: SealtrainError
) -> dict[str, JsonValue]:
    """Body of an entry ``refusal`` of a release or a renewal."""
    return {
        "action": action,
        "code": error.code,
        "check": error.check,
        "run_id": request.run_id,
        **target_of(request).to_dict(),
        "transcript_digest": transcript_digest(request.transcript()),
    }
