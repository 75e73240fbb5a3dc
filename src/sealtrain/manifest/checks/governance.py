"""Checks 10 and 12: whose data it was, and who had agreed when keys were released."""

from __future__ import annotations

from collections import Counter

from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.approvals import CLOCK_SKEW, SignedDecision, Target, require, tally
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.decisions import verify_decision
from sealtrain.errors import ClaimContradicted, DatasetMismatch, DatasetUnknown
from sealtrain.manifest.checks.case import Case, NotEstablished
from sealtrain.manifest.checks.parties import keys_were_released, parties_are_the_recipes
from sealtrain.recipe.needs import needs_of
from sealtrain.records import dsse

__all__ = ["approvals_sufficed", "datasets_are_their_owners"]


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
    for one in found:
        if (one.app_id, one.compose_hash) != (deployment.app_id, deployment.compose_hash):
            raise DatasetMismatch(
                f"the dataset {one.name} was sealed for another deployment",
                check="dataset deployment",
                owner=one.owner,
                got=one.compose_hash,
                expected=deployment.compose_hash,
            )
    if len({one.dataset_id for one in found}) != len(found):
        raise DatasetMismatch("the manifest lists a dataset twice", check="datasets")
    named = Counter(
        (one.owner, one.name) for one in case.need_lock().recipe.datasets if one.owner in took_part
    )
    listed = Counter((one.owner, one.name) for one in found)
    if named != listed:
        raise DatasetUnknown(
            "the datasets are not exactly those that the recipe names",
            check="datasets",
            got=_pairs(listed),
            expected=_pairs(named),
        )
    case.datasets = found
    records = [one.records for one in found]
    total = "" if None in records else f", {sum(one or 0 for one in records)} records"
    return f"{len(found)} datasets of {len({one.owner for one in found})} owners{total}"


def approvals_sufficed(case: Case) -> str:
    """(12) At each release enough owners had approved this target, and none stood against it."""
    consortium, deployment = case.predicate.consortium, case.predicate.deployment
    decisions = tuple(
        verify_decision(dsse.Envelope.from_dict(document), consortium)
        for document in case.predicate.approvals
    )
    case.decisions = decisions
    target = Target(
        app_id=deployment.app_id,
        compose_hash=deployment.compose_hash,
        recipe_hash=case.predicate.recipe.recipe_hash,
    )
    needs = needs_of(case.need_lock().recipe)
    standing = None
    for moment, counted_by_broker in _moments(case):
        made = [one for one in decisions if _was_known(one, moment)]
        standing = require(tally(made, consortium, target, moment, needs=needs))
        absent = set(counted_by_broker) - set(standing.approved_by)
        if absent:
            raise ClaimContradicted(
                "the broker counted an approval that the manifest does not hold",
                check="approvals",
                owner=", ".join(sorted(absent)),
                got=", ".join(standing.approved_by),
                expected=", ".join(counted_by_broker),
            )
        for owner, pins in standing.pins.items():
            _refuse_other_pins(case, owner, pins)
    if standing is None:
        raise NotEstablished("releases")
    case.tally = standing
    return (
        f"{standing.progress} of {standing.owners} owners approved, {standing.threshold} needed: "
        + ", ".join(standing.approved_by)
    )


def _moments(case: Case) -> list[tuple[int, tuple[str, ...]]]:
    """When approvals had to stand, and whose a broker says it counted then."""
    receipts = case.need_receipts()
    if keys_were_released(case.predicate):
        return [(from_rfc3339(one.released_at), one.approved_by) for one in receipts]
    return [(from_rfc3339(case.predicate.run.started_at), ())]


def _was_known(one: SignedDecision, moment: int) -> bool:
    """Whether a decision bears on a release at ``moment``.

    A later revocation stopped later releases and does not undo this one. Within one second only
    the broker knows the order, and its receipt says that none stood.
    """
    if one.decision.decision == "revoke":
        return one.decision.signed < moment
    return one.decision.signed <= moment + CLOCK_SKEW


def _refuse_other_pins(case: Case, owner: str, pins: dict[str, str]) -> None:
    for dataset in case.need_datasets():
        pinned = pins.get(dataset.dataset_id)
        if pinned is None and pins and dataset.owner == owner:
            raise DatasetMismatch(
                f"the approval pins other datasets than {dataset.name}",
                check="dataset pin",
                owner=owner,
                got=dataset.dataset_id,
                expected=", ".join(sorted(pins)),
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
