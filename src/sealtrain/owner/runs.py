"""Submitting runs to a broker and seeing what became of them (spec/run-control.md).

A client decides by what is proven under the key of its broker file: the submission, the run event
that names the run, and the manifest that the broker verified. A runner's word alone completes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import (
    RunNotCompleted,
    RunUnconfirmed,
    SubmissionUnknown,
    TicketInvalid,
    WaitOver,
)
from sealtrain.client.ledger_keys import present_key
from sealtrain.client.pin import BrokerPin, load_pin
from sealtrain.client.ticket import BROKER_ROLE, RunTicket
from sealtrain.consortium.runevents import ENDED
from sealtrain.consortium.submissions import ControlDocument, RunStop, Submission, sign_control
from sealtrain.errors import UsageError
from sealtrain.ledger.ledger import LedgerProof, verify_proof
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import ledger_origin
from sealtrain.release.run_control import Posted, ShownSubmission
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.target import Target

_ID: Final = re.compile(r"[0-9a-f]{32}")
_UNCONFIRMED_SECONDS: Final = 20.0
"""How long a manifest may still come after the runner said that the run completed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a completed run left, as the ledger has it.

    Attributes:
        run_id: Of the run.
        manifest_digest: SHA-256 of its manifest.
        outputs: SHA-256 of each file that the manifest names; ``None`` where they are too many.
    """

    run_id: str
    manifest_digest: str
    outputs: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class RunDesk:
    """Access to run control at one broker.

    Attributes:
        client: Of the broker.
        pin: Its broker file.
        signer: Key of the submitter or runner; ``None`` to look only.
        clock: Time of signing.
    """

    client: BrokerClient
    pin: BrokerPin
    signer: Ed25519Signer | None
    clock: Clock = system_clock

    @cached_property
    def consortium_id(self) -> str:
        """The consortium that the broker says it serves; the ledger's origin proves it."""
        return self.client.health().consortium_id

    @property
    def origin(self) -> str:
        """Of the broker's ledger."""
        return ledger_origin(self.consortium_id)

    @cached_property
    def key(self) -> bytes:
        """The ledger's key: that of the broker file, or one that rotations connect with it."""
        newest = self.client.ledger_checkpoint()
        return present_key(self.client, self.pin.key, newest, origin=self.origin)

    def submit(
        self, *, target: Target, name: str, ticket: RunTicket, not_after: int
    ) -> tuple[Submission, Posted]:
        """Ask for a run, once; asking again gives the same submission.

        Args:
            target: The document to start.
            name: Of the submission.
            ticket: For its guest.
            not_after: Last second at which a runner may claim it first.

        Raises:
            TicketInvalid: A broker's ticket.
            Refused: The broker does not take it.
            AnswerInvalid: The broker recorded something else.
        """
        if ticket.role == BROKER_ROLE:
            raise TicketInvalid("no broker is started so", check="role", got=ticket.role)
        if ticket.submission_id is not None:
            raise TicketInvalid(
                "a submitted ticket names no submission", check="submission id",
                got=ticket.submission_id, hint="its runner writes the id: leave it out",
            )  # fmt: skip
        signer = self._signer
        document = Submission.of(
            consortium_id=self.consortium_id,
            target=target,
            name=name,
            ticket=drop_unset(ticket),
            submitter=signer.key_id,
            signed_at=self.clock(),
            not_after=not_after,
        )
        posted = self.post(document)
        if posted.submission_id != document.submission_id:
            raise _refuse_contradiction("submission", posted.submission_id, document.submission_id)
        return document, posted

    def stop(self, submission_id: str) -> Posted:
        """Have a run end: its guest seals a checkpoint, and none starts it again.

        Raises:
            Refused: Neither its submitter nor an owner asks, or it has ended.
        """
        own: dict[str, JsonValue] = {
            "consortium_id": self.consortium_id,
            "submission_id": submission_id,
            "signer": self._signer.key_id,
        }
        return self.post(RunStop.write(own, signed_at=self.clock()))

    def post(self, document: ControlDocument) -> Posted:
        """Sign a document, hand it in, and see that the ledger holds it.

        Raises:
            Refused: The broker does not take it.
            AnswerInvalid: The proof is of something else.
        """
        envelope = sign_control(document, self._signer)
        posted = self.client.post_control(type(document), envelope)
        proof = LedgerProof.from_dict(posted.proof)
        entry: Any = verify_proof(proof, self.key, origin=self.origin)
        body = entry["body"]
        recorded = (entry["kind"], proof.index, body.get("submission_id"), body.get("digest"))
        if recorded != (document.entry_kind, posted.index, posted.submission_id, posted.digest):
            raise _refuse_contradiction("entry", recorded, document.entry_kind)
        if posted.first and posted.digest != envelope.digest:
            raise _refuse_contradiction("digest", posted.digest, envelope.digest)
        return posted

    def find(self, name: str) -> ShownSubmission:
        """A submission by its name or id; the broker's word as it stands.

        Raises:
            SubmissionUnknown: No submission has this name or id.
        """
        if _ID.fullmatch(name):
            return self.client.submission(name).submission
        found = self.client.submissions(name=name)
        if not found or found[0].name != name:
            raise SubmissionUnknown(
                "the broker has no submission of this name",
                check="name",
                got=name,
                hint="sealtrain run list",
            )
        return found[0]

    def prove_entry(self, index: int, kind: str) -> dict[str, Any]:
        """Body of an entry, once it is proven to be in the ledger.

        Raises:
            ProofInvalid: It is not.
            AnswerInvalid: It is of another kind.
        """
        entry: Any = verify_proof(self.client.ledger_proof(index), self.key, origin=self.origin)
        if entry["kind"] != kind:
            raise _refuse_contradiction("kind of the entry", entry["kind"], kind)
        return dict(entry["body"])

    def submission(self, shown: ShownSubmission) -> Submission:
        """A submission as it was signed, proven.

        Raises:
            AnswerInvalid: The entry is of another submission.
        """
        body = self.prove_entry(shown.index, Submission.entry_kind)
        found = Submission.from_bytes(Envelope.from_dict(body["envelope"]).payload)
        if found.submission_id != shown.submission_id or found.name != shown.name:
            raise _refuse_contradiction("submission", found.submission_id, shown.submission_id)
        return found

    def store_of(self, shown: ShownSubmission) -> str:
        """The output store that the submitted ticket names.

        Raises:
            UsageError: It names none.
        """
        store = self.submission(shown).ticket.get("store")
        if not isinstance(store, str):
            raise UsageError(
                "the run ticket named no output store, so the model is where the guest was",
                check="--store",
                got="none",
                hint="ask the operator of the runner, or submit with a ticket that has a store",
            )
        return store

    def require_completed(self, shown: ShownSubmission) -> Completed:
        """Return what a run left, once everything that says so is proven.

        Raises:
            RunNotCompleted: It goes on, or ended without a model.
            RunUnconfirmed: Only the runner says that it completed.
            Refused: A proof does not hold.
        """
        manifest = None if shown.broker is None else shown.broker.manifest
        if shown.broker is None or manifest is None:
            if shown.state != "completed":
                raise RunNotCompleted(
                    f"the run {shown.name} has no manifest: {shown.state}",
                    check="state",
                    got=shown.state,
                    expected="completed",
                    hint=f"sealtrain run {'logs' if shown.state in ENDED else 'wait'} {shown.name}",
                )
            raise RunUnconfirmed(
                "the runner says that the run completed, and the broker has no manifest of it",
                check="manifest",
                got=None if shown.runner is None else shown.runner.name,
                hint="ask the operator of the runner; the run may have had other brokers",
            )
        self.submission(shown)
        run_id = shown.broker.run_id
        self._require_named(shown, run_id)
        self._require_released(shown, run_id)
        body = self.prove_entry(manifest.index, "manifest")
        runs = [body["run_id"], *body.get("parties", ())]
        if run_id not in runs or body["manifest_digest"] != manifest.digest:
            raise _refuse_contradiction("manifest", body["manifest_digest"], manifest.digest)
        outputs = body.get("outputs")
        return Completed(
            run_id=run_id,
            manifest_digest=manifest.digest,
            outputs=None
            if outputs is None
            else {str(output["name"]): str(output["sha256"]) for output in outputs},
        )

    def _require_named(self, shown: ShownSubmission, run_id: str) -> None:
        """Return if a run event of the submission that is in the ledger names a run."""
        start: int | None = shown.index
        for _ in range(100):
            page = self.client.ledger_search(
                submission_id=shown.submission_id, kind="run-event", start=start or 0
            )
            for entry in page.entries:
                if entry.entry["body"].get("run_id") == run_id:
                    body = self.prove_entry(entry.index, "run-event")
                    if (body["submission_id"], body["run_id"]) == (shown.submission_id, run_id):
                        return
            if (start := page.end) is None:
                break
        raise _refuse_contradiction("run of the submission", run_id, "one that a run event names")

    def _require_released(self, shown: ShownSubmission, run_id: str) -> None:
        """Return if the run got its keys for this submission, as its guest said under evidence."""
        page = self.client.ledger_search(run_id=run_id, kind="release", limit=1)
        for entry in page.entries:
            body = self.prove_entry(entry.index, "release")
            if (body["run_id"], body["submission_id"]) == (run_id, shown.submission_id):
                return
        raise _refuse_contradiction(
            "submission of the run", run_id, "a release for this submission"
        )

    @property
    def _signer(self) -> Ed25519Signer:
        if self.signer is None:
            raise AssertionError("a desk without a signer only looks")
        return self.signer


@contextmanager
def desk(
    broker_file: Path, signer: Ed25519Signer | None = None, *, clock: Clock = system_clock
) -> Iterator[RunDesk]:
    """Access to run control at a broker.

    Args:
        signer: Key of the submitter or runner.
        clock: Time of signing.
    """
    pin = load_pin(broker_file)
    with BrokerClient.at(pin, signer=signer, clock=clock) as client:
        yield RunDesk(client=client, pin=pin, signer=signer, clock=clock)


def drop_unset(ticket: RunTicket) -> dict[str, JsonValue]:
    """A ticket as a submission holds it: without the fields that are not given."""
    import json

    found: dict[str, JsonValue] = json.loads(ticket.to_bytes())
    return found


def name_by_content(stem: str, target: Target, ticket: RunTicket) -> str:
    """A name that the same target and ticket always get.

    Args:
        stem: It begins with; as an owner's name.
        target: The document.
        ticket: For its guest.
    """
    asked: Mapping[str, JsonValue] = {**target.to_dict(), "ticket": drop_unset(ticket)}
    return f"{stem[:50].rstrip('-')}-{sha256_hex(canonical_json(dict(asked)))[:8]}"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Waits until a submitted run has ended.

    Attributes:
        desk: Of the broker.
        monotonic: Seconds that never go back.
        sleep: Waits so many seconds.
        on_change: Called with each state that differs from the one before.
    """

    desk: RunDesk
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    on_change: Callable[[ShownSubmission], None] = lambda _: None

    def until_ended(self, name: str, timeout: float | None) -> ShownSubmission:
        """Return a completed run's submission.

        Args:
            name: Of the submission, or its id.
            timeout: Seconds; ``None`` for as long as it takes.

        Raises:
            WaitOver: It has not ended in time.
            RunNotCompleted: It failed, or was stopped, skipped or never claimed.
            RunUnconfirmed: Only the runner says that it completed.
            Refused: What the broker shows is not in its ledger.
        """
        ends = None if timeout is None else self.monotonic() + timeout
        pause, before, since = _FIRST_PAUSE, "", self.monotonic()
        while True:
            shown = self.desk.find(name)
            if shown.state != before:
                self.on_change(shown)
                before, since, pause = shown.state, self.monotonic(), _FIRST_PAUSE
            if self._has_ended(shown, since):
                return shown
            left = None if ends is None else ends - self.monotonic()
            if left is not None and left <= 0:
                raise WaitOver(
                    f"the run {shown.name} has not ended in time",
                    check="time",
                    got=shown.state,
                    expected=f"an end within {timeout:g} s",
                    hint=f"it goes on: sealtrain run wait {shown.name}",
                )
            self.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _has_ended(self, shown: ShownSubmission, since: float) -> bool:
        confirmed = shown.broker is not None and shown.broker.manifest is not None
        if confirmed and shown.state not in ("claimed", "started", "stopping"):
            self.desk.require_completed(shown)
            return True
        if shown.state == "completed":
            if self.monotonic() - since >= _UNCONFIRMED_SECONDS:
                self.desk.require_completed(shown)
            return False
        if shown.state in ENDED:
            self._refuse(shown)
        return False

    def _refuse(self, shown: ShownSubmission) -> None:
        """Say why a run ended, once that is proven."""
        self.desk.submission(shown)
        word = shown.runner
        if word is not None:
            body = self.desk.prove_entry(word.index, "run-event")
            if body["submission_id"] != shown.submission_id or body["event"] != word.event:
                raise _refuse_contradiction("run event", body["event"], word.event)
        code = None if word is None else word.code
        raise RunNotCompleted(
            f"the run {shown.name} ended without a manifest: {shown.state}",
            check="state",
            got=shown.state if code is None else f"{shown.state} {code}",
            expected="completed",
            hint=f"sealtrain run logs {shown.name}",
        )


def _refuse_contradiction(what: str, got: object, expected: object) -> AnswerInvalid:
    return AnswerInvalid(
        "the ledger contradicts what the broker answered", check=what, got=got, expected=expected
    )
