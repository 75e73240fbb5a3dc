"""The broker as a scheduler sees it: the submissions of one schedule, read and signed.

``client.scheduling`` decides; this module asks the broker and tells it (spec/schedule.md §2). What
is read here is the broker's word: the worst that follows is a due time that is submitted late, or
skipped, or a manifest that the broker refuses to record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import JsonValue, parse_json
from sealtrain.base.clock import Clock, from_rfc3339, system_clock
from sealtrain.base.secret import Random
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import brokers_of_lock
from sealtrain.client.pin import BrokerPin
from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.errors import ClaimTaken, RunEventRefused, SubmissionEnded
from sealtrain.consortium.runevents import FINAL, RunEvent
from sealtrain.consortium.submissions import Submission, sign_control
from sealtrain.errors import Unreachable, UsageError
from sealtrain.owner.readiness import PlannedRun, ask
from sealtrain.owner.scheduling import Submitted
from sealtrain.recipe.duetimes import SKIPPED, read_due_name
from sealtrain.recipe.lockfile import Lock
from sealtrain.release.run_control import ManifestFact, ShownSubmission
from sealtrain.signing.continues import Continues
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer, key_id
from sealtrain.signing.target import Target

OUTPUTS: Final = "guest/out"
"""Where the outputs of a run lie in the runner's folder of its submission."""
_PAGE: Final = 100
_CLAIM_SECONDS: Final = 60
_RUN_STATES: Final = frozenset({"started", "silent", "stopping", *(FINAL - {"skipped"})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What a scheduler submits.

    Attributes:
        lock: Of the recipe, with its schedule.
        target: Its deployment document.
        template: Run ticket of every run; without ``continues``.
        claim_within: Seconds in which a runner may claim a submission.
        runs: The runner's folder, in which a run finds the outputs of the run before; needed where
            the schedule says ``continue: last``.
    """

    lock: Lock
    target: Target
    template: RunTicket
    claim_within: int
    runs: Path | None = None

    def previous(self, submission_id: str) -> str | None:
        """Where the outputs of an earlier run are, for the run that begins with its model."""
        schedule = self.lock.recipe.schedule
        if schedule is None or schedule.continues != "last" or self.runs is None:
            return None
        return str(self.runs / submission_id / OUTPUTS)


def require_first_broker(broker: Path, lock: Lock) -> None:
    """Return if a schedule is kept at this broker: the first of those that its lock names.

    Brokers do not know of each other's submissions, so that schedulers at two of them would each
    submit every due time.

    Raises:
        UsageError: It is kept at another one.
        SealtrainError: As ``client.connection.brokers_of_lock``.
    """
    [named] = brokers_of_lock([broker], lock)
    if named != lock.brokers[0]:
        raise UsageError(
            "the recipe's schedule is kept at another broker",
            check="--broker",
            got=named,
            expected=lock.brokers[0],
            hint="name the broker file of the first broker of the lock",
        )


class BrokerBoard:
    """As ``client.scheduling.Board``."""

    def __init__(
        self,
        client: BrokerClient,
        pin: BrokerPin,
        scheduled: Scheduled,
        signer: Ed25519Signer,
        *,
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        """Begin.

        Args:
            client: Of the broker, with ``signer``.
            pin: What the broker must prove.
            scheduled: What is submitted.
            signer: Key of the scheduler, a submitter and a runner there.
            clock: Time of signing: the broker compares it with its own.
            random: Source of nonces.
        """
        self._client = client
        self._pin = pin
        self._scheduled = scheduled
        self._signer = signer
        self._clock = clock
        self._random = random
        self._instance = random(16).hex()
        self._shown: dict[str, ShownSubmission] = {}

    def list_submitted(self) -> Mapping[str, Submitted]:
        """As ``Board.list_submitted``."""
        self._shown = {run.name: run for run in self._all()}
        return {
            name: Submitted(state=shown.state, skips=self._skips(shown))
            for name, shown in self._shown.items()
        }

    def newest(self) -> Continues | None:
        """As ``Board.newest``."""
        found = self._newest()
        if found is None:
            return None
        _submission_id, newest = found
        [entry] = self._client.ledger_entries(newest.index, 1)
        body: Any = entry["body"]
        number = (body.get("continues") or {}).get("number", 1)
        return Continues(manifest_digest=newest.digest, number=number + 1)

    def _newest(self) -> tuple[str, ManifestFact] | None:
        """Submission and manifest of the newest run of the schedule that has one."""
        recorded = [
            (shown.submission_id, shown.broker.manifest)
            for shown in self._shown.values()
            if shown.broker is not None and shown.broker.manifest is not None
        ]
        return max(recorded, key=lambda pair: pair[1].index, default=None)

    def new_data(self) -> int | None:
        """As ``Board.new_data``."""
        found = self._client.ledger_search(
            compose_hash=self._scheduled.target.compose_hash,
            kind="dataset",
            start=self.find_watched(),
            limit=1,
        )
        return from_rfc3339(str(found.entries[0].entry["at"])) if found.entries else None

    def find_watched(self) -> int:
        """As ``Board.find_watched``."""
        runs = [run.index for run in self._shown.values() if self._skips(run) is None]
        return max(runs, default=-1) + 1

    def objection(self) -> str | None:
        """As ``Board.objection``.

        Raises:
            Unreachable: The broker does not answer, so that nothing is known.
        """
        lock = self._scheduled.lock
        run = PlannedRun(
            lock=lock, target=self._scheduled.target, platform=lock.recipe.hardware.platforms[0]
        )
        found = ask(
            self._client,
            self._pin,
            run,
            progress=lambda _size: nullcontext(lambda _entries: None),
            clock=self._clock,
            random=self._random,
        )
        if not found.obstacles:
            return None
        error = found.obstacles[0].error
        if isinstance(error, Unreachable):
            raise error
        return error.code

    def submit(self, name: str, continues: Continues | None) -> None:
        """As ``Board.submit``."""
        newest = None if continues is None else self._newest()
        previous = None if newest is None else self._scheduled.previous(newest[0])
        told = {"continues": continues, "previous": previous}
        self._post(name, self._scheduled.template.model_copy(update=told))

    def skip(self, name: str, code: str) -> None:
        """As ``Board.skip``."""
        there = self._shown.get(name)
        if there is None:
            template = self._scheduled.template
            ticket = RunTicket(
                version=1,
                role=template.role,
                brokers=template.brokers,
                data=(f"{SKIPPED}{code}",),
            )
            submission_id, head = self._post(name, ticket), None
        else:
            submission_id, head = there.submission_id, there.head
        try:
            head = self._event(submission_id, "claimed", None, head)
            self._event(submission_id, "skipped", code, head)
        except (ClaimTaken, RunEventRefused, SubmissionEnded):
            return  # another scheduler, or a runner, was there first; its entry says so

    def _all(self) -> Iterator[ShownSubmission]:
        target, before = self._scheduled.target, None
        while True:
            page = self._client.submissions(
                compose_hash=target.compose_hash, before=before, limit=_PAGE
            )
            for shown in page:
                mine = (shown.app_id, shown.recipe_hash) == (target.app_id, target.recipe_hash)
                if mine and read_due_name(shown.name, target.recipe_hash) is not None:
                    yield shown
            lowest = min((shown.index for shown in page), default=0)
            if len(page) < _PAGE or (before is not None and lowest >= before):
                return
            before = lowest

    def _skips(self, shown: ShownSubmission) -> str | None:
        """The reason for which a due time is to be skipped, as its signed ticket says."""
        if shown.state in _RUN_STATES:
            return None
        if shown.state == "skipped" and shown.runner is not None:
            return shown.runner.code
        document = self._client.submission(shown.submission_id).envelope
        submission = parse_json(Envelope.from_dict(document.to_dict()).payload)
        ticket: Any = submission["ticket"]
        data = ticket.get("data") or [""]
        return data[0].removeprefix(SKIPPED) if data[0].startswith(SKIPPED) else None

    def _post(self, name: str, ticket: RunTicket) -> str:
        now = self._clock()
        document: dict[str, JsonValue] = parse_json(ticket.to_bytes())
        submission = Submission.of(
            consortium_id=self._scheduled.lock.consortium_id,
            target=self._scheduled.target,
            name=name,
            ticket=document,
            submitter=key_id(self._signer.public),
            signed_at=now,
            not_after=now + self._scheduled.claim_within,
            random=self._random,
        )
        posted = self._client.post_control(Submission, sign_control(submission, self._signer))
        return posted.submission_id

    def _event(self, submission_id: str, event: str, code: str | None, head: str | None) -> str:
        own: dict[str, JsonValue] = {
            "consortium_id": self._scheduled.lock.consortium_id,
            "submission_id": submission_id,
            "event": event,
            "code": code,
            "run_id": None,
            "claim_seconds": _CLAIM_SECONDS if event == "claimed" else None,
            "runner": key_id(self._signer.public),
            "instance": self._instance,
            "previous": head,
        }
        document = RunEvent.write(own, signed_at=self._clock(), random=self._random)
        return self._client.post_control(RunEvent, sign_control(document, self._signer)).digest
