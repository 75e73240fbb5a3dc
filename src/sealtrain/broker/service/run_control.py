"""Submissions, run events and stops: records them and shows where each stands.

See ``spec/run-control.md``: the checks of a submission (§3) and of a run event (§4), numbered there
as here. Nothing here opens a key. Refusals are not recorded, because two runners that ask for one
submission refuse each other all day.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeVar

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.broker.service.controllers import ControllerKey
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.store.entry_index import EVERY, SUBJECTS, subject_of
from sealtrain.broker.store.recording import record
from sealtrain.broker.store.submissions import RunFacts
from sealtrain.broker.store.transaction import Transaction
from sealtrain.client.errors import SubmissionConflict, SubmissionUnknown, TicketInvalid
from sealtrain.client.ticket import BROKER_ROLE, RunTicket
from sealtrain.consortium.errors import SubmissionEnded
from sealtrain.consortium.runevents import (
    RunEvent,
    SubmissionState,
    require_following,
    require_stoppable,
)
from sealtrain.consortium.submissions import (
    ControlDocument,
    RunStop,
    Submission,
    verify_control,
)
from sealtrain.errors import DataInvalid, LimitExceeded, RunMismatch
from sealtrain.ledger.ledger import MAX_ENTRY_BYTES
from sealtrain.release.messages import EnvelopeDocument
from sealtrain.release.run_control import (
    BrokerFacts,
    ManifestFact,
    Posted,
    RunnerWord,
    ShownSubmission,
    StopFact,
    SubmissionAnswer,
    SubmissionPage,
)
from sealtrain.signing.dsse import Envelope

MAX_PAGE: Final = 100
OPEN_EACH: Final = 1000
"""Submissions of one submitter that have not ended."""

Control = TypeVar("Control", bound=ControlDocument)


class RunControl:
    """Run control of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def submit(self, document: EnvelopeDocument) -> Posted:
        """Record a submission, once.

        Raises:
            Refused: One of its checks fails.
        """
        envelope = document.envelope()
        found, signer = self._verify(Submission, document)  # 1. and the first half of 2.
        ticket = load_model(RunTicket, found.ticket, TicketInvalid, "run ticket")
        if ticket.role == BROKER_ROLE:
            raise TicketInvalid(
                "no broker is started by a submission", check="role", got=ticket.role
            )
        if ticket.submission_id is not None:
            raise TicketInvalid(
                "the runner writes the submission's id into the ticket, not its submitter",
                check="submission id",
                got=ticket.submission_id,
            )
        with self._parts.store.transaction() as transaction:
            known = transaction.submissions.get(found.submission_id)
            if known is not None:  # 3.
                return self._describe_post(
                    known.submission_id, known.index, known.digest, first=False
                )
            self._may_submit(transaction, found)
            index = self._record(transaction, found, document, signer)
        return self._describe_post(found.submission_id, index, envelope.digest, first=True)

    def report(self, document: EnvelopeDocument) -> Posted:
        """Record a run event, once.

        Raises:
            Refused: One of its checks fails.
        """
        digest = document.envelope().digest
        event, signer = self._verify(RunEvent, document)  # 1. 2.
        with self._parts.store.transaction() as transaction:
            state = self._state(transaction, event.submission_id)  # 3.
            recorded = transaction.submissions.find_recorded(digest)
            if recorded is not None:  # 4.
                return self._describe_post(recorded[0], recorded[1], digest, first=False)
            now = self._now(transaction)
            event.require_recent(now, past=True)  # 5.
            require_following(state, event, now=now)  # 6. 7. 8.
            _require_its_run(transaction, state, event)  # 9.
            index = self._record(transaction, event, document, signer)
        return self._describe_post(event.submission_id, index, digest, first=True)

    def stop(self, document: EnvelopeDocument) -> Posted:
        """Record that a run is to end, once.

        Raises:
            Refused: Not signed by its submitter or an owner, or it has ended.
        """
        digest = document.envelope().digest
        stop, signer = self._verify(RunStop, document)
        with self._parts.store.transaction() as transaction:
            state = self._state(transaction, stop.submission_id)
            recorded = transaction.submissions.find_recorded(digest)
            if recorded is not None:
                return self._describe_post(recorded[0], recorded[1], digest, first=False)
            now = self._now(transaction)
            stop.require_recent(now, past=True)
            require_stoppable(state, stop, owner=signer.owner, now=now)
            index = self._record(transaction, stop, document, signer)
        return self._describe_post(stop.submission_id, index, digest, first=True)

    def newest(
        self,
        *,
        state: Literal["open", "all"],
        name: str | None,
        compose_hash: str | None,
        before: int | None,
        limit: int,
    ) -> SubmissionPage:
        """Submissions, newest first.

        Args:
            state: Only those that have not ended, or all.
            name: Only the one of this name.
            compose_hash: Only those of this document.
            before: Only those whose entry has a lower index.
            limit: At most so many, up to ``MAX_PAGE``.
        """
        with self._parts.store.reading() as transaction:
            now = self._now(transaction)
            if name is not None:
                submission = transaction.submissions.find_by_name(name)
                found = [] if submission is None else [submission]
            else:
                found = transaction.submissions.newest(
                    limit=min(limit, MAX_PAGE),
                    now=now,
                    open_only=state == "open",
                    compose_hash=compose_hash,
                    before=before,
                )
            return SubmissionPage(submissions=tuple(self._list_shown(transaction, found, now)))

    def one(self, submission_id: str) -> SubmissionAnswer:
        """A submission as it was signed, and where it stands.

        Raises:
            SubmissionUnknown: No submission has this name or id.
        """
        with self._parts.store.reading() as transaction:
            state = self._state(transaction, submission_id)
            [shown] = self._list_shown(transaction, [state], self._now(transaction))
        body: Any = self._parts.ledger.entry(state.index)["body"]
        return SubmissionAnswer(
            submission=shown, envelope=EnvelopeDocument.of(Envelope.from_dict(body["envelope"]))
        )

    def search(
        self, named: dict[str, str], *, kind: str | None, start: int, limit: int
    ) -> tuple[list[tuple[int, bytes]], int | None]:
        """Entries by what they name.

        Args:
            named: At most one of ``entry_index.SUBJECTS`` and its value.
            kind: Of the entries.
            start: Least index.
            limit: At most so many, up to ``MAX_PAGE``.

        Returns:
            Index and bytes of each entry, and where to continue; ``None`` after the last.

        Raises:
            DataInvalid: It names several, or neither anything nor a kind.
        """
        if len(named) > 1 or (not named and kind is None):
            raise DataInvalid(
                "a search names one thing, or a kind of entries",
                check="query",
                got=", ".join(sorted(named)) or "nothing",
                expected=f"one of {', '.join(SUBJECTS)}; or kind",
            )
        subject = next((subject_of(*pair) for pair in named.items()), EVERY)
        limit = min(limit, MAX_PAGE)
        with self._parts.store.reading() as transaction:
            indices = transaction.entries.find(subject, kind=kind, start=start, limit=limit + 1)
        found: list[tuple[int, bytes]] = []
        room = MAX_ENTRY_BYTES
        for index in indices[:limit]:
            [data] = self._parts.ledger.page(index, 1)
            room -= len(data)
            if found and room < 0:
                return found, index
            found.append((index, data))
        return found, indices[limit] if len(indices) > limit else None

    def _verify(
        self, cls: type[Control], document: EnvelopeDocument
    ) -> tuple[Control, ControllerKey]:
        role: Literal["submitter", "runner"] = "runner" if cls is RunEvent else "submitter"
        signers = self._parts.controllers
        found = verify_control(
            cls,
            document.envelope(),
            signers.keys(role),
            self._parts.consortium.consortium_id,
        )
        return found, signers.signers(role)[found.signer_id]

    def _may_submit(self, transaction: Transaction, found: Submission) -> None:
        other = transaction.submissions.find_by_name(found.name)
        if other is not None:  # 4.
            raise SubmissionConflict(
                f"another submission has the name {found.name}",
                check="name",
                got=found.submission_id,
                expected=other.submission_id,
                hint="choose another name: one name means one run",
            )
        now = self._now(transaction)
        found.require_recent(now, past=False)  # 5.
        if found.ends < now:
            raise SubmissionEnded(
                "the submission ended before it came", check="not after", got=found.not_after,
                expected=f"{to_rfc3339(now)} or later", hint="sign it again",
            )  # fmt: skip
        transaction.successions.require_none()  # 6.
        waiting = transaction.submissions.open_of(found.submitter, now)
        if waiting >= OPEN_EACH:
            raise LimitExceeded(
                "this submitter has too many submissions that have not ended",
                check="submissions",
                got=waiting,
                expected=f"fewer than {OPEN_EACH}",
                hint="stop some: sealtrain run stop NAME",
            )

    def _state(self, transaction: Transaction, submission_id: str) -> SubmissionState:
        state = transaction.submissions.get(submission_id)
        if state is None:
            raise SubmissionUnknown(
                "the broker's ledger has no such submission",
                check="submission",
                got=submission_id,
                hint="sealtrain run list",
            )
        return state

    def _now(self, transaction: Transaction) -> int:
        """The broker's time; a clock that was set back does not bring an earlier one."""
        return max(self._parts.clock(), transaction.submissions.newest_time())

    def _record(
        self,
        transaction: Transaction,
        found: ControlDocument,
        document: EnvelopeDocument,
        signer: ControllerKey,
    ) -> int:
        envelope = document.envelope()
        body: dict[str, JsonValue] = {
            **found.ledger_fields(),
            "by": signer.name,
            "signing_key": to_base64(signer.key),
            "digest": envelope.digest,
            "envelope": envelope.to_dict(),
        }
        now = self._now(transaction)
        return record(transaction, self._parts.ledger, found.entry_kind, body, now=now)

    def _describe_post(self, submission_id: str, index: int, digest: str, *, first: bool) -> Posted:
        return Posted(
            version=1,
            submission_id=submission_id,
            index=index,
            digest=digest,
            proof=self._parts.ledger.proof(index).to_dict(),
            first=first,
        )

    def _list_shown(
        self, transaction: Transaction, states: Iterable[SubmissionState], now: int
    ) -> list[ShownSubmission]:
        found = list(states)
        runs = {submission.run_id for submission in found if submission.run_id is not None}
        facts = transaction.submissions.facts(runs, now)
        own = ((submission, facts.get(submission.run_id or "")) for submission in found)
        return [
            # A run whose guest named another submission is none of this one.
            self._show(
                submission,
                known if known and known.submission_id == submission.submission_id else None,
                now,
            )
            for submission, known in own
        ]

    def _show(self, state: SubmissionState, facts: RunFacts | None, now: int) -> ShownSubmission:
        return ShownSubmission(
            submission_id=state.submission_id,
            name=state.name,
            **state.target.to_dict(),
            submitter=state.submitter,
            index=state.index,
            submitted_at=to_rfc3339(state.submitted_at),
            not_after=to_rfc3339(state.not_after),
            state=state.state(now),
            head=state.head,
            stop=_stop(state),
            runner=_word(state),
            broker=None if facts is None else self._fact(facts),
        )

    def _fact(self, facts: RunFacts) -> BrokerFacts:
        manifest = None
        if facts.manifest_index is not None and facts.manifest_digest is not None:
            manifest = ManifestFact(index=facts.manifest_index, digest=facts.manifest_digest)
        return BrokerFacts(
            run_id=facts.run_id,
            began_at=to_rfc3339(facts.began_at),
            lease_until=None if facts.lease_until is None else to_rfc3339(facts.lease_until),
            checkpoint=facts.checkpoint,
            failure=self._failure(facts.failure_index),
            manifest=manifest,
        )

    def _failure(self, index: int | None) -> str | None:
        if index is None:
            return None
        body: Any = self._parts.ledger.entry(index)["body"]
        return str(body["code"])


def _stop(state: SubmissionState) -> StopFact | None:
    if state.stop_signer is None or state.stop_index is None or state.stop_at is None:
        return None
    return StopFact(signer=state.stop_signer, at=to_rfc3339(state.stop_at), index=state.stop_index)


def _word(state: SubmissionState) -> RunnerWord | None:
    if (
        state.runner is None
        or state.runner_key is None
        or state.instance is None
        or state.event is None
        or state.event_at is None
        or state.event_index is None
        or state.claim_until is None
    ):
        return None
    return RunnerWord(
        name=state.runner,
        key_id=state.runner_key,
        instance=state.instance,
        event=state.event,
        code=state.code,
        run_id=state.run_id,
        at=to_rfc3339(state.event_at),
        index=state.event_index,
        claim_until=to_rfc3339(state.claim_until),
    )


def _require_its_run(transaction: Transaction, state: SubmissionState, event: RunEvent) -> None:
    """Return if the run that an event names may be the submission's.

    Of a run that keys were released to, its guest said whose it is, and evidence covers that.

    Raises:
        RunMismatch: It is another target's, began before, or is another submission's.
    """
    if event.run_id is None:
        return
    run = transaction.run(event.run_id)
    if run is not None:
        stated = transaction.submission_of(event.run_id)
        if stated != state.submission_id:
            raise RunMismatch(
                "the run did not begin for this submission",
                check="run submission",
                got=stated,
                expected=state.submission_id,
                hint="the guest states the submission of its run ticket when it asks for keys",
            )
        target = (run.app_id, run.compose_hash, run.recipe_hash)
        wanted = tuple(state.target.to_dict().values())
        began = transaction.entries.first(subject_of("run_id", event.run_id), "release")
        if target != wanted or began is None or began < state.index:
            raise RunMismatch(
                "the run is none of this submission: it began before it, or for another document",
                check="run",
                got=event.run_id,
            )
    elif transaction.submissions.is_named_elsewhere(event.run_id, state.submission_id):
        raise RunMismatch("another submission has this run", check="run", got=event.run_id)
