"""Within checks 13 and 15: the privacy claimed is what the recipe asked and the ledger holds."""

from __future__ import annotations

from collections.abc import Mapping

from sealtrain.base.canonical import JsonValue
from sealtrain.consortium.receipts import ReleaseReceipt
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import PrivateCounting, PrivateTraining
from sealtrain.recipe.privacy import PrivateSgd, spendings
from sealtrain.signing.errors import ProofInvalid


def privacy_kept(case: Case) -> str:
    """(15) The mechanism is the recipe's, and what it spent is what it may.

    Returns:
        What was kept, for the reader; empty without differential privacy.
    """
    recipe, claimed = case.need_lock().recipe, case.predicate.privacy
    asked = recipe.privacy
    promise = None if recipe.collaboration is None else recipe.collaboration.privacy_promise
    kind = asked.dp if promise is None else promise.dp
    if claimed.dp != kind:
        raise _other("kind of privacy", claimed.dp, kind)
    if isinstance(claimed, PrivateCounting):
        if asked.dp == "counts" and claimed.epsilon != asked.target_epsilon:
            raise _other("epsilon", claimed.epsilon, asked.target_epsilon)
        return f"; counts noised at epsilon {claimed.epsilon:g}"
    if not isinstance(claimed, PrivateTraining) or not isinstance(asked, PrivateSgd):
        return ""
    for name in ("delta", "accountant", "max_grad_norm", "sampling", "unit"):
        got, expected = getattr(claimed, name), getattr(asked, name)
        if got != expected:
            raise _other(name, got, expected)
    if asked.noise_multiplier is not None and claimed.noise_multiplier != asked.noise_multiplier:
        raise _other("noise multiplier", claimed.noise_multiplier, asked.noise_multiplier)
    _refuse_overspending(case, claimed, asked)
    return f"; epsilon {claimed.epsilon:.4g} at delta {claimed.delta:g} by {claimed.accountant}"


def privacy_reserved(
    case: Case, receipt: ReleaseReceipt, body: Mapping[str, JsonValue], index: int
) -> None:
    """(13) The entry of a run's first release reserves what the recipe may spend; others name it.

    Args:
        case: Its lock is known.
        receipt: The receipt that the entry is about.
        body: Of the ledger entry.
        index: Of the ledger entry.

    Raises:
        ProofInvalid: The reservation is missing or another one.
    """
    spending = [spending.to_dict() for spending in spendings(case.need_lock().recipe)]
    first = receipt.kind == "release" and not receipt.resume
    again = receipt.kind == "release" and receipt.resume and bool(spending)
    reserved, place = spending if first else [], body.get("reserved_at")
    named = type(place) is int and 0 <= place < index if again else place is None
    if (body.get("privacy") or []) != reserved or not named:
        raise ProofInvalid(
            "the ledger does not hold the reservation of privacy that this release needs",
            check="ledger",
            got=f"{len(body.get('privacy') or [])} reservations, an earlier one at {place}",
            expected="the recipe's, in the run's first release; the place of that in each resume",
            hint="the broker released keys without counting them against the owners' budgets",
        )


def _refuse_overspending(case: Case, claimed: PrivateTraining, asked: PrivateSgd) -> None:
    if claimed.epsilon > asked.target_epsilon:
        raise _other("epsilon", claimed.epsilon, f"at most {asked.target_epsilon:g}")
    if claimed.steps != case.predicate.run.steps:
        raise _other("number of steps", claimed.steps, case.predicate.run.steps)
    if claimed.epsilon != max(dataset.epsilon for dataset in claimed.datasets):
        raise _other("epsilon", claimed.epsilon, "the largest of its datasets")
    named = [(dataset.owner, dataset.name) for dataset in claimed.datasets]
    expected = [
        (dataset.owner, dataset.name)
        for dataset in case.need_lock().recipe.datasets
        if dataset.role == "train"
        for _member in _read_of(case, dataset.owner, dataset.name)
    ]
    if sorted(named) != sorted(expected):
        raise _other("set of datasets", len(named), f"{len(expected)}: the recipe's")


def _read_of(case: Case, owner: str, name: str) -> tuple[object, ...]:
    """The members of a series that the run read; one item for a dataset in none."""
    read = {
        (read_series.owner, read_series.name): read_series.members
        for read_series in case.predicate.series
    }
    return read.get((owner, name), (name,))


def _other(what: str, got: object, expected: object) -> ClaimContradicted:
    return ClaimContradicted(
        f"the manifest claims another {what} of privacy than the recipe asked for",
        check="privacy",
        got=got,
        expected=expected,
    )
