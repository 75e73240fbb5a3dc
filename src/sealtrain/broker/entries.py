"""What the ledger says of guests' requests: public facts, never a key (spec/key-release.md §7)."""

from __future__ import annotations

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.broker.guests import Appraised
from sealtrain.consortium.approvals import Target
from sealtrain.consortium.receipts import receipt_digest
from sealtrain.errors import SealtrainError
from sealtrain.records.dsse import Envelope
from sealtrain.release.facts import Permit
from sealtrain.release.messages import ReleaseRequest, RenewalRequest
from sealtrain.release.transcript import transcript_digest

__all__ = ["granted_entry", "refusal_entry", "target_of"]


def target_of(request: ReleaseRequest | RenewalRequest) -> Target:
    """What owners' approvals of a request must be about."""
    return Target(
        app_id=request.app_id,
        compose_hash=request.compose_hash,
        recipe_hash=request.recipe_hash,
    )


def granted_entry(
    request: ReleaseRequest | RenewalRequest,
    permit: Permit,
    guest: Appraised,
    lease_id: str,
    receipt: Envelope,
) -> dict[str, JsonValue]:
    """Body of an entry ``release`` or ``renewal``."""
    reserved = [one.to_dict() for one in permit.reserves]
    return {
        **({"privacy": reserved} if reserved else {}),
        "run_id": request.run_id,
        **target_of(request).to_dict(),
        "datasets": [{"dataset_id": one.dataset_id, "root": one.root} for one in permit.datasets],
        "lease_id": lease_id,
        "not_after": to_rfc3339(permit.not_after),
        "evidence_digest": guest.evidence_digest,
        "receipt_digest": receipt_digest(receipt),
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
