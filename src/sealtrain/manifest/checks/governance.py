"""Checks 10 and 12: whose data it was, and who had agreed when keys were released."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.approvals import CLOCK_SKEW, SignedDecision, require, tally
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.standing_approval import admits
from sealtrain.manifest.checks.case import Case, NotEstablished
from sealtrain.manifest.checks.parties import (
    keys_were_released,
    parties_are_the_recipes,
    stays_in,
)
from sealtrain.manifest.checks.series import chains_hold
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.needs import needs_of
from sealtrain.signing import dsse
from sealtrain.signing.target import Target


def datasets_are_their_owners(case: Case) -> str:
    """(10) Each dataset is signed by its owner for this deployment, and the recipe names it.

    Where several parties train together, they are owners of its data, and each one's is there.
    """
    took_part = parties_are_the_recipes(case)
    consortium, deployment = case.predicate.consortium, case.predicate.deployment
    found = tuple(
        verify_dataset(dsse.Envelope.from_dict(document), consortium)
        for document in case.predicate.datasets
    )
    for dataset in found:
        if (dataset.app_id, dataset.compose_hash) != (deployment.app_id, deployment.compose_hash):
            raise DatasetMismatch(
                f"the dataset {dataset.name} was sealed for another deployment",
                check="dataset deployment",
                owner=dataset.owner,
                got=dataset.compose_hash,
                expected=deployment.compose_hash,
            )
    if len({dataset.dataset_id for dataset in found}) != len(found):
        raise DatasetMismatch("the manifest lists a dataset twice", check="datasets")
    chains = chains_hold(case, found)
    named = Counter(
        (dataset.owner, dataset.name)
        for dataset in case.need_lock().recipe.datasets
        if dataset.owner in took_part and dataset.series is None
    )
    listed = Counter(
        key for dataset in found if (key := (dataset.owner, dataset.name)) not in chains
    )
    if named != listed:
        raise DatasetUnknown(
            "the datasets are not exactly those that the recipe names",
            check="datasets",
            got=_pairs(listed),
            expected=_pairs(named),
        )
    for dataset in found:
        dataset.require_purpose(case.need_lock().recipe.purpose)
    case.datasets, case.chains = found, chains
    records = [dataset.records for dataset in found]
    total = "" if None in records else f", {sum(record or 0 for record in records)} records"
    return f"{len(found)} datasets of {len({dataset.owner for dataset in found})} owners{total}"


def approvals_sufficed(case: Case) -> str:
    """(12) At each release enough owners had approved this target, and none stood against it.

    Decisions count at the brokers that they name. Where no key was released, a broker of the lock.
    """
    consortium, deployment = case.predicate.consortium, case.predicate.deployment
    decisions = case.verify_decisions()
    target = Target(
        app_id=deployment.app_id,
        compose_hash=deployment.compose_hash,
        recipe_hash=case.predicate.recipe.recipe_hash,
    )
    needs = needs_of(case.need_lock().recipe)
    standing = None
    unasked: set[str] = set()
    for moment in _moments(case):
        made = [
            signed
            for signed in decisions
            if signed.decision.is_for(moment.brokers) and _was_known(signed, moment.at)
        ]
        standing = require(tally(made, consortium, target, moment.at, needs=needs))
        unasked |= moment.owners - set(standing.approved_by)
        absent = set(moment.approved_by) - set(standing.approved_by)
        if absent:
            raise ClaimContradicted(
                "the broker counted an approval that the manifest does not hold",
                check="approvals",
                owner=", ".join(sorted(absent)),
                got=", ".join(standing.approved_by),
                expected=", ".join(moment.approved_by),
            )
        for approval in standing.approvals:
            _refuse_other_pins(case, approval)
    if standing is None:
        raise NotEstablished("releases")
    case.tally = standing
    case.unasked = tuple(sorted(unasked))
    without = f"; data of {', '.join(case.unasked)} used without approval" if unasked else ""
    return (
        f"{standing.progress} of {standing.owners} owners approved, {standing.threshold} needed: "
        + ", ".join(standing.approved_by)
        + without
    )


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time at which approvals had to stand.

    Attributes:
        at: Seconds since the epoch.
        approved_by: Whose approvals a broker says it counted then.
        owners: Whose data the run had then.
        brokers: Ids of the broker that decided then.
    """

    at: int
    approved_by: tuple[str, ...]
    owners: frozenset[str]
    brokers: tuple[str, ...]


def _moments(case: Case) -> list[_Moment]:
    """One for each receipt, in order of time; the start of a run that released no key.

    In such a run clients keep their data, and check 18 asks for each owner's own consent to it. An
    owner's data counts from the receipt that released it. Data that none of these receipts released
    came from other brokers, at times that are unknown here: it counts from the start.
    """
    receipts = case.need_receipts()
    if not keys_were_released(case.predicate):
        began, brokers = from_rfc3339(case.predicate.run.started_at), case.need_lock().brokers
        return [_Moment(began, (), frozenset(), tuple(brokers))]
    owner_of = {dataset.dataset_id: dataset.owner for dataset in case.need_datasets()}
    released = {dataset.dataset_id for receipt in receipts for dataset in receipt.datasets}
    elsewhere = {owner for dataset_id, owner in owner_of.items() if dataset_id not in released}
    using: dict[str, frozenset[str]] = {
        stay.run_id: frozenset(elsewhere & ({stay.party} if stay.party else elsewhere))
        for stay in stays_in(case)
    }
    found = []
    for counted in case.need_counted():
        receipt = counted.receipt
        using[receipt.run_id] |= {owner_of[dataset.dataset_id] for dataset in receipt.datasets}
        at, owners = from_rfc3339(receipt.released_at), using[receipt.run_id]
        found.append(_Moment(at, receipt.approved_by, owners, counted.ids))
    return found


def _was_known(signed: SignedDecision, moment: int) -> bool:
    """Whether a decision bears on a release at ``moment``.

    A later revocation stopped later releases and does not undo this one. Within one second only
    the broker knows the order, and its receipt says that none stood.
    """
    if signed.decision.decision == "revoke":
        return signed.decision.signed < moment
    return signed.decision.signed <= moment + CLOCK_SKEW


def _refuse_other_pins(case: Case, approval: SignedDecision) -> None:
    owner, pins = approval.owner.name, approval.decision.pins()
    for dataset in case.need_datasets():
        if dataset.owner != owner:
            continue
        pinned = pins.get(dataset.dataset_id)
        chain = case.chains.get((dataset.owner, dataset.name), ())
        if not admits(approval.decision, dataset, chain):
            raise DatasetMismatch(
                f"the approval pins other datasets than {dataset.name}",
                check="dataset pin",
                owner=owner,
                got=dataset.dataset_id,
                expected=", ".join([*sorted(pins), *approval.decision.series]),
            )
        if pinned is not None and pinned != dataset.root:
            raise DatasetMismatch(
                f"the approval pins another root of {dataset.name} than was used",
                check="dataset pin",
                owner=owner,
                got=dataset.root,
                expected=pinned,
            )


def _pairs(pairs: Counter[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{owner}/{name}" for owner, name in pairs.elements()))
