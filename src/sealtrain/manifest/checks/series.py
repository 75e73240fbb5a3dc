"""Within checks 10 and 13: the series that a run read, and the standing approvals it began under.

See spec/run-manifest.md §2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import load_model
from sealtrain.consortium.approvals import CLOCK_SKEW
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.errors import ApprovalSpent, BudgetSpent, SeriesMismatch
from sealtrain.consortium.receipts import OwnedId, ReleaseReceipt
from sealtrain.consortium.series import block_of, chain_of, members_read, newest_of
from sealtrain.consortium.series_block import NewestMember
from sealtrain.consortium.standing_approval import StandingUse
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.signing import dsse
from sealtrain.signing.errors import ProofInvalid
from sealtrain.signing.target import Target

if TYPE_CHECKING:
    from sealtrain.consortium.decisions import SignedDecision
    from sealtrain.manifest.checks.case import Case, CountedReceipt
    from sealtrain.manifest.predicate import SeriesRead

_ROUNDING = 1e-9
_Key = tuple[str, str]


def chains_hold(
    case: Case, datasets: Sequence[DatasetManifest]
) -> dict[_Key, tuple[DatasetManifest, ...]]:
    """(10) Every series of the lock is one chain, of which the run read what its mode says.

    Args:
        case: Its lock is known.
        datasets: Verified manifests of the run's data.

    Returns:
        Members from member 1 to the newest, by owner and name.

    Raises:
        ClaimContradicted: The items are not those of the lock.
        SeriesMismatch: A gap, a fork, a broken bound, or members that the run did not read.
    """
    series = case.predicate.series
    stated = [(read_series.owner, read_series.name) for read_series in series]
    asked = [
        (dataset.owner, dataset.name)
        for dataset in case.need_lock().recipe.datasets
        if dataset.series is not None
    ]
    if stated != asked:
        raise ClaimContradicted(
            "the series are not exactly those that the recipe names",
            check="series",
            got=_keys(stated),
            expected=_keys(asked),
        )
    by_id = {dataset.dataset_id: dataset for dataset in datasets}
    return {
        (read_series.owner, read_series.name): _chain(case, read_series, by_id)
        for read_series in series
    }


def begins_as_allowed(case: Case, counted: CountedReceipt, body: Mapping[str, JsonValue]) -> None:
    """(13) The entry with which a run begins counts it, and names the newest member of each series.

    Args:
        case: Its datasets and its lock are known.
        counted: The receipt that the entry is about.
        body: Of the ledger entry.

    Raises:
        ProofInvalid: The entry says less or more, or in another form.
        SeriesMismatch: Its broker knew a newer member than the run read.
        ApprovalSpent, BudgetSpent: It counts more than an approval allows.
    """
    receipt = counted.receipt
    if receipt.kind != "release" or receipt.resume:
        if "standing" in body or "series" in body:
            raise _refuse_unproven("only the entry with which a run begins counts it")
        return
    case.need_datasets()  # and with them the chains
    _newest_read(case, receipt, _items(NewestMember, body, "series"))
    _require_counted(case, counted, _items(StandingUse, body, "standing"))


def _chain(
    case: Case, read_series: SeriesRead, by_id: Mapping[str, DatasetManifest]
) -> tuple[DatasetManifest, ...]:
    former = [
        verify_dataset(dsse.Envelope.from_dict(document), case.predicate.consortium)
        for document in read_series.former
    ]
    missing = [member for member in read_series.members if member not in by_id]
    if missing:
        raise ClaimContradicted(
            "a series lists a member that is not among the datasets",
            check="series",
            owner=read_series.owner,
            got=missing[0],
        )
    read = [by_id[member] for member in read_series.members]
    members = [*former, *read]
    for member in members:
        if (member.owner, member.name) != (read_series.owner, read_series.name):
            raise _broken(read_series, "lists a dataset of another owner or name")
        block_of(member)
    chain = chain_of(members)
    if list(chain) != members or list(members_read(chain)) != read:
        raise _broken(read_series, "does not list the members that a run of its mode reads")
    own = {
        key
        for key, known in by_id.items()
        if (known.owner, known.name) == (read_series.owner, read_series.name)
    }
    if own != set(read_series.members):
        raise _broken(read_series, "leaves out a dataset of its name that the run read")
    return chain


def _newest_read(case: Case, receipt: ReleaseReceipt, stated: Sequence[NewestMember]) -> None:
    said = {(item.owner, item.name): item for item in stated}
    if len(said) != len(stated):
        raise _refuse_unproven("it states the newest member of a series twice")
    if not said.keys() <= case.chains.keys():
        raise SeriesMismatch(
            "the ledger names a series that the recipe does not read",
            check="series",
            got=_keys(sorted(said.keys() - case.chains.keys())),
        )
    released = {OwnedId(dataset.owner_id, dataset.dataset_id) for dataset in receipt.datasets}
    for key, chain in case.chains.items():
        item, newest = said.get(key), newest_of(chain)
        members = (OwnedId(member.owner_id, member.dataset_id) for member in chain)
        if item is None and not released.isdisjoint(members):
            raise _refuse_unproven(
                "it does not state the newest member of a series that was released"
            )
        if item is not None and item != newest:
            raise SeriesMismatch(
                "the broker knew another newest member of the series than the run read",
                check="series",
                owner=key[0],
                dataset=key[1],
                got=newest.number,
                expected=item.number,
            )


def _require_counted(case: Case, counted: CountedReceipt, uses: Sequence[StandingUse]) -> None:
    receipt = counted.receipt
    named = [use.owner for use in uses]
    order = [owner.name for owner in case.predicate.consortium.owners if owner.name in named]
    if named != order or not set(named) <= set(receipt.approved_by):
        raise _refuse_unproven("it counts approvals of other owners than the receipt names")
    known = _approvals(case, counted)
    for use in uses:
        signed = known.get(use.owner, {}).get(use.approval)
        terms = None if signed is None else signed.decision.standing
        if terms is None or (terms.epsilon is None) != (use.epsilon is None):
            raise _refuse_unproven("it counts an approval that the manifest does not hold")
        if use.run > terms.runs:
            raise ApprovalSpent(
                "the run is one more than the standing approval allows",
                check="approvals",
                owner=use.owner,
                got=use.run,
                expected=f"at most {terms.runs}",
            )
        if use.epsilon is not None and use.epsilon > (terms.epsilon or 0.0) + _ROUNDING:
            raise BudgetSpent(
                "runs reserved more epsilon than the standing approval allows",
                check="approvals",
                owner=use.owner,
                got=use.epsilon,
                expected=f"at most {terms.epsilon:g}",
            )
    for owner in receipt.approved_by:
        plain = [
            approval
            for approval in known.get(owner, {}).values()
            if approval.decision.standing is None
        ]
        if owner not in named and not plain:
            raise _refuse_unproven("it does not count the run under a standing approval")


def _approvals(case: Case, counted: CountedReceipt) -> dict[str, dict[str, SignedDecision]]:
    """By owner and digest, approvals of the target that are for the broker of a receipt.

    They were signed by the time of the receipt.
    """
    deployment = case.predicate.deployment
    target = Target(
        app_id=deployment.app_id,
        compose_hash=deployment.compose_hash,
        recipe_hash=case.predicate.recipe.recipe_hash,
    )
    until = from_rfc3339(counted.receipt.released_at) + CLOCK_SKEW
    found: dict[str, dict[str, SignedDecision]] = {}
    for signed in case.verify_decisions():
        decision = signed.decision
        if (
            decision.decision == "approve"
            and decision.target == target
            and decision.is_for(counted.ids)
            and decision.signed <= until
        ):
            found.setdefault(signed.owner.name, {})[signed.digest] = signed
    return found


def _items(form: type[Any], body: Mapping[str, JsonValue], name: str) -> tuple[Any, ...]:
    items = body.get(name, ())
    if not isinstance(items, (list, tuple)) or (name in body and not items):
        raise _refuse_unproven(f"{name} has another form")
    return tuple(load_model(form, item, ProofInvalid, "ledger entry") for item in items)


def _refuse_unproven(problem: str) -> ProofInvalid:
    return ProofInvalid(
        f"the ledger entry of a release does not prove what it must: {problem}",
        check="ledger",
        hint="the broker released keys without counting the run",
    )


def _broken(read_series: SeriesRead, problem: str) -> SeriesMismatch:
    return SeriesMismatch(
        f"a series of the manifest {problem}",
        check="series",
        owner=read_series.owner,
        dataset=read_series.name,
    )


def _keys(keys: Sequence[_Key]) -> str:
    return ", ".join(f"{owner}/{name}" for owner, name in keys) or "none"
