"""The lease of a run while it trains: renewed behind it, and given back before it lapses.

A thread asks the brokers for a later end, with fresh evidence: at half of the lease, and at once
for a checkpoint that was sealed, which is anchored on the way. What they answer decides the state
of the lease (``LeaseStanding``), and the state decides what happens next:

==============  ==================================  =============================================
state           the thread                          training
==============  ==================================  =============================================
``RENEWED``     asks at half of the lease           goes on; where the brokers extend the lease no
                                                    further because approvals end, it stops while
                                                    there is time to seal a checkpoint
``UNANSWERED``  asks again, ever more slowly        stops while there is time to seal a checkpoint
``REFUSED``     does not ask again                  stops at the next step that the recipe logs,
                                                    if the lease is good until then
``BROKEN``      has ended with a bug                raises it
==============  ==================================  =============================================

Time to seal is measured by what the last checkpoint and the slowest of the last steps took.
Training asks after each step whether to stop (``training.checkpoints.lease``). It stops at once and
without a checkpoint where another guest may be going on with the run, or where the lease ended
unforeseen, as when a clock jumps.

From then on the keys are not used. Were a step to last beyond the end of the lease, the keys
themselves refuse (``guest.lease``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn, Self

from sealtrain.client.errors import BrokerUnreachable
from sealtrain.errors import LeaseStale, RunMismatch, SealtrainError, SignatureInvalid
from sealtrain.guest.errors import RunStopped
from sealtrain.release.errors import LeaseUnknown
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.errors import ProofInvalid

if TYPE_CHECKING:
    from sealtrain.guest.lease import RunLease
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef

Renew = Callable[[tuple[int, str] | None], None]
"""Asks for a later end, anchoring (counter, digest) of a checkpoint on the way."""

_RESUME_HINT: Final = "once the keys are released again: sealtrain resume"
_ALTERED: Final = (SignatureInvalid, ProofInvalid)
"""Of an answer: it was changed on the way, so no broker decided that."""
_SUPERSEDED: Final = (CheckpointRefused, LeaseStale, LeaseUnknown, RunMismatch)
"""Another guest may be going on with the run, and a checkpoint more would stand in its way."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_LEAVING_SECONDS: Final = 2.0
_LEAST_WAIT: Final = 0.25
_UNSURE_SECONDS: Final = 2.0
_NEVER: Final = 3600.0


class State(Enum):
    """What came of the last question for a later end."""

    RENEWED = "renewed"
    UNANSWERED = "unanswered"
    REFUSED = "refused"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """The state of a lease, and why it is in it.

    Attributes:
        state: ``RENEWED`` before the first question, too.
        reason: What kept the lease from being renewed; ``None`` where nothing did.
        ending: The brokers extend the lease, but no longer by as much as has passed.
        bug: What the thread ended with.
    """

    state: State = State.RENEWED
    reason: SealtrainError | None = None
    ending: bool = False
    bug: Exception | None = None

    @property
    def settled(self) -> bool:
        """No answer changes the state any more."""
        return self.state in (State.REFUSED, State.BROKEN)

    def after_renewal(self, *, ending: bool | None) -> LeaseStanding:
        """After the brokers extended the lease.

        Args:
            ending: As the attribute; ``None`` where too little time passed to tell.
        """
        if self.settled:
            return self
        return LeaseStanding(ending=self.ending if ending is None else ending)

    def after_failure(self, failure: SealtrainError) -> LeaseStanding:
        """After a question that did not extend the lease."""
        if self.settled:
            return self
        state = State.UNANSWERED if _is_undecided(failure) else State.REFUSED
        return replace(self, state=state, reason=failure)

    def after_bug(self, bug: Exception) -> LeaseStanding:
        """After the thread ended, which it does not do by design."""
        return replace(self, state=State.BROKEN, bug=bug)

    @property
    def why_stopped(self) -> str:
        """The beginning of the sentence that a run ends with which stopped in this state."""
        if self.state is State.REFUSED:
            return "the lease on the keys is not renewed"
        if self.state is State.RENEWED and self.ending:
            return "the lease on the keys ends and is made no longer"
        return "no broker renewed the lease on the keys in time"


class Follower:
    """What ranks but the first have for a lease keeper: rank 0 asks it, and ends the lease."""

    anchored = 0

    def must_stop(self, step: int, *, ahead: int, span: int, sealing: float | None) -> bool:
        """Never asked: rank 0's answer is for all."""
        raise AssertionError(f"rank 0 keeps the lease, asked at {step}")

    def end_training(self) -> NoReturn:
        """End with the others; rank 0 says why."""
        raise LeaseStale("rank 0 stopped for the sake of the lease", check="lease")


class LeaseKeeper:
    """Keeps one lease; as a context manager it renews in a thread of its own.

    Attributes:
        anchored: Counter of the newest checkpoint that the brokers know, 0 for none.
        lapse: What the run ends with, once training stopped for the sake of the lease.
        given_back: The run has closed and ended its lease: this is no reason for what comes later.
    """

    def __init__(self, lease: RunLease, renew: Renew) -> None:
        """Start nothing yet.

        Args:
            lease: What ``renew`` extends.
            renew: Raises what kept the lease from being renewed.
        """
        self._lease = lease
        self._renew = renew
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = self._woken = False
        self._told_to_end: SealtrainError | None = None
        self._next_at = self._renewed_at = lease.moment()
        self._pause = _FIRST_PAUSE
        self._pending: CheckpointRef | None = None
        self._newest = 0
        self._standing = LeaseStanding()
        self._step = 0
        self._stepped_at: float | None = None
        self._slowest = 0.0
        self.anchored = 0
        self.lapse: SealtrainError | None = None
        self.given_back = False

    def __enter__(self) -> Self:
        """Begin to renew. After ``lockdown.restrict``, so that the thread is confined, too."""
        self.begin()
        self._thread = threading.Thread(target=self._tend_all, name="lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing; a question in flight ends with its own limit of time, and unheard."""
        with self._changed:
            self._over = True
            self._wake()
        if self._thread is not None:
            self._thread.join(_LEAVING_SECONDS)

    def begin(self) -> None:
        """Set when to ask first: at half of the lease, or at once for a checkpoint that waits."""
        if self._pending is None:
            self._next_at = self._half()

    def goes_on_from(self, ref: CheckpointRef | None, *, anchored: int) -> None:
        """The run continues from one checkpoint, which the brokers may not know yet.

        Args:
            ref: The checkpoint, ``None`` to begin again.
            anchored: Counter of the newest that they know, 0 for none.
        """
        self.anchored = anchored
        if ref is None:
            return
        self._newest = ref.counter
        if ref.counter > anchored:
            self.anchor_checkpoint(ref)

    def anchor_checkpoint(self, ref: CheckpointRef, *, wait: bool = True) -> None:
        """Have a complete checkpoint anchored; wait for it while the brokers answer.

        So the anchor is never more than one checkpoint behind, unless they do not answer.

        Args:
            wait: Otherwise it is anchored behind what the caller does next.
        """
        with self._changed:
            self._pending, self._newest = ref, ref.counter
            if self._standing.state is not State.RENEWED:
                return
            self._next_at = self._lease.moment()
            self._wake()
            if self._thread is not None and wait:
                self._changed.wait_for(
                    lambda: (
                        self.anchored >= ref.counter
                        or self._standing.state is not State.RENEWED
                        or self._over
                    ),
                    max(0.0, self._lease.seconds_left() / 4),
                )

    def settle(self) -> None:
        """Wait until the newest checkpoint is anchored.

        Raises:
            SealtrainError: It is refused, or the lease ends before a broker answered.
        """
        with self._changed:
            while self._pending is not None:
                self._raise_bug()
                if self._standing.state is State.REFUSED or self._lease.seconds_left() <= 0:
                    self._stop()
                self._changed.wait(max(0.01, min(1.0, self._lease.seconds_left())))
        self._lease.require()

    @property
    def refused(self) -> SealtrainError | None:
        """What the brokers refused to renew the lease with; ``None`` as long as they did not."""
        return self._standing.reason if self._standing.state is State.REFUSED else None

    @property
    def unheard(self) -> SealtrainError | None:
        """Why no broker renews the lease, once it is short; ``None`` before.

        A checkpoint that another guest seals still fits into it.
        """
        with self._changed:
            short = self._standing.state is State.UNANSWERED and self._short(1, None)
            return self._standing.reason if short else None

    def end_soon(self, why: SealtrainError | None = None) -> None:
        """Have training stop after its step, with a checkpoint. A signal handler may call it.

        Args:
            why: What the run ends with; ``RunStopped`` when ``None``.
        """
        stopped = RunStopped("the process was told to end", check="signal")
        self._told_to_end = stopped if why is None else why

    def must_stop(self, step: int, *, ahead: int, span: int, sealing: float | None) -> bool:
        """As ``training.checkpoints.lease.LeaseKeeping``."""
        with self._changed:
            self._measure(step)
            self._raise_bug()
            steps = span if ahead == 0 else 1
            if self._standing.state is not State.REFUSED and self._short(steps, sealing):
                self._ask_now(sealing)
                self._raise_bug()
            now = self._standing
            if self._lease.seconds_left() <= 0:
                self._stop()
            if now.state is State.REFUSED and isinstance(now.reason, _SUPERSEDED):
                self._stop()
            if self._told_to_end is not None:
                return True
            if now.state is State.REFUSED:
                return ahead == 0 or self._short(ahead, sealing)
            # A lease that is short, but extended whenever it is asked for, is no reason to stop.
            ends = now.state is State.UNANSWERED or now.ending
            return ends and self._short(steps, sealing)

    def end_training(self) -> NoReturn:
        """As ``training.checkpoints.lease.LeaseKeeping``. No key is used afterwards."""
        with self._changed:
            if self._thread is not None:  # the last checkpoint is worth an anchor
                self._changed.wait_for(
                    lambda: self._pending is None or self._standing.state is not State.RENEWED,
                    max(0.0, min(_LEAVING_SECONDS, self._lease.seconds_left())),
                )
            self._stop()

    def tend(self) -> float:
        """Renew, if it is time to; returns in how many seconds it will be again."""
        with self._changed:
            wait = self._next_at - self._lease.moment()
            if self._over or self._standing.settled or self._lease.seconds_left() <= 0:
                return _NEVER
            if wait > 0:
                return wait
            pending = self._pending
            end = self._end()
        failure: SealtrainError | None = None
        try:
            self._renew(None if pending is None else (pending.counter, pending.digest))
        except SealtrainError as error:
            failure = error
        with self._changed:
            if failure is None:
                self._note_renewal(pending, end)
            else:
                self._note_failure(failure)
            self._changed.notify_all()
            return self._next_at - self._lease.moment()

    def _note_failure(self, failure: SealtrainError) -> None:
        self._standing = self._standing.after_failure(failure)
        if self._standing.state is State.UNANSWERED:
            # Ever more slowly, but never so that the rest of the lease passes in silence.
            pause = min(self._pause, max(_FIRST_PAUSE / 4, self._lease.seconds_left() / 4))
            self._next_at = self._lease.moment() + pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _note_renewal(self, pending: CheckpointRef | None, end: float) -> None:
        """After a question that anchored ``pending`` and extended a lease that ended at ``end``."""
        passed = self._lease.moment() - self._renewed_at
        ending = None
        if passed > _UNSURE_SECONDS:  # brokers count whole seconds
            ending = self._end() - end < passed - _UNSURE_SECONDS
        self._standing = self._standing.after_renewal(ending=ending)
        self._pause = _FIRST_PAUSE
        self._next_at, self._renewed_at = self._half(), self._lease.moment()
        if pending is not None:
            self.anchored = pending.counter
        if self._pending is pending:
            self._pending = None
        else:  # another one was sealed meanwhile
            self._next_at = self._lease.moment()

    def _half(self) -> float:
        wait = max(_LEAST_WAIT, self._lease.seconds_left() - self._lease.seconds / 2)
        return self._lease.moment() + wait

    def _end(self) -> float:
        return self._lease.moment() + self._lease.seconds_left()

    def _tend_all(self) -> None:
        while not self._over:
            try:
                wait = self.tend()
            except Exception as bug:  # training raises it: it must not go on unnoticed
                with self._changed:
                    self._standing, self._over = self._standing.after_bug(bug), True
                    self._changed.notify_all()
                return
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._over, max(0.0, wait))
                self._woken = False

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify_all()

    def _measure(self, step: int) -> None:
        now = self._lease.moment()
        if self._stepped_at is not None:
            self._slowest = max(now - self._stepped_at, 0.9 * self._slowest)
        self._stepped_at, self._step = now, step

    def _short(self, steps: int, sealing: float | None) -> bool:
        """Whether so many steps and a checkpoint after them may not fit into the lease."""
        whole = self._lease.seconds
        # Twice what it took last; of what was never measured, a tenth of the lease is assumed.
        seal = whole / 10 if sealing is None else min(2 * sealing, whole / 2)
        spare = min(5.0, whole / 20)
        return self._lease.seconds_left() < seal + spare + steps * self._slowest

    def _ask_now(self, sealing: float | None) -> None:
        """Ask now, and wait for the answer as long as a checkpoint can still be sealed after it."""
        if self._standing.state is State.UNANSWERED or self._thread is None:
            return
        asked = self._lease.moment()
        if asked - self._renewed_at < self._lease.seconds / 10:
            return  # this is as long as leases are
        self._next_at = asked
        self._wake()
        while self._renewed_at < asked and not self._short(0, sealing):
            if self._standing.state is not State.RENEWED:
                return
            self._changed.wait(0.05)
        if self._renewed_at < asked:
            silence = BrokerUnreachable(
                "no answer yet", check="broker", got="no answer", hint=_RESUME_HINT
            )
            self._standing = self._standing.after_failure(silence)

    def require(self) -> None:
        """Return while the keys may be used and no broker has refused to go on lending them.

        For work that is not counted in steps; a refusal ends the lease at once.

        Raises:
            SealtrainError: The refusal, or ``LeaseStale``.
        """
        with self._changed:
            self._raise_bug()
            if self._standing.state is State.REFUSED and self._standing.reason is not None:
                self._lease.end()
                raise self._standing.reason
        self._lease.require()

    def explain_end(self, error: SealtrainError) -> SealtrainError:
        """What a run ends with that ended with ``error``: the lapse, if that is why."""
        if self.given_back or (self.lapse is None and self._lease.seconds_left() > 0):
            return error
        if self.lapse is None:
            self.lapse = self._end_lease()
        return self.lapse

    def _stop(self) -> NoReturn:
        self.lapse = self._end_lease()
        raise self.lapse

    def _end_lease(self) -> SealtrainError:
        """Use no key any more; returns the error that says why."""
        reason, why = self._standing.reason, self._standing.why_stopped
        # An answer that is awaited while the lease lives is not why a run stops that was told to.
        waits = self._standing.state is State.UNANSWERED and self._lease.seconds_left() > 0
        if self._told_to_end is not None and waits:
            reason = None
        self._lease.end()
        kept = f"checkpoint {self._newest} is sealed" if self._newest else "there is no checkpoint"
        given: SealtrainError = LeaseStale("", check="lease") if reason is None else reason
        if self._told_to_end is not None and reason is None:
            why, given = self._told_to_end.message, self._told_to_end
        return given.with_message(
            f"{why}: training stopped after step {self._step}, {kept}",
            hint=_RESUME_HINT if reason is None or _may_pass(reason) else None,
        )

    def _raise_bug(self) -> None:
        if self._standing.bug is not None:
            raise self._standing.bug


def _is_undecided(failure: SealtrainError) -> bool:
    """No broker decided about the run: no answer, or one that came altered, too late, too often."""
    return failure.retry == "again" or isinstance(failure, _ALTERED)


def _may_pass(reason: SealtrainError) -> bool:
    """Whether the same run may get its keys again later."""
    passing = reason.retry != "never" or _is_undecided(reason)
    return passing and not isinstance(reason, _SUPERSEDED)
