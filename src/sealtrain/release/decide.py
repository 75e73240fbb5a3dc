"""May this guest have the keys? Pure: no clock, no database, no network (spec/key-release.md).

The numbers are those of the specification, §4.2. ``admit`` makes checks 1 to 4; the appraisal of
the evidence (``attest``) 5 and 6, and 7 a first time; ``release.checks`` has 7 to 14; 15, that
stanzas open, is ``service.keyring``, the first place that touches a key. The first check that fails
raises, and nothing is returned then.

Renewal shares 1-10, then 11-15 of §5. ``admit`` is 1-4, ``decide`` and ``decide_renewal`` are 1-4
again and the rest, so a caller that forgets ``admit`` still refuses. ``objections`` gives all that
stands against a release from check 7 on, to a caller that wants to know before a guest asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sealtrain.consortium.approvals import ApprovalTally
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.receipts import Anchor
from sealtrain.consortium.standing_approval import Reserve, entries_of
from sealtrain.errors import LeaseStale
from sealtrain.release.checks import (
    approvals_suffice,
    lock_fits,
    none_withdrawn,
    objections,
    of_target,
    same_consortium,
    same_measurements,
    same_recipe,
    same_run,
)
from sealtrain.release.data_fits import list_released, newest_read
from sealtrain.release.errors import (
    ChallengeExpired,
    ChallengeReplayed,
    ChallengeUnknown,
    LeaseUnknown,
)
from sealtrain.release.facts import (
    ChallengeState,
    DecisionLimits,
    Known,
    LeaseState,
    Measured,
    Permit,
)
from sealtrain.release.messages import ReleaseRequest, RenewalRequest
from sealtrain.release.model_before import follows_newest
from sealtrain.release.request_facts import Asks
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.errors import BrokerMismatch

Request = ReleaseRequest | RenewalRequest


def admit(
    request: Request, challenge: ChallengeState | None, *, now: int, limits: DecisionLimits
) -> None:
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
    limits: DecisionLimits,
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
        datasets=list_released(request, registered),
        approved_by=tally.approved_by,
        not_after=_lease_end(tally, of_target(request, registered).values(), now, limits),
        checkpoint=run.checkpoint if run is not None else None,
        continues=follows_newest(request, measured, known),
        **begins,
    )


def decide_renewal(
    request: RenewalRequest,
    measured: Measured,
    known: Known,
    *,
    lease: LeaseState | None,
    registered: Mapping[str, DatasetManifest],
    now: int,
    limits: DecisionLimits,
) -> Permit:
    """Decide a renewal. Arguments and errors as ``decide``; ``lease`` is the one named."""
    admit(request, known.challenge, now=now, limits=limits)
    tally, run = known.tally, known.run
    _check_approvals(request, measured, tally, limits)
    if lease is None or run is None or lease.run_id != request.run_id or not same_run(run, request):
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
    manifests = of_target(request, registered).values()
    for manifest in manifests:
        manifest.require_retained(now)
    return Permit(
        datasets=(),
        approved_by=tally.approved_by,
        not_after=_lease_end(tally, manifests, now, limits),
        checkpoint=checkpoint,
    )


def _check_approvals(
    request: Asks | RenewalRequest, measured: Measured, tally: ApprovalTally, limits: DecisionLimits
) -> None:
    """Checks 7 to 10, which a renewal shares."""
    same_measurements(request, measured)
    same_recipe(request, measured)
    lock_fits(measured, limits)
    approvals_suffice(request, measured, tally)


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


def _lease_end(
    tally: ApprovalTally, manifests: Iterable[DatasetManifest], now: int, limits: DecisionLimits
) -> int:
    last = [tally.valid_until, *(manifest.last_second for manifest in manifests)]
    # Of approvals and retentions the last good second is named; a lease ends with that second.
    return min([now + limits.lease_seconds, *(moment + 1 for moment in last if moment is not None)])


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
    return tuple((spending.owner, spending.name, spending.epsilon) for spending in measured.privacy)
