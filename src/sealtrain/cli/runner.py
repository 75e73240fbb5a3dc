"""A runner: takes submissions from a broker and starts their guests (spec/run-control.md §8).

1. It claims one free submission of a document that it was given, and reads what was submitted from
   the proven ledger entry.
2. A ticket that names a place which the operator did not list is skipped; nothing was started.
3. Each guest has a folder named by its submission, and a process that cannot outlive the runner.
4. The claim is renewed at half of it. Where that fails for too long, or another runner has it, the
   guest is stopped: it seals a checkpoint.
5. What is to be reported is in the folder first, so that a runner that starts again reports it.

A runner can cause delay and nothing worse. It holds its own key and no other.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.cli.programs import SideProgram, Start, start_tied
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import RunTicket, parse_ticket
from sealtrain.consortium.errors import ClaimTaken, RunEventRefused, SubmissionEnded
from sealtrain.consortium.runevents import FINAL, Event, RunEvent
from sealtrain.errors import (
    ERROR_CODES,
    AlreadyExists,
    GuestLost,
    RunMismatch,
    SealtrainError,
    StorageFailed,
)
from sealtrain.owner.runs import RunDesk
from sealtrain.owner.ticket_places import Places
from sealtrain.release.run_control import ShownSubmission
from sealtrain.storage.connect import open_folder
from sealtrain.storage.outputs import OutputStore

_STOPPED: Final = 143
_ASK_SECONDS: Final = 5.0
"""Between two questions about a running submission."""
_TAKE_SECONDS: Final = 2.0
"""Between two questions for free submissions."""
_NOT_NOW_SECONDS: Final = 30.0
"""Before a submission that another runner holds is tried again."""
_MAX_STATUS: Final = 64 << 10
_PAGES: Final = 20
_POSTS: Final = 5
_REPORT, _TICKET, _GUEST = "report.json", "ticket.json", "guest"
_STATUS: Final = ("status.json", "run-data/status.json")
"""Where a guest without an image, and one with it, say how far the run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How a runner works.

    Attributes:
        folder: Of the runner; one runner at a time has it.
        documents: Compose hash → deployment document that it may start.
        places: What tickets may name.
        start: Words of the command that starts a guest, after ``sealtrain``; ``--deployment``,
            ``--folder`` and ``--ticket`` follow.
        program: Starts it; the operator's own program in its place.
        claim_seconds: Of each claim, 60 to 3600.
        at_once: Guests that run at a time.
        options: Words after the three.
    """

    folder: Path
    documents: Mapping[str, Path]
    places: Places
    start: Sequence[str] = ("deploy", "run")
    options: Sequence[str] = ()
    program: Start = start_tied
    claim_seconds: int = 900
    at_once: int = 1


@dataclass(kw_only=True)
class _HeldSubmission:
    """A submission that this runner holds."""

    submission_id: str
    folder: Path
    ticket: RunTicket
    guest: SideProgram
    renew_at: float
    ends_at: float
    ask_at: float = 0.0
    run_id: str | None = None
    told: bool = False
    stopping: bool = False
    lost: bool = False
    report: dict[str, Any] = field(default_factory=dict)


class Runner:
    """Takes submissions and runs them, one turn after the other. For one thread.

    Args:
        desk: Of the broker, with the runner's key.
        settings: How it works.
        instance: Of its folder (``runner_folder``).
        monotonic: Seconds that never go back.
        say: Called with what an operator wants to know.
    """

    def __init__(
        self,
        desk: RunDesk,
        settings: RunnerSettings,
        instance: str,
        *,
        monotonic: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._desk = desk
        self._settings = settings
        self._instance = instance
        self._monotonic = monotonic
        self._say = say
        self._held: dict[str, _HeldSubmission] = {}
        self._not_before: dict[str, float] = {}
        self._take_at = 0.0

    @property
    def holds(self) -> tuple[str, ...]:
        """Ids of the submissions whose guests run."""
        return tuple(self._held)

    def turn(self) -> None:
        """Attend to every guest, then take what is free. Call it again after a moment."""
        for held in list(self._held.values()):
            self._guard(held.submission_id, partial(self._attend, held))
        if len(self._held) < self._settings.at_once and self._monotonic() >= self._take_at:
            self._take_at = self._monotonic() + _TAKE_SECONDS
            self._guard("", self._take)

    def end(self) -> None:
        """Stop every guest: each seals a checkpoint. The claims end by themselves."""
        for held in self._held.values():
            held.guest.end()
        self._held.clear()

    def _guard(self, submission_id: str, act: Callable[[], None]) -> None:
        """One submission's fault keeps no other from running."""
        try:
            act()
        except SealtrainError as error:
            self._say(f"{submission_id} {error.label} [{error.code}]: {error.message}".lstrip())
        except OSError as error:
            self._say(f"{submission_id} [storage-failed]: {error.strerror}".lstrip())

    # Taking

    def _take(self) -> None:
        for shown in self._candidates():
            if len(self._held) >= self._settings.at_once:
                return
            self._guard(shown.submission_id, partial(self._try, shown))

    def _candidates(self) -> Iterator[ShownSubmission]:
        """Submissions that may be free, oldest first."""
        found: list[ShownSubmission] = []
        for compose_hash in self._settings.documents:
            before: int | None = None
            for _ in range(_PAGES):
                page = self._desk.client.submissions(
                    open_only=True, compose_hash=compose_hash, before=before
                )
                found += page
                if len(page) < 100:
                    break
                before = page[-1].index
        now = self._monotonic()
        for shown in sorted(found, key=lambda submission: submission.index):
            ours = shown.runner is not None and shown.runner.instance == self._instance
            free = shown.state in ("waiting", "silent") or (ours and shown.state != "completed")
            waits = self._not_before.get(shown.submission_id, now) > now
            if free and not waits and shown.submission_id not in self._held:
                yield shown

    def _try(self, shown: ShownSubmission) -> None:
        folder = self._settings.folder / shown.submission_id
        pending = _read(folder / _REPORT)
        sent_at = self._monotonic()
        try:
            self._report(shown.submission_id, "claimed")
        except (ClaimTaken, SubmissionEnded, RunEventRefused):
            self._not_before[shown.submission_id] = self._monotonic() + _NOT_NOW_SECONDS
            return
        if pending is not None:  # the guest ended before this runner did
            self._final(shown.submission_id, folder, pending)
            return
        if shown.stop is not None:
            self._leave(folder, "stopped")
            self._final(shown.submission_id, folder, _read(folder / _REPORT) or {})
            return
        try:
            ticket = self._prepare(shown, folder)
        except TicketInvalid as error:
            self._say(f"{shown.submission_id} skipped [{error.code}]: {error.message}")
            self._leave(folder, "skipped", code=error.code)
            self._final(shown.submission_id, folder, _read(folder / _REPORT) or {})
            return
        except (OSError, StorageFailed) as error:
            self._say(f"{shown.submission_id} failed [storage-failed]: {error}")
            self._report(shown.submission_id, "failed", code=StorageFailed.code)
            return
        self._start(shown, folder, ticket, sent_at)

    def _prepare(self, shown: ShownSubmission, folder: Path) -> RunTicket:
        """What was submitted, in a folder of its own.

        Raises:
            TicketInvalid: The ticket names a place that the operator did not list.
        """
        submitted = self._desk.submission(shown)
        # Outside the submitted ticket: the id follows from that one's digest.
        named = {"submission_id": submitted.submission_id}
        data = canonical_json({**submitted.ticket, **named})
        ticket = parse_ticket(data)
        self._settings.places.require(ticket)
        folder.mkdir(mode=0o700, exist_ok=True)
        atomic_write(folder / _TICKET, data, overwrite=True)
        return ticket

    def _start(
        self, shown: ShownSubmission, folder: Path, ticket: RunTicket, sent_at: float
    ) -> None:
        settings = self._settings
        words: tuple[str | Path, ...] = (
            *settings.start,
            "--deployment", settings.documents[shown.compose_hash].absolute(),
            "--folder", (folder / _GUEST).absolute(),
            "--ticket", (folder / _TICKET).absolute(),
            *settings.options,
        )  # fmt: skip
        number = sum(1 for _ in folder.glob("guest-*.log"))
        guest = SideProgram(f"guest-{number}", folder, words, answers=False, start=settings.program)
        held = _HeldSubmission(
            submission_id=shown.submission_id,
            folder=folder,
            ticket=ticket,
            guest=guest,
            renew_at=sent_at + settings.claim_seconds / 2,
            ends_at=sent_at + settings.claim_seconds,
            run_id=None,
        )
        self._held[shown.submission_id] = held
        self._say(f"{shown.submission_id} started {shown.name}: {guest.log}")
        self._tell_started(held)

    # Attending

    def _tell_started(self, held: _HeldSubmission) -> None:
        """Say that the guest runs, and once more when its run has an id."""
        run_id = self._run_id(held, stored=False) if held.run_id is None else None
        if held.told and run_id is None:
            return
        self._report(held.submission_id, "started", run_id=run_id)
        held.told, held.run_id = True, run_id

    def _attend(self, held: _HeldSubmission) -> None:
        if held.guest.gone:
            self._record_end(held)
            return
        now = self._monotonic()
        if now >= held.ends_at - self._settings.claim_seconds / 20:
            self._stop(held, "its claim ends")
            held.lost = True
        if now >= held.ask_at:
            held.ask_at = now + _ASK_SECONDS
            shown = self._desk.client.submission(held.submission_id).submission
            if shown.stop is not None:
                self._desk.prove_entry(shown.stop.index, "run-stop")
                self._stop(held, f"{shown.stop.signer} stops it")
            if held.run_id is None:
                self._tell_started(held)
        if now >= held.renew_at and not held.lost:
            self._renew(held)

    def _renew(self, held: _HeldSubmission) -> None:
        sent_at = self._monotonic()
        try:
            self._report(held.submission_id, "claimed")
        except (ClaimTaken, SubmissionEnded) as error:
            self._stop(held, error.code)
            held.lost = True
            return
        held.renew_at = sent_at + self._settings.claim_seconds / 2
        held.ends_at = sent_at + self._settings.claim_seconds

    def _stop(self, held: _HeldSubmission, why: str) -> None:
        if not held.stopping:
            self._say(f"{held.submission_id} stops: {why}")
            held.guest.send(signal.SIGTERM)
            held.stopping = True

    def _record_end(self, held: _HeldSubmission) -> None:
        """Write down how a guest ended, then report it; where that fails, the next turn does."""
        if not held.report:
            status = held.guest.end()
            self._say(f"{held.submission_id} ended with {status}")
            if held.lost:
                del self._held[held.submission_id]
                return
            held.report = self._outcome(held, status)
            self._leave(held.folder, **held.report)
        with suppress(ClaimTaken, SubmissionEnded):
            self._final(held.submission_id, held.folder, held.report)
        del self._held[held.submission_id]

    def _outcome(self, held: _HeldSubmission, status: int) -> dict[str, Any]:
        run_id = held.run_id or self._run_id(held, stored=True)
        if status == 0 and run_id is not None:
            return {"event": "completed", "run_id": run_id}
        if status in (_STOPPED, -signal.SIGTERM) or (held.stopping and status != 0):
            return {"event": "stopped", "run_id": run_id}
        told = self._status(held.folder).get("code")
        code = told if isinstance(told, str) and told in ERROR_CODES else GuestLost.code
        return {"event": "failed", "code": code, "run_id": run_id}

    def _run_id(self, held: _HeldSubmission, *, stored: bool) -> str | None:
        """Id of the run, as the guest says; or, at its end, as the store's index does."""
        found = self._status(held.folder).get("run_id")
        if isinstance(found, str):
            return found
        if not stored or held.ticket.store is None:
            return None
        shown = self._desk.client.submission(held.submission_id).submission
        try:
            index = OutputStore(open_folder(held.ticket.store), shown.compose_hash).read()
        except SealtrainError:
            return None
        return None if index is None else index.run_id

    def _status(self, folder: Path) -> dict[str, Any]:
        for place in _STATUS:
            found = _read(folder / _GUEST / place)
            if found is not None:
                return found
        return {}

    # Reporting

    def _leave(
        self, folder: Path, event: str, *, code: str | None = None, run_id: str | None = None
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        told = {"event": event, "code": code, "run_id": run_id}
        atomic_write(folder / _REPORT, canonical_json(told), overwrite=True)

    def _final(self, submission_id: str, folder: Path, told: Mapping[str, Any]) -> None:
        event, more = told["event"], {name: told.get(name) for name in ("code", "run_id")}
        try:
            try:
                self._report(submission_id, event, **more)
            except RunEventRefused:  # that its guest had started was not said yet
                self._report(submission_id, "started")
                self._report(submission_id, event, **more)
        except RunMismatch as error:  # the guest names a run that is none of this submission's
            self._report(submission_id, "failed", code=error.code)
        (folder / _REPORT).unlink(missing_ok=True)

    def _report(
        self,
        submission_id: str,
        event: Event,
        *,
        code: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """Sign an event that continues the last one, and hand it in.

        Raises:
            ClaimTaken: Another runner holds the submission.
            SubmissionEnded: It has ended; not where it has so with this very event.
            RunEventRefused: Its events went on several times meanwhile.
        """
        signer = self._desk.signer
        if signer is None:
            raise AssertionError("a runner has a key")
        for attempt in range(_POSTS):
            shown = self._desk.client.submission(submission_id).submission
            ours = shown.runner is not None and shown.runner.instance == self._instance
            if event in FINAL and ours and shown.runner is not None and shown.runner.event == event:
                return  # an earlier post of it arrived
            document = RunEvent.write(
                {
                    "consortium_id": self._desk.consortium_id,
                    "submission_id": submission_id,
                    "event": event,
                    "code": code,
                    "run_id": run_id,
                    "claim_seconds": self._settings.claim_seconds if event == "claimed" else None,
                    "runner": signer.key_id,
                    "instance": self._instance,
                    "previous": shown.head,
                },
                signed_at=self._desk.clock(),
            )
            try:
                self._desk.post(document)
            except RunEventRefused:
                if attempt + 1 == _POSTS:
                    raise
            else:
                return


@contextmanager
def runner_folder(folder: Path) -> Iterator[str]:
    """Hold a runner's folder; yields its instance, 32 hex digits, the same for its life.

    Raises:
        AlreadyExists: Another runner has it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AlreadyExists(
                f"another runner works in {folder}",
                check="folder",
                hint="give each runner a folder of its own",
            ) from None
        place = folder / "instance"
        if not place.exists():
            atomic_write(place, os.urandom(16).hex().encode())
        yield read_bounded(place, 64).decode().strip()


def _read(path: Path) -> dict[str, Any] | None:
    """A small file of JSON that a guest or this runner wrote; ``None`` where there is none."""
    try:
        found = json.loads(read_bounded(path, _MAX_STATUS))
    except (SealtrainError, ValueError, OSError):
        return None
    return found if isinstance(found, dict) else None
