"""May this guest have the keys? Pure: no clock, no database, no network (spec/key-release.md).

Release, checks by the numbers of the spec; the first that fails raises, nothing is returned then:

1.  this broker                         ``BrokerMismatch``
    and its consortium                  ``ConsortiumMismatch``
2.  challenge issued here, for this     ``ChallengeUnknown``
3.  not used before                     ``ChallengeReplayed``
4.  not expired                         ``ChallengeExpired``
5.  evidence verifies and appraises     ``attest``, and with it
    6 report data, 7 compose hash and app id
8.  measured lock is the recipe         ``RecipeChanged``
9.  lock is for this consortium         ``ConsortiumMismatch``
    names this broker                   ``BrokerNotApproved``
    and this platform                   ``PlatformMismatch``
    and a tier that it takes            ``TierRefused``
10. approvals                           ``ApprovalRevoked`` ``ApprovalExpired`` ``ApprovalSpent``
                                        ``BudgetSpent`` ``RecipeChanged`` ``ApprovalsMissing``
11. run, and its data                   ``RunMismatch``
12. nothing of the run withdrawn        ``DatasetWithdrawn``
    datasets registered and named       ``DatasetUnknown``
    for this purpose, if it binds       ``PurposeMismatch``
    none past its retention             ``RetentionEnded``
13. roots as registered and pinned      ``DatasetMismatch``
    whole and newest series             ``SeriesMismatch``
    model of the newest run of all      ``RunChainBroken``
    of one owner, among several parties ``DatasetMismatch``
14. privacy budgets, for a new run      ``BudgetSpent``
15. stanzas open                        ``service.keyring``, the first place that touches a key

Renewal shares 1-10, then 11-15 of §5. ``admit`` is 1-4, ``decide`` and ``decide_renewal`` are 1-4
again and the rest, so a caller that forgets ``admit`` still refuses. ``objections`` gives all that
stands against a release from check 7 on, to a caller that wants to know before a guest asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from sealtrain.base.tiers import require_tier
from sealtrain.consortium.approvals import Tally, Target, require
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.receipts import Anchor
from sealtrain.consortium.standing_approval import Reserve, entries_of
from sealtrain.errors import (
    AppIdMismatch,
    BrokerMismatch,
    BrokerNotApproved,
    BudgetSpent,
    ChallengeExpired,
    ChallengeReplayed,
    ChallengeUnknown,
    CheckpointRefused,
    ComposeHashMismatch,
    ConsortiumMismatch,
    DatasetWithdrawn,
    LeaseStale,
    LeaseUnknown,
    PlatformMismatch,
    RecipeChanged,
    RunMismatch,
    SealtrainError,
)
from sealtrain.recipe.privacy import Spending
from sealtrain.release.asked import Asks
from sealtrain.release.data_fits import dataset_fits, newest_read, of_one_owner, released_of
from sealtrain.release.facts import (
    ChallengeState,
    Known,
    LeaseState,
    Limits,
    Measured,
    Permit,
    RunState,
)
from sealtrain.release.messages import ReleaseRequest, RenewalRequest
from sealtrain.release.model_before import follows_newest

__all__ = [
    "Asks",
    "Objection",
    "admit",
    "advance_anchor",
    "decide",
    "decide_renewal",
    "in_force",
    "none_withdrawn",
    "objections",
    "reserves_of",
    "same_consortium",
    "within_budget",
]


Request = ReleaseRequest | RenewalRequest


class Objection(NamedTuple):
    """A reason against a release, and the dataset that it is about, where it is about one."""

    error: SealtrainError
    dataset_id: str | None


def admit(request: Request, challenge: ChallengeState | None, *, now: int, limits: Limits) -> None:
    """Checks 1-4: cheap ones, before anything in the request is parsed further.

    Args:
        request: As received.
        challenge: State before this request burnt it; ``None`` when never issued here.
        now: The broker's time, seconds since the epoch.
        limits: The broker's bounds.

    Raises:
        ReleaseRefused: The subclass of the first check that fails.
    """
    if request.broker_id != limits.broker_ids[0]:
        raise BrokerMismatch(
            "the request is for another broker",
            check="broker",
            got=request.broker_id,
            expected=limits.broker_ids[0],
            hint="have this broker prove which one it is, then ask again",
        )
    same_consortium(request.consortium_id, limits, "request")
    purpose = "release" if isinstance(request, ReleaseRequest) else "renewal"
    if challenge is None or challenge.purpose != purpose:
        raise ChallengeUnknown(
            f"this broker did not issue this challenge for a {purpose}",
            check="challenge",
            got=None if challenge is None else challenge.purpose,
            expected=purpose,
            hint="ask this broker for a challenge and use it for this one request",
        )
    if challenge.used:
        raise ChallengeReplayed(
            "the challenge was used before",
            check="challenge",
            hint="ask for a fresh challenge and collect fresh evidence; a challenge serves once",
        )
    if now >= challenge.expires_at:
        raise ChallengeExpired(
            "the challenge has expired",
            check="challenge",
            got=f"{now - challenge.expires_at} s too late",
            expected="use before its end",
            hint="collect evidence right after asking for the challenge",
        )


def decide(
    request: ReleaseRequest,
    measured: Measured,
    known: Known,
    *,
    registered: Mapping[str, DatasetManifest],
    now: int,
    limits: Limits,
    spent: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> Permit:
    """Decide a release.

    Args:
        request: As received.
        measured: From evidence that verified and appraised for this request.
        known: What the broker knows, at ``now``.
        registered: Verified manifests of the run's datasets that are registered, by dataset id.
        now: The broker's time, seconds since the epoch.
        limits: The broker's bounds.
        spent: Epsilon that runs reserved before, by (owner, dataset name).

    Returns:
        What may be released and until when.

    Raises:
        Refused: The class of the first check that fails.
    """
    admit(request, known.challenge, now=now, limits=limits)
    for objection in objections(
        request, measured, known, registered=registered, now=now, limits=limits, spent=spent
    ):
        raise objection.error
    tally, run = known.tally, known.run
    begins: dict[str, Any] = {}
    if run is None:
        begins = {
            "reserves": measured.privacy,
            "standing": entries_of(tally.approvals, known.uses, reserves_of(measured)),
            "series": newest_read(request, measured, known.chains),
        }
    return Permit(
        datasets=released_of(request, registered),
        approved_by=tally.approved_by,
        not_after=_lease_end(tally, _of_target(request, registered).values(), now, limits),
        checkpoint=run.checkpoint if run is not None else None,
        continues=follows_newest(request, measured, known),
        **begins,
    )


def objections(
    asks: Asks,
    measured: Measured,
    known: Known,
    *,
    registered: Mapping[str, DatasetManifest],
    now: int,
    limits: Limits,
    spent: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> Iterator[Objection]:
    """All that stands against a release, in the order of checks 7 to 14; nothing where it may be.

    ``decide`` raises the first, so nobody who asks ahead is told something else. Arguments as
    ``decide``; the challenge in ``known`` is not looked at.
    """
    tally, run = known.tally, known.run
    checks: list[tuple[Callable[[], object], str | None]] = [
        (partial(_approved, asks, measured, tally, limits), None),
        (partial(_run_fits, asks, run), None),
        (partial(none_withdrawn, known.withdrawn), None),  # (12)
    ]
    for dataset in asks.datasets:
        fits = partial(dataset_fits, dataset, asks, measured, known, registered)
        checks.append((fits, dataset.dataset_id))
    if run is None:
        checks.append((partial(newest_read, asks, measured, known.chains), None))  # (13)
    checks.append((partial(follows_newest, asks, measured, known), None))  # (13)
    checks += [  # (12)
        (partial(manifest.require_retained, now), dataset_id)
        for dataset_id, manifest in _of_target(asks, registered).items()
    ]
    if measured.apart:
        checks.append((lambda: of_one_owner(released_of(asks, registered)), None))
    reserves = () if run is not None else measured.privacy
    checks.append((partial(within_budget, reserves, spent), None))  # (14)
    for check, dataset_id in checks:
        try:
            check()
        except SealtrainError as error:
            yield Objection(error, dataset_id)


def decide_renewal(
    request: RenewalRequest,
    measured: Measured,
    known: Known,
    *,
    lease: LeaseState | None,
    registered: Mapping[str, DatasetManifest],
    now: int,
    limits: Limits,
) -> Permit:
    """Decide a renewal. Arguments and errors as ``decide``; ``lease`` is the one named."""
    admit(request, known.challenge, now=now, limits=limits)
    tally, run = known.tally, known.run
    _approved(request, measured, tally, limits)
    if lease is None or run is None or lease.run_id != request.run_id or not _same(run, request):
        raise LeaseUnknown(  # (11)
            "this broker granted no such lease to this run of this recipe",
            check="lease",
            hint="start a fresh release with resume",
        )
    if lease.superseded or now >= lease.not_after:
        raise LeaseStale(  # (12)
            "the lease was ended by a resume" if lease.superseded else "the lease has ended",
            check="lease",
            got="superseded" if lease.superseded else f"{now - lease.not_after} s too late",
            expected="renew before its end",
            hint="stop using the keys; start a fresh release with resume",
        )
    if lease.instance_id != measured.instance_id:
        raise LeaseUnknown(  # (13)
            "the lease was granted to another guest",
            check="lease instance",
            got=measured.instance_id,
            expected=lease.instance_id,
            hint="start a fresh release with resume in this guest",
        )
    checkpoint = advance_anchor(run.checkpoint, request.checkpoint)
    none_withdrawn(known.withdrawn)  # (15)
    manifests = _of_target(request, registered).values()
    for manifest in manifests:
        manifest.require_retained(now)
    return Permit(
        datasets=(),
        approved_by=tally.approved_by,
        not_after=_lease_end(tally, manifests, now, limits),
        checkpoint=checkpoint,
    )


def _approved(
    request: Asks | RenewalRequest, measured: Measured, tally: Tally, limits: Limits
) -> None:
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
    if measured.recipe_hash != request.recipe_hash:
        raise RecipeChanged(  # (8)
            "the lock inside the measured deployment document is another recipe",
            check="recipe hash",
            got=measured.recipe_hash,
            expected=request.recipe_hash,
            hint="run the lock that was embedded: sealtrain lock, then approve again",
        )
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
    if run is not None and not _same(run, request):
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
            got=", ".join(sorted(one.dataset_id for one in request.data - run.data))
            or "datasets missing",
            expected=f"the {len(run.data)} datasets it began with, under the same roots",
            hint="resume with the sealed data that the run began with, or start another run",
        )


def advance_anchor(anchored: Anchor | None, offered: Anchor | None) -> Anchor | None:
    """The anchor of a run after a request.

    Args:
        anchored: The newest one the broker knows of the run.
        offered: The one the request names.

    Raises:
        CheckpointRefused: It is older than the known one, or another one of the same counter.
    """
    if offered is None or anchored is None:
        return offered or anchored
    if offered.counter < anchored.counter or (
        offered.counter == anchored.counter and offered.digest != anchored.digest
    ):
        raise CheckpointRefused(  # (14)
            "the checkpoint is older than, or differs from, the one anchored for this run",
            check="checkpoint",
            got=f"{offered.counter} {offered.digest}",
            expected=f"{anchored.counter} {anchored.digest}, or a higher counter",
            hint="another guest continued this run; resume from its latest checkpoint",
        )
    return offered


def _lease_end(tally: Tally, manifests: Iterable[DatasetManifest], now: int, limits: Limits) -> int:
    last = [tally.valid_until, *(manifest.last_second for manifest in manifests)]
    # Of approvals and retentions the last good second is named; a lease ends with that second.
    return min([now + limits.lease_seconds, *(one + 1 for one in last if one is not None)])


def _of_target(
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


def _same(run: RunState, request: Asks | RenewalRequest) -> bool:
    return (run.app_id, run.compose_hash, run.recipe_hash) == (
        request.app_id,
        request.compose_hash,
        request.recipe_hash,
    )


def same_consortium(got: str, limits: Limits, what: str) -> None:
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


def in_force(successor: str | None) -> None:
    """See that the consortium was not replaced.

    Args:
        successor: Id of the consortium that the owners put in its place, if they did.

    Raises:
        ConsortiumMismatch: They did.
    """
    if successor is not None:
        raise ConsortiumMismatch(
            "the owners put another consortium in the place of this one",
            check="succession",
            expected=f"requests to a broker of {successor}",
            hint="lock the recipe anew for the successor and have it approved there",
        )


def reserves_of(measured: Measured) -> tuple[Reserve, ...]:
    """What a new run of a recipe reserves, as standing approvals count it."""
    return tuple((one.owner, one.name, one.epsilon) for one in measured.privacy)


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
    for one in asked:
        before = spent.get((one.owner, one.name), 0.0)
        if one.budget is not None and before + one.epsilon > one.budget + _ROUNDING:
            raise BudgetSpent(
                f"the privacy budget of {one.name} has too little left for this run",
                check="privacy budget",
                owner=one.owner,
                got=f"epsilon {one.epsilon:g} on top of {before:g}",
                expected=f"at most {one.budget:g} together",
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
            expected="datasets that nobody withdrew",
            hint="a withdrawal is final: lock a recipe without this data and train anew",
        )
