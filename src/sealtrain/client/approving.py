"""An owner's decisions about a recipe: approve exactly what was read, or revoke.

A decision is signed once and handed to each broker whose ledger extends the one that the owner saw
last; how far the approval is, is counted again from the decisions that owners signed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock
from sealtrain.client.api import BrokerClient
from sealtrain.client.connection import brokers_of_lock, deployment_of, watched_ledger
from sealtrain.client.owner import AtEach, Owner, at_each
from sealtrain.client.pin import load_pin
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.consortium.decisions import DatasetPin, Decision, Target, sign_decision
from sealtrain.errors import UsageError
from sealtrain.recipe.needs import needs_of

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import Tally
    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe.lock import Lock
    from sealtrain.signing.needs import Needs

__all__ = ["Reviewed", "approve", "revoke", "tallies"]

_DAY_SECONDS = 86_400
Reviewed = tuple["Lock", Target]
"""What an owner read of a deployment document, and what is approved then (``deployment_of``)."""


def approve(
    owner: Owner,
    deployment: Path | Reviewed,
    consortium: Consortium,
    *,
    datasets: Iterable[Path] = (),
    days: int = 30,
    lift_revocation: bool = False,
) -> AtEach[Tally]:
    """Approve what a deployment document says, until a date.

    Args:
        owner: Who approves, at which brokers.
        deployment: ``app-compose.json`` of the recipe; or what was read of it already, so that
            exactly that is approved.
        consortium: As the owner holds it.
        datasets: The owner's sealed datasets, pinned by their roots: no others of this owner will
            be released.
        days: Valid for so many days, ≥ 1.
        lift_revocation: Take back the owner's own revocation of this recipe.

    Returns:
        How far the approval is, at each broker.

    Raises:
        BrokerNotApproved: The lock does not name a broker: a decision there would stop nothing.
        UsageError: The owner revoked the recipe and does not lift that, or the other way round.
        SignatureInvalid: A dataset is not the owner's.
        LedgerInconsistent: No broker took it, and one's ledger was rewritten or forked.
    """
    lock, target = deployment if isinstance(deployment, tuple) else deployment_of(deployment)
    brokers_of_lock(owner.brokers, lock)
    needs = needs_of(lock.recipe)
    lifts = _own_revocations(owner, consortium, target)
    if lift_revocation != bool(lifts):
        raise UsageError(
            "you revoked this recipe" if lifts else "you did not revoke this recipe",
            check="--lift-revocation",
            hint="take the revocation back: --lift-revocation"
            if lifts
            else "there is nothing to lift: leave --lift-revocation out",
        )
    manifests = [load_dataset_manifest(folder, owner.keys.public) for folder in datasets]
    now = system_clock()
    decision = Decision.approve(
        consortium_id=consortium.consortium_id,
        target=target,
        needs=needs,
        datasets=[DatasetPin(dataset_id=found.dataset_id, root=found.root) for found in manifests],
        lifts=lifts,
        signed_at=now,
        not_after=now + days * _DAY_SECONDS,
    )
    return _submit(owner, decision, needs, consortium)


def revoke(owner: Owner, deployment: Path | Reviewed, consortium: Consortium) -> AtEach[Tally]:
    """Stop further releases and renewals for a recipe. Keys that were released stay released.

    Args:
        owner: Who revokes, at which brokers.
        deployment: As for ``approve``.
        consortium: As the owner holds it.

    Raises:
        SealtrainError: No broker took it: the worst failure.
    """
    lock, target = deployment if isinstance(deployment, tuple) else deployment_of(deployment)
    decision = Decision.revoke(
        consortium_id=consortium.consortium_id, target=target, signed_at=system_clock()
    )
    return _submit(owner, decision, needs_of(lock.recipe), consortium)


def tallies(brokers: tuple[Path, ...], deployment: Path, consortium: Consortium) -> AtEach[Tally]:
    """How far a recipe's approval is at each broker, counted from the signed decisions.

    Args:
        brokers: Their broker files.
        deployment: ``app-compose.json`` of the recipe.
        consortium: As the caller holds it.

    Raises:
        SealtrainError: No broker answered: the worst failure.
    """
    lock, target = deployment_of(deployment)

    def at(broker: Path) -> Tally:
        with BrokerClient(load_pin(broker).url) as client:
            needs = needs_of(lock.recipe)
            return client.approvals_status(target, consortium, system_clock(), needs=needs)

    return at_each(brokers, at)


def _own_revocations(owner: Owner, consortium: Consortium, target: Target) -> set[str]:
    """Digests of an owner's revocations of a recipe, from every broker that answers."""
    me = owner.keys.public

    def at(broker: Path) -> set[str]:
        with BrokerClient(load_pin(broker).url) as client:
            return {
                signed.digest
                for signed in client.decided(target, consortium)
                if signed.owner == me and signed.decision.decision == "revoke"
            }

    return set().union(*at_each(owner.brokers, at).done.values())


def _submit(
    owner: Owner, decision: Decision, needs: Needs, consortium: Consortium
) -> AtEach[Tally]:
    """Sign a decision, hand it to each broker and count again from the signed decisions."""
    signer = owner.keys.signer
    envelope = sign_decision(decision, signer)

    def at(broker: Path) -> Tally:
        index = None
        if decision.decision == "revoke":
            # Nothing keeps an owner from stopping, whatever became of the ledger.
            pin = load_pin(broker)
            with BrokerClient(pin.url, signer=signer, broker=pin.broker_id) as client:
                index = client.submit_decision(envelope)
        with watched_ledger(broker, consortium, owner.identity, owner.state) as watch:
            if index is None:
                index = watch.client.submit_decision(envelope)
            watch.recorded(index, envelope.to_bytes())
            return watch.client.approvals_status(
                decision.target, consortium, system_clock(), needs=needs
            )

    return at_each(owner.brokers, at)
