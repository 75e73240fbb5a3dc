"""The checks of a release, 7 to 14 of spec/key-release.md §4.2, in their order: ``CHECKS``.

``decide`` makes them and ends with the first that fails; ``objections`` tells all that fail, to a
caller that wants to know before a guest asks. Pure, as ``release.decide``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from sealtrain.attest.errors import AppIdMismatch, ComposeHashMismatch, PlatformMismatch
from sealtrain.base.tiers import require_tier
from sealtrain.consortium.approvals import ApprovalTally, require
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import BudgetSpent, ConsortiumMismatch
from sealtrain.errors import BrokerNotApproved, RecipeChanged, RunMismatch, SealtrainError
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.privacy import Spending
from sealtrain.release.data_fits import (
    find_named,
    list_released,
    newest_read,
    of_one_owner,
    pins_fit,
    root_fits,
)
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.release.facts import DecisionLimits, Known, Measured, RunState
from sealtrain.release.messages import RenewalRequest
from sealtrain.release.model_before import follows_newest
from sealtrain.release.request_facts import Asks, AsksOfDataset
from sealtrain.signing.target import Target


class Objection(NamedTuple):
    """A reason against a release, and the dataset that it is about, where it is about one."""

    error: SealtrainError
    dataset_id: str | None


def objections(
    asks: Asks,
    measured: Measured,
    known: Known,
    *,
    registered: Mapping[str, DatasetManifest],
    now: int,
    limits: DecisionLimits,
    spent: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> Iterator[Objection]:
    """All that stands against a release, in the order of ``CHECKS``; nothing where it may be.

    ``decide`` raises the first, so a caller that asks ahead is told the same. Arguments as
    ``decide``; the challenge in ``known`` is not looked at.
    """
    facts = _Facts(asks, measured, known, registered, now, limits, spent)
    for check in CHECKS:
        for dataset_id, act in check.acts(facts):
            try:
                act()
            except SealtrainError as error:
                yield Objection(error, dataset_id)


class _Facts(NamedTuple):
    """What the checks of a release look at; each attribute as the argument of ``objections``."""

    asks: Asks
    measured: Measured
    known: Known
    registered: Mapping[str, DatasetManifest]
    now: int
    limits: DecisionLimits
    spent: Mapping[tuple[str, str], float]

    @property
    def begins(self) -> bool:
        """Whether a run begins."""
        return self.known.run is None

    def list_registered(self) -> Iterator[tuple[AsksOfDataset, DatasetManifest]]:
        """The datasets that pass the check of their registration, with their manifests."""
        for dataset in self.asks.datasets:
            with suppress(DatasetUnknown):
                yield (
                    dataset,
                    find_named(dataset, self.asks, self.measured, self.registered),
                )


_Acts = Iterator[tuple[str | None, Callable[[], object]]]
"""Dataset that an act is about, where it is about one, and the act; it raises or returns."""


class ReleaseCheck(NamedTuple):
    """One check of a release.

    Attributes:
        number: Of its row in spec/key-release.md §4.2.
        name: What it sees to, in the order of that row.
        acts: What is done for it.
    """

    number: int
    name: str
    acts: Callable[[_Facts], _Acts]


def _once(act: Callable[[_Facts], object]) -> Callable[[_Facts], _Acts]:
    return lambda facts: iter([(None, partial(act, facts))])


def _registrations(facts: _Facts) -> _Acts:
    for dataset in facts.asks.datasets:
        act = partial(find_named, dataset, facts.asks, facts.measured, facts.registered)
        yield dataset.dataset_id, act


def _purposes(facts: _Facts) -> _Acts:
    for dataset, manifest in facts.list_registered():
        yield dataset.dataset_id, partial(manifest.require_purpose, facts.measured.purpose)


def _retentions(facts: _Facts) -> _Acts:
    for dataset_id, manifest in of_target(facts.asks, facts.registered).items():
        yield dataset_id, partial(manifest.require_retained, facts.now)


def _roots(facts: _Facts) -> _Acts:
    for dataset, manifest in facts.list_registered():
        yield dataset.dataset_id, partial(root_fits, dataset, manifest)


def _pins(facts: _Facts) -> _Acts:
    for dataset, manifest in facts.list_registered():
        yield dataset.dataset_id, partial(pins_fit, dataset, manifest, facts.known)


def _one_owner(facts: _Facts) -> None:
    if facts.measured.apart:
        of_one_owner(list_released(facts.asks, facts.registered))


def _series(facts: _Facts) -> None:
    if facts.begins:
        newest_read(facts.asks, facts.measured, facts.known.chains)


def _budgets(facts: _Facts) -> None:
    within_budget(facts.measured.privacy if facts.begins else (), facts.spent)


CHECKS: Final = (
    ReleaseCheck(
        7, "what the guest measured", _once(lambda it: same_measurements(it.asks, it.measured))
    ),
    ReleaseCheck(8, "recipe", _once(lambda it: same_recipe(it.asks, it.measured))),
    ReleaseCheck(9, "lock", _once(lambda it: lock_fits(it.measured, it.limits))),
    ReleaseCheck(
        10, "approvals", _once(lambda it: approvals_suffice(it.asks, it.measured, it.known.tally))
    ),
    ReleaseCheck(11, "run and its data", _once(lambda it: _run_fits(it.asks, it.known.run))),
    ReleaseCheck(12, "nothing withdrawn", _once(lambda it: none_withdrawn(it.known.withdrawn))),
    ReleaseCheck(12, "registered and named", _registrations),
    ReleaseCheck(12, "purpose", _purposes),
    ReleaseCheck(12, "retention", _retentions),
    ReleaseCheck(13, "root", _roots),
    ReleaseCheck(13, "pins", _pins),
    ReleaseCheck(13, "one owner", _once(_one_owner)),
    ReleaseCheck(13, "series", _once(_series)),
    ReleaseCheck(
        13, "model before", _once(lambda it: follows_newest(it.asks, it.measured, it.known))
    ),
    ReleaseCheck(14, "privacy", _once(_budgets)),
)
"""In the order of the specification.

Checks 1 to 4 are ``release.decide.admit``, 5 and 6 the appraisal, 15 is ``service.keyring``.
"""


def same_measurements(request: Asks | RenewalRequest, measured: Measured) -> None:
    """Return if a guest measured what it asks for (7)."""
    # (7) again: appraisal compared these already; a caller that passed it no hash must not pass.
    if measured.compose_hash != request.compose_hash:
        raise ComposeHashMismatch(
            "the guest measured another deployment document than it asks keys for",
            check="compose hash",
            got=measured.compose_hash,
            expected=request.compose_hash,
        )
    if measured.app_id != request.app_id:
        raise AppIdMismatch(
            "the guest measured another app id than it asks keys for",
            check="app id",
            got=measured.app_id,
            expected=request.app_id,
        )


def same_recipe(request: Asks | RenewalRequest, measured: Measured) -> None:
    """Return if the measured lock is the recipe that keys are asked for (8)."""
    if measured.recipe_hash != request.recipe_hash:
        raise RecipeChanged(  # (8)
            "the lock inside the measured deployment document is another recipe",
            check="recipe hash",
            got=measured.recipe_hash,
            expected=request.recipe_hash,
            hint="run the lock that was embedded: sealtrain lock, then approve again",
        )


def lock_fits(measured: Measured, limits: DecisionLimits) -> None:
    """Return if the measured lock is for this consortium, broker and platform (9)."""
    same_consortium(measured.consortium_id, limits, "recipe lock")  # (9)
    if measured.brokers.isdisjoint(limits.broker_ids):
        raise BrokerNotApproved(
            "the recipe's lock does not name this broker",
            check="broker",
            got=limits.broker_ids[0],
            expected=" or ".join(sorted(measured.brokers)),
            hint="ask the brokers that the owners approved with the recipe",
        )
    if measured.platform not in measured.platforms:
        raise PlatformMismatch(
            "the recipe may not run on this platform",
            check="recipe platform",
            got=measured.platform,
            expected=" or ".join(sorted(measured.platforms)),
            hint="deploy on a platform the owners approved, or lock another recipe",
        )
    require_tier(measured.tier, measured.lowest_tier, asked_by="the recipe")


def approvals_suffice(
    request: Asks | RenewalRequest, measured: Measured, tally: ApprovalTally
) -> None:
    """Return if the owners of the target approved what its recipe needs (10)."""
    if tally.target != Target(
        app_id=request.app_id, compose_hash=request.compose_hash, recipe_hash=request.recipe_hash
    ):
        raise ValueError("the tally is of another target than the request")
    if tally.needs != measured.needs:
        raise ValueError("the tally is of other needs than the measured recipe's")
    require(tally)  # (10)


def _run_fits(request: Asks, run: RunState | None) -> None:
    if run is None and request.resume:
        raise RunMismatch(
            "there is no such run to resume at this broker",
            check="run",
            got=request.run_id,
            hint="start a new run, or ask the broker that released its keys first",
        )
    if run is not None and not request.resume:
        raise RunMismatch(
            "this run has begun before",
            check="run",
            got=request.run_id,
            expected="a new run id, or resume",
            hint="resume the run, or start another with a fresh run id",
        )
    if run is not None and not same_run(run, request):
        raise RunMismatch(
            "this run began with another recipe",
            check="run",
            got=request.recipe_hash,
            expected=run.recipe_hash,
            hint="resume with the recipe the run began with",
        )
    if run is not None and run.data != request.data:
        # Noise follows from the data's keys and roots: other data would draw noise anew, unpaid.
        raise RunMismatch(
            "this run began with other data, or another sealing of it",
            check="run data",
            got=", ".join(sorted(dataset.dataset_id for dataset in request.data - run.data))
            or "datasets missing",
            expected=f"the {len(run.data)} datasets it began with, under the same roots",
            hint="resume with the sealed data that the run began with, or start another run",
        )


def of_target(
    asks: Asks | RenewalRequest, registered: Mapping[str, DatasetManifest]
) -> dict[str, DatasetManifest]:
    """The manifests, by dataset id, that are registered for the deployment of a request.

    Another deployment's says nothing about this one: of such data another broker has the manifest.
    """
    target = (asks.app_id, asks.compose_hash)
    return {
        dataset_id: manifest
        for dataset_id, manifest in sorted(registered.items())
        if (manifest.app_id, manifest.compose_hash) == target
    }


def same_run(run: RunState, request: Asks | RenewalRequest) -> bool:
    """Whether a run began with the target of a request."""
    return (run.app_id, run.compose_hash, run.recipe_hash) == (
        request.app_id,
        request.compose_hash,
        request.recipe_hash,
    )


def same_consortium(got: str, limits: DecisionLimits, what: str) -> None:
    """Check 1, also for requests that are not decided on.

    Raises:
        ConsortiumMismatch: ``got`` is not the consortium this broker serves.
    """
    if got != limits.consortium_id:
        raise ConsortiumMismatch(
            f"the {what} names another consortium than this broker serves",
            check="consortium",
            got=got,
            expected=limits.consortium_id,
            hint="use the consortium file and the broker that belong together",
        )


# Sums of decimal fractions miss by less than this.
_ROUNDING = 1e-9


def within_budget(asked: Sequence[Spending], spent: Mapping[tuple[str, str], float]) -> None:
    """See that what is asked for fits beside what was reserved before.

    Every run reserves its whole epsilon of each dataset that it protects when it first gets keys,
    whatever becomes of it: a broker cannot call keys back. Epsilons add up (basic composition),
    which bounds what all runs together reveal. A resume reserves nothing: its noise is the
    interrupted run's own.

    Args:
        asked: What the run reserves, one for each dataset.
        spent: Epsilon reserved so far, by (owner, dataset name).

    Raises:
        BudgetSpent: An owner's budget has too little left.
    """
    for spending in asked:
        before = spent.get((spending.owner, spending.name), 0.0)
        if spending.budget is not None and before + spending.epsilon > spending.budget + _ROUNDING:
            raise BudgetSpent(
                f"the privacy budget of {spending.name} has too little left for this run",
                check="privacy budget",
                owner=spending.owner,
                got=f"epsilon {spending.epsilon:g} on top of {before:g}",
                expected=f"at most {spending.budget:g} together",
                hint="its owner decides: another budget is another recipe, to be approved anew",
            )


def none_withdrawn(withdrawn: Mapping[str, str]) -> None:
    """See that nothing a run is about was withdrawn.

    Args:
        withdrawn: Of the datasets it asks for or was given before, those that were withdrawn,
            each with the name of its owner.

    Raises:
        DatasetWithdrawn: There are some.
    """
    if withdrawn:
        owners = ", ".join(sorted(set(withdrawn.values())))
        raise DatasetWithdrawn(
            f"{owners} withdrew data of this run",
            check="withdrawal",
            owner=owners,
            got=", ".join(sorted(withdrawn)[:4]),
            expected="datasets that no owner withdrew",
            hint="a withdrawal is final: lock a recipe without this data and train anew",
        )
