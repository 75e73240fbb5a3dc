"""What a runner signs about a submission, and what may follow what. See ``spec/run-control.md`` §4.

``SubmissionState`` is everything that is recorded of one submission. Broker, audit and clients
judge an event by the same ``after``, which has no clock and no memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.models import ErrorCode, Hex32, Hex64, SkipReason
from sealtrain.consortium.errors import ClaimTaken, RunEventRefused, SignerUnknown, SubmissionEnded
from sealtrain.consortium.submissions import ControlDocument, KeyId, RunStop, Submission
from sealtrain.errors import RunMismatch
from sealtrain.signing.target import Target

MIN_CLAIM_SECONDS: Final = 60
MAX_CLAIM_SECONDS: Final = 3600

Event = Literal["claimed", "started", "completed", "failed", "stopped", "skipped"]
Phase = Literal["waiting", "claimed", "started", "completed", "failed", "stopped", "skipped"]
"""How far the events are, without regard to time."""
State = Literal[
    "waiting",
    "claimed",
    "started",
    "silent",
    "stopping",
    "completed",
    "failed",
    "stopped",
    "skipped",
    "expired",
]
"""How far a submission is at a moment."""
FINAL: Final[frozenset[str]] = frozenset({"completed", "failed", "stopped", "skipped"})
"""Phases and states after which no event comes."""
ENDED: Final = FINAL | {"expired"}
"""States in which nothing of a submission runs, or will."""


class _Fields(NamedTuple):
    """What an event has, and after which phases of the same claim it may come."""

    after: frozenset[str]
    code: bool = False
    run_id: Literal["none", "may", "must"] = "none"


_EVENTS: Final[Mapping[str, _Fields]] = {
    "claimed": _Fields(frozenset({"waiting", "claimed", "started"})),
    "started": _Fields(frozenset({"claimed", "started"}), run_id="may"),
    "completed": _Fields(frozenset({"started"}), run_id="must"),
    "failed": _Fields(frozenset({"claimed", "started"}), code=True, run_id="may"),
    "stopped": _Fields(frozenset({"claimed", "started"}), run_id="may"),
    "skipped": _Fields(frozenset({"claimed"}), code=True),
}


class RunEvent(ControlDocument):
    """The signed document."""

    payload_type = "application/vnd.sealtrain.run-event+json"
    entry_kind = "run-event"
    path = "/v1/run-events"
    what = "run event"
    max_bytes = 8 << 10

    submission_id: Hex32
    event: Event
    code: SkipReason | ErrorCode | None
    run_id: Hex32 | None
    claim_seconds: Annotated[int, Field(ge=MIN_CLAIM_SECONDS, le=MAX_CLAIM_SECONDS)] | None
    """How long a claim lasts from the broker's recording of it."""
    runner: KeyId
    instance: Hex32
    """Of the runner's folder: two runners with one key are two."""
    previous: Hex64 | None
    """Digest of the envelope of the submission's last event."""

    @model_validator(mode="after")
    def _has_its_fields(self) -> Self:
        fields = _EVENTS[self.event]
        if fields.code != (self.code is not None):
            raise ValueError(f"{self.event} has {'a' if fields.code else 'no'} code")
        if self.event != "skipped" and self.code in get_args(SkipReason):
            raise ValueError("only what a scheduler passes over has its reason for a code")
        if (self.event == "claimed") != (self.claim_seconds is not None):
            raise ValueError("claimed, and no other event, has claim_seconds")
        wrong = {"none": self.run_id is not None, "must": self.run_id is None, "may": False}
        if wrong[fields.run_id]:
            raise ValueError(f"{self.event} has {'no' if self.run_id else 'a'} run_id")
        return self

    @property
    def signer_id(self) -> str:
        """As ``ControlDocument.signer_id``."""
        return self.runner

    def ledger_fields(self) -> dict[str, JsonValue]:
        """As ``ControlDocument.ledger_fields``."""
        return {
            "submission_id": self.submission_id,
            "event": self.event,
            "code": self.code,
            "run_id": self.run_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionState:
    """All that is recorded of one submission. Times are seconds since the epoch.

    Attributes:
        submission_id: 32 hex digits.
        name: Of the submission.
        target: The document to start.
        submitter: Name of the submitter, as the entry says.
        submitter_key: Key id of the submitter.
        digest: Of the submission's envelope.
        has_store: Whether another guest can continue the run.
        index: Of the submission's entry.
        submitted_at: Time of that entry.
        not_after: Last second of a first claim.
        phase: How far the events are.
        head: Digest of the last event's envelope; ``None`` before the first.
        runner: Name of the last event's runner.
        runner_key: Its key id.
        instance: Its instance.
        event: The last event that is no claim, or the claim.
        code: Of the last event.
        run_id: Named last.
        run_stated: Whether the present claim named it.
        claim_until: First second at which the claim has ended.
        event_index: Entry of the last event.
        event_at: Time of that entry.
        stop_signer: Name of the signer of the first stop; ``None`` without a stop.
        stop_index: Its entry.
        stop_at: Time of that entry.
    """

    submission_id: str
    name: str
    target: Target
    submitter: str
    submitter_key: str
    digest: str
    has_store: bool
    index: int
    submitted_at: int
    not_after: int
    phase: Phase = "waiting"
    head: str | None = None
    runner: str | None = None
    runner_key: str | None = None
    instance: str | None = None
    event: Event | None = None
    code: str | None = None
    run_id: str | None = None
    run_stated: bool = False
    claim_until: int | None = None
    event_index: int | None = None
    event_at: int | None = None
    stop_signer: str | None = None
    stop_index: int | None = None
    stop_at: int | None = None

    def is_held(self, now: int) -> bool:
        """Whether a runner's claim lasts."""
        held = self.phase in ("claimed", "started")
        return held and self.claim_until is not None and now < self.claim_until

    def is_holder(self, runner: str, instance: str) -> bool:
        """Whether a runner made the last claim, by key id and instance."""
        return (self.runner_key, self.instance) == (runner, instance)

    def is_free(self, now: int, *, runner: str, instance: str) -> bool:
        """Whether a runner may claim it, by key id and instance; one that it holds, too."""
        if self.phase in FINAL:
            return False
        if self.is_held(now):
            return self.is_holder(runner, instance)
        if self.stop_index is not None:
            return False
        if self.phase == "started":
            return self.has_store or self.is_holder(runner, instance)
        return now <= self.not_after

    def state(self, now: int) -> State:
        """How far it is at a moment."""
        if self.phase in FINAL:
            return self.phase
        if self.is_held(now):
            return "stopping" if self.stop_index is not None else self.phase
        if self.stop_index is not None:
            return "stopped"
        if self.phase == "started":
            return "silent"
        return "waiting" if now <= self.not_after else "expired"


def state_submitted(
    document: Submission, *, by: str, digest: str, index: int, at: int
) -> SubmissionState:
    """State after a submission was recorded.

    Args:
        by: Name of the submitter.
        digest: Of its envelope.
        index: Of its entry.
        at: Time of the entry, seconds since the epoch.
    """
    return SubmissionState(
        submission_id=document.submission_id,
        name=document.name,
        target=document.target,
        submitter=by,
        submitter_key=document.submitter,
        digest=digest,
        has_store=document.has_store,
        index=index,
        submitted_at=at,
        not_after=document.ends,
    )


def after(
    state: SubmissionState, event: RunEvent, *, by: str, digest: str, index: int, at: int
) -> SubmissionState:
    """State after one more event that may follow; arguments as ``apply_event``.

    Raises:
        SubmissionEnded: The submission has ended.
        ClaimTaken: Another runner holds it, or must.
        RunEventRefused: It does not continue the last event.
        RunMismatch: This claim named another run.
    """
    require_following(state, event, now=at)
    return apply_event(state, event, by=by, digest=digest, index=index, at=at)


def require_following(state: SubmissionState, event: RunEvent, *, now: int) -> None:
    """Return if an event may come next. Errors as ``after``.

    Args:
        state: Before it.
        now: The broker's time, seconds since the epoch.
    """
    _require_open(state, event, now)
    _require_claim(state, event, now)
    if event.previous != state.head:
        raise RunEventRefused(
            "the run event does not continue the last one",
            check="previous event",
            got=event.previous,
            expected=state.head,
            hint="ask for the submission again",
        )
    if state.phase not in _EVENTS[event.event].after:
        raise RunEventRefused(
            f"{event.event} does not follow {state.phase}",
            check="event",
            got=event.event,
            expected=f"after {' or '.join(sorted(_EVENTS[event.event].after))}",
        )
    if state.run_stated and event.run_id not in (None, state.run_id):
        raise RunMismatch(
            "this claim named another run", check="run", got=event.run_id, expected=state.run_id
        )


def apply_event(
    state: SubmissionState, event: RunEvent, *, by: str, digest: str, index: int, at: int
) -> SubmissionState:
    """State after an event that was recorded.

    Args:
        state: Before it.
        by: Name of the runner.
        digest: Of its envelope.
        index: Of its entry.
        at: Time of the entry, seconds since the epoch.
    """
    phase: Phase = event.event
    until, stated = state.claim_until, state.run_stated
    if event.claim_seconds is not None:
        until = at + event.claim_seconds
        stated = stated and state.is_holder(event.runner, event.instance)
        phase = "started" if state.phase == "started" else "claimed"
    return replace(
        state,
        phase=phase,
        head=digest,
        runner=by,
        runner_key=event.runner,
        instance=event.instance,
        event=event.event,
        code=event.code,
        run_id=event.run_id or state.run_id,
        run_stated=stated or event.run_id is not None,
        claim_until=until,
        event_index=index,
        event_at=at,
    )


def require_stoppable(state: SubmissionState, stop: RunStop, *, owner: bool, now: int) -> None:
    """Return if a stop may be recorded.

    Args:
        state: Before it.
        stop: The document.
        owner: Whether an owner of the consortium signed it.
        now: The broker's time, seconds since the epoch.

    Raises:
        SignerUnknown: Neither the submitter nor an owner signed it.
        SubmissionEnded: The submission has ended.
    """
    if not owner and stop.signer != state.submitter_key:
        raise SignerUnknown(
            "a submission is stopped by its submitter or by an owner",
            check="signer",
            got=stop.signer,
            expected=state.submitter,
        )
    if state.stop_index is None and state.state(now) in ENDED:
        raise _refuse_ended(state, now)


def stop_applied(state: SubmissionState, *, by: str, index: int, at: int) -> SubmissionState:
    """State after a stop was recorded; a second one changes nothing.

    Args:
        state: Before it.
        by: Name of its signer.
        index: Of its entry.
        at: Time of the entry, seconds since the epoch.
    """
    if state.stop_index is not None:
        return state
    return replace(state, stop_signer=by, stop_index=index, stop_at=at)


def _require_open(state: SubmissionState, event: RunEvent, at: int) -> None:
    """Check 6."""
    now = state.state(at)
    late = now == "expired" and event.event == "claimed"
    if now in FINAL or late:
        raise _refuse_ended(state, at)


def _require_claim(state: SubmissionState, event: RunEvent, at: int) -> None:
    """Check 7."""
    if event.event == "claimed":
        allowed = state.is_free(at, runner=event.runner, instance=event.instance)
    else:
        allowed = state.is_holder(event.runner, event.instance) and state.is_held(at)
    if not allowed:
        raise ClaimTaken(
            "this runner does not hold the submission"
            if event.event != "claimed"
            else "another runner holds the submission, or its guest has the run",
            check="claim",
            got=event.instance,
            expected=state.instance,
            hint="stop the guest" if event.event != "claimed" else "wait until the claim ends",
        )


def _refuse_ended(state: SubmissionState, at: int) -> SubmissionEnded:
    now = state.state(at)
    until = f", until {to_rfc3339(state.not_after)}" if now == "expired" else ""
    return SubmissionEnded(
        f"the submission {state.name} has ended: {now}{until}",
        check="submission",
        got=now,
        hint="submit it again under another name",
    )
