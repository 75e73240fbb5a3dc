"""An owner's decisions about a recipe: approve exactly what was read, or revoke.

Before an owner decides, every file is read and every broker is asked: what is registered of the
owner's data, and what the owner decided before. A decision is then signed once and handed to each
broker whose ledger extends the one that the owner saw last; how far the approval is, is counted
again from the decisions that owners signed.

A revocation that the owner took back once stays taken back: approvals by the same owner that follow
name it again. One that no approval of the owner names stands, whatever brokers repeat.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import brokers_of_lock, watch_ledger
from sealtrain.client.pin import load_pin
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.consortium.decisions import DatasetPin, Decision, sign_decision
from sealtrain.consortium.errors import ApprovalUnknown, ConsortiumMismatch
from sealtrain.errors import UsageError
from sealtrain.owner.owner_files import AtEach, OwnerFiles, at_each
from sealtrain.owner.owners_datasets import list_registered, merge_answers
from sealtrain.owner.sealing import require_target
from sealtrain.owner.standing import (
    StandingRequest,
    StandingUsed,
    chains_named,
    join_uses,
    terms_of,
)
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain.recipe.records import dataset_of
from sealtrain.signing.errors import BrokerMismatch
from sealtrain.signing.target import Target

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.decisions import SignedDecision
    from sealtrain.consortium.members import Consortium
    from sealtrain.consortium.standing_terms import StandingTerms
    from sealtrain.errors import SealtrainError
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.signing.identity import PublicIdentity
    from sealtrain.signing.needs import Needs

_DAY_SECONDS = 86_400


def approve(  # noqa: PLR0913  # what prepare and give take
    owner: OwnerFiles,
    deployment: LockedRecipe,
    consortium: Consortium,
    *,
    datasets: Iterable[Path] = (),
    days: float = 30,
    until: int | None = None,
    lift_revocation: bool = False,
    unpinned: bool = False,
    standing: StandingRequest | None = None,
) -> AtEach[ApprovalTally]:
    """Approve what a deployment document says, until a date. As ``prepare`` and ``give``.

    Args:
        owner: The approving owner, with the brokers to approve at.
        deployment: ``app-compose.json`` of the recipe; or what was read of it already, so that
            exactly that is approved.
        consortium: As the owner holds it.
        datasets: As for ``prepare``.
        days: As for ``give``.
        until: As for ``give``.
        lift_revocation: As for ``prepare``.
        unpinned: As for ``prepare``.
        standing: As for ``prepare``.

    Returns:
        How far the approval is, at each broker.

    Raises:
        SealtrainError: As the two.
    """
    intent = prepare(
        owner,
        deployment,
        consortium,
        datasets=datasets,
        lift_revocation=lift_revocation,
        unpinned=unpinned,
        standing=standing,
    )
    return give(owner, intent, days=days, until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An approval that is ready to be signed, and what its owner should see before.

    Attributes:
        lock: Of the recipe.
        target: The recipe and its deployment.
        consortium: As the owner holds it.
        brokers: URL of each broker of the lock that the owner has a broker file of, by its id.
        registered: Datasets of every owner that are registered for the recipe.
        pinned: Those of this owner that the approval pins.
        loose: Names of this owner's datasets in the recipe that it does not pin.
        lifts: Digests of the owner's own revocations of this recipe that it takes back.
        approved_before: The owner's own approval of the other recipe was found at a broker.
        failed: Brokers that did not answer or were refused, by URL.
        standing: How often it may run; ``None`` without a limit.
        chains: Members so far of the series that it names, by name.
    """

    lock: Lock
    target: Target
    consortium: Consortium
    brokers: dict[str, str]
    registered: tuple[DatasetManifest, ...]
    pinned: tuple[DatasetManifest, ...]
    loose: tuple[str, ...]
    lifts: tuple[str, ...]
    approved_before: bool
    failed: dict[str, SealtrainError]
    standing: StandingTerms | None = None
    chains: dict[str, tuple[DatasetManifest, ...]] = field(default_factory=dict)


def prepare(
    owner: OwnerFiles,
    deployment: LockedRecipe,
    consortium: Consortium,
    *,
    datasets: Iterable[Path] = (),
    lift_revocation: bool = False,
    unpinned: bool = False,
    standing: StandingRequest | None = None,
    before: LockedRecipe | None = None,
) -> Intent:
    """Read and ask all that an approval depends on; nothing is signed.

    Args:
        owner: The approving owner, with the brokers to approve at.
        deployment: As for ``approve``.
        consortium: As the owner holds it.
        datasets: The owner's sealed datasets, pinned by their roots: no others of this owner will
            be released. All that are registered for the recipe when there is none.
        lift_revocation: Take back the owner's own revocation of this recipe.
        unpinned: Pin nothing, so that any dataset counts which the owner registers for the recipe,
            later ones too.
        standing: How often it may run, within which budget, on which series. Members of these are
            not pinned one by one.
        before: Another recipe, to see whether the owner approved it before.

    Raises:
        BrokerNotApproved: The lock does not name a broker: a decision there would stop nothing.
        ConsortiumMismatch: The lock is another consortium's than the owner's file.
        ConsortiumInvalid, ApprovalUnknown: The owner is not in the consortium.
        SignatureInvalid: A dataset is not the owner's.
        DatasetMismatch: A dataset was sealed for another recipe, or brokers differ about it.
        DatasetUnknown: A dataset is not in the recipe, or is not registered.
        UsageError: The owner revoked the recipe and does not lift that, or the other way round; or
            two datasets of one name are registered and none is named.
        SealtrainError: No broker answered: the worst failure.
    """
    lock, target = deployment.lock, deployment.target
    me = owner.keys.public
    _require_membership(me, lock, consortium)
    folders = list(datasets)
    if folders and unpinned:
        raise UsageError(
            "an approval pins datasets or it pins none",
            check="--unpinned",
            hint="leave --data or --unpinned out",
        )
    named = [load_dataset_manifest(folder, me) for folder in folders]
    for manifest in named:
        dataset_of(lock.recipe, manifest.owner, manifest.name)
        require_target(manifest, target)
    known = brokers_of_lock(owner.brokers, lock)

    earlier = [before.target] if before and before.lock.consortium_id == lock.consortium_id else []

    def at(broker: Path) -> tuple[list[DatasetManifest], list[SignedDecision]]:
        with watch_ledger(broker, consortium, owner.identity, owner.state) as watch:
            size = 0 if watch.kept.head is None else watch.kept.head.size
            return (
                list_registered(watch.client, consortium, target, size),
                [
                    signed
                    for former in (target, *earlier)
                    for signed in watch.client.list_decisions(former, consortium)
                ],
            )

    asked = at_each(owner.brokers, at)
    decided = [signed for _, decisions in asked.done.values() for signed in decisions]
    lifts = _lifts(decided, me, target, lift_revocation=lift_revocation)
    registered = merge_answers((manifests for manifests, _ in asked.done.values()), me.name)
    series = () if standing is None else standing.series
    if series and unpinned:
        raise UsageError(
            "an approval names series or it admits whatever you register",
            check="--unpinned",
            hint="leave --series or --unpinned out",
        )
    chains = chains_named(series, registered, me.name, lock.recipe)
    own = tuple(
        dataset for dataset in registered if dataset.owner != me.name or dataset.name not in chains
    )
    pinned = () if unpinned else _choose_pinned(named, own, me.name, lock.recipe, chains)
    return Intent(
        lock=lock,
        target=target,
        consortium=consortium,
        brokers=known,
        registered=registered,
        pinned=pinned,
        loose=tuple(
            name for name in _list_unregistered(pinned, me.name, lock.recipe) if name not in chains
        ),
        lifts=lifts,
        approved_before=any(
            signed.owner.owner_id == me.owner_id
            and signed.decision.decision == "approve"
            and signed.decision.target in earlier
            for signed in decided
        ),
        failed=asked.failed,
        standing=None if standing is None else terms_of(standing, chains, me.name, lock.recipe),
        chains=chains,
    )


def give(
    owner: OwnerFiles, intent: Intent, *, days: float = 30, until: int | None = None
) -> AtEach[ApprovalTally]:
    """Sign an approval, and hand it to each broker. As ``write_decision`` and ``hand_in``.

    Args:
        owner: The approving owner, with the brokers to approve at.
        intent: As ``prepare`` returned it.
        days: As for ``write_decision``.
        until: As for ``write_decision``.

    Returns:
        How far the approval is, at each broker.

    Raises:
        SealtrainError: As the two.
    """
    return hand_in(owner, intent, write_decision(intent, days=days, until=until))


def write_decision(intent: Intent, *, days: float = 30, until: int | None = None) -> Decision:
    """An approval as it will be signed; nothing is signed yet.

    Args:
        intent: As ``prepare`` returned it.
        days: Valid for so many days, or part of one; at least a second.
        until: Last second at which it is valid, since the epoch, in place of ``days``.

    Raises:
        UsageError: ``until`` has passed.
    """
    now = system_clock()
    if until is not None and until <= now:
        raise UsageError(
            "the approval would have ended already",
            check="--until",
            got=to_rfc3339(until),
            expected=f"after {to_rfc3339(now)}",
            hint="name a later day: --until",
        )
    return Decision.approve(
        consortium_id=intent.consortium.consortium_id,
        brokers=intent.brokers,
        target=intent.target,
        needs=needs_of(intent.lock.recipe),
        datasets=[
            DatasetPin(dataset_id=dataset.dataset_id, root=dataset.root)
            for dataset in intent.pinned
        ],
        lifts=intent.lifts,
        signed_at=now,
        not_after=now + max(1, round(days * _DAY_SECONDS)) if until is None else until,
        standing=intent.standing,
    )


def hand_in(owner: OwnerFiles, intent: Intent, decision: Decision) -> AtEach[ApprovalTally]:
    """Sign an approval that ``write_decision`` made, and hand it to each broker.

    Raises:
        BrokerMismatch: A broker file names another broker than when the owner was asked.
        LedgerInconsistent: No broker took it, and one's ledger was rewritten or forked.
        SealtrainError: No broker took it: the worst failure.
    """
    known = brokers_of_lock(owner.brokers, intent.lock)
    if known != intent.brokers:
        raise BrokerMismatch(
            "a broker file changed while you were asked, so nothing was signed",
            check="--broker",
            got=", ".join(sorted(known.values())),
            expected=", ".join(sorted(intent.brokers.values())),
            hint="see who changed it, then approve again",
        )
    return _submit(owner, decision, needs_of(intent.lock.recipe), intent.consortium)


def revoke(
    owner: OwnerFiles, deployment: LockedRecipe, consortium: Consortium
) -> AtEach[ApprovalTally]:
    """Stop further releases and renewals for a recipe. Keys that were released stay released.

    Args:
        owner: The revoking owner, with the brokers to revoke at.
        deployment: As for ``approve``.
        consortium: As the owner holds it.

    Raises:
        SealtrainError: No broker took it: the worst failure.
    """
    decision = revocation(owner, deployment, consortium)
    return hand_in_revocation(owner, deployment, consortium, decision)


def revocation(owner: OwnerFiles, deployment: LockedRecipe, consortium: Consortium) -> Decision:
    """A revocation as it will be signed; nothing is signed yet. Arguments as ``revoke``.

    It is for every broker of the lock, since one that the owner does not reach may get it later,
    and for every broker that the owner names: stopping is possible at each.
    """
    lock, target = deployment.lock, deployment.target
    named = {load_pin(broker).broker_id for broker in owner.brokers}
    return Decision.revoke(
        consortium_id=consortium.consortium_id,
        brokers=named.union(lock.brokers),
        target=target,
        signed_at=system_clock(),
    )


def hand_in_revocation(
    owner: OwnerFiles, deployment: LockedRecipe, consortium: Consortium, decision: Decision
) -> AtEach[ApprovalTally]:
    """Sign what ``revocation`` made, and hand it to each broker. Arguments as ``revoke``.

    Raises:
        SealtrainError: No broker took it: the worst failure.
    """
    lock = deployment.lock
    return _submit(owner, decision, needs_of(lock.recipe), consortium)


def tallies(
    brokers: tuple[Path, ...], deployment: LockedRecipe, consortium: Consortium
) -> AtEach[ApprovalTally]:
    """How far a recipe's approval is at each broker, counted from the signed decisions.

    Args:
        brokers: Their broker files.
        consortium: As the caller holds it.

    Raises:
        SealtrainError: No broker answered: the worst failure.
    """
    lock, target = deployment.lock, deployment.target

    def at(broker: Path) -> ApprovalTally:
        with BrokerClient.at(load_pin(broker)) as client:
            needs = needs_of(lock.recipe)
            return client.approvals_status(target, consortium, system_clock(), needs=needs)

    return at_each(brokers, at)


def standing(
    brokers: tuple[Path, ...], deployment: LockedRecipe, consortium: Consortium
) -> AtEach[tuple[StandingUsed, ...]]:
    """Standing approvals of a recipe that count at each broker, with what runs took of them.

    What was approved is counted from the owners' signatures; what was used is the broker's word.
    Arguments and errors as ``tallies``.
    """
    lock, target = deployment.lock, deployment.target

    def at(broker: Path) -> tuple[StandingUsed, ...]:
        with BrokerClient.at(load_pin(broker)) as client:
            needs = needs_of(lock.recipe)
            tally = client.approvals_status(target, consortium, system_clock(), needs=needs)
            said = client.standing(target)
            return join_uses(tally, [(use.approval, use.runs, use.epsilon) for use in said])

    return at_each(brokers, at)


def _require_membership(me: PublicIdentity, lock: Lock, consortium: Consortium) -> None:
    if consortium.consortium_id != lock.consortium_id:
        raise ConsortiumMismatch(
            "the recipe is another consortium's than your file",
            check="consortium",
            got=consortium.consortium_id,
            expected=lock.consortium_id,
            hint="name the consortium file that belongs to the recipe: --consortium",
        )
    if consortium.owner(me.name).owner_id != me.owner_id:
        raise ApprovalUnknown(
            "the consortium knows other keys of this owner",
            check="signer",
            owner=me.name,
            got=me.owner_id,
            expected=consortium.owner(me.name).owner_id,
            hint="use the identity whose public file the consortium was made with",
        )


def _lifts(
    decided: Iterable[SignedDecision],
    me: PublicIdentity,
    target: Target,
    *,
    lift_revocation: bool,
) -> tuple[str, ...]:
    """Digests of every revocation of the recipe by its owner, once all are taken back."""
    mine = [
        decision
        for decision in decided
        if decision.owner.owner_id == me.owner_id and decision.decision.target == target
    ]
    revoked = {decision.digest for decision in mine if decision.decision.decision == "revoke"}
    lifted = {digest for decision in mine for digest in decision.decision.lifts}
    if revoked - lifted and not lift_revocation:
        raise UsageError(
            "you revoked this recipe",
            check="--lift-revocation",
            hint="take the revocation back: --lift-revocation",
        )
    if lift_revocation and not revoked:
        raise UsageError(
            "you did not revoke this recipe",
            check="--lift-revocation",
            hint="there is nothing to lift: leave --lift-revocation out",
        )
    return tuple(sorted(revoked))


def _choose_pinned(
    named: list[DatasetManifest],
    registered: tuple[DatasetManifest, ...],
    me: str,
    recipe: PhaseRecipe,
    chains: Container[str] = (),
) -> tuple[DatasetManifest, ...]:
    """The owner's datasets that are named, else all that are registered."""
    own = [dataset for dataset in registered if dataset.owner == me]
    known = {(dataset.dataset_id, dataset.root) for dataset in own}
    for manifest in named:
        if (manifest.dataset_id, manifest.root) not in known:
            raise DatasetUnknown(
                f"no broker has registered the dataset {manifest.name} as this folder holds it",
                check="--data",
                owner=me,
                got=manifest.dataset_id,
                expected=", ".join(dataset.dataset_id for dataset in own) or "none is registered",
                hint="register it: sealtrain register SEALED; then approve",
            )
    if named:
        return tuple(named)
    missing = tuple(name for name in _list_unregistered(own, me, recipe) if name not in chains)
    if missing:
        raise DatasetUnknown(
            "the recipe reads data of yours that is not registered for it",
            check="--data",
            owner=me,
            got=", ".join(sorted(dataset.name for dataset in own)) or "none",
            expected=", ".join(sorted({*missing, *(dataset.name for dataset in own)})),
            hint="seal it for this recipe, or register it: sealtrain register SEALED; or approve "
            "whatever you register for this recipe: --unpinned",
        )
    names = [dataset.name for dataset in own if dataset.series is None]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"several datasets of yours are registered as {', '.join(twice)}",
            check="--data",
            got=", ".join(
                f"{dataset.dataset_id} sealed {dataset.sealed_at}"
                for dataset in own
                if dataset.name in twice
            ),
            expected="one of each name",
            hint="name the folders that count with --data; sealtrain withdraw ends the others",
        )
    return tuple(own)


def _list_unregistered(
    manifests: Iterable[DatasetManifest], me: str, recipe: PhaseRecipe
) -> tuple[str, ...]:
    """Names of an owner's datasets in a recipe that are not among some."""
    there = {manifest.name for manifest in manifests}
    return tuple(
        dataset.name
        for dataset in recipe.datasets
        if dataset.owner == me and dataset.name not in there
    )


def _submit(
    owner: OwnerFiles, decision: Decision, needs: Needs, consortium: Consortium
) -> AtEach[ApprovalTally]:
    """Sign a decision, hand it to each broker and count again from the signed decisions."""
    signer = owner.keys.signer
    envelope = sign_decision(decision, signer)

    def at(broker: Path) -> ApprovalTally:
        index = None
        if decision.decision == "revoke":
            # Nothing keeps an owner from stopping, whatever became of the ledger.
            pin = load_pin(broker)
            with BrokerClient.at(pin, signer=signer) as client:
                index = client.hand_in("approval", envelope)
        with watch_ledger(broker, consortium, owner.identity, owner.state) as watch:
            if index is None:
                index = watch.client.hand_in("approval", envelope)
            watch.confirm_recorded(index, envelope.to_bytes())
            return watch.client.approvals_status(
                decision.target, consortium, system_clock(), needs=needs
            )

    return at_each(owner.brokers, at)
