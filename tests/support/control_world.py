"""Submitters and runners of a broker: what they sign, and how they hand it in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from release_world import ReleaseWorld, document_of, release_world
from world import identity

from sealtrain.consortium.runevents import RunEvent
from sealtrain.consortium.submissions import ControlDocument, RunStop, Submission, sign_control
from sealtrain.release.run_control import Posted, ShownSubmission
from sealtrain.signing.dsse import Envelope
from sealtrain.storage.address import is_url

SUBMITTER, RUNNER, OTHER = "engineer-e", "runner-one", "runner-two"
PIN: dict[str, Any] = {
    "version": 2,
    "url": "http://127.0.0.1:1",
    "signing_key": "A" * 43 + "=",
    "compose_hash": "0" * 64,
}


def ticket(world: ReleaseWorld, **changed: Any) -> dict[str, Any]:
    """A run ticket, as a submission holds it."""
    pin = {
        **PIN,
        "signing_key": identity("hospital-a").public.signing_key,
        "appraisal": world.policy.to_dict(),
    }
    given = {"version": 1, "role": "train", "brokers": [pin], "data": ["/sealed"]}
    assert not is_url(given["data"][0])
    return {name: value for name, value in {**given, **changed}.items() if value is not None}


@dataclass(kw_only=True)
class Player:
    """A runner that signs whatever a test wants."""

    control: ControlWorld
    name: str
    instance: str = field(default_factory=lambda: os.urandom(16).hex())

    def event(self, submission_id: str, event: str, **changed: Any) -> Envelope:
        key = identity(self.name).signer
        own: dict[str, Any] = {
            "consortium_id": self.control.world.consortium.consortium_id,
            "submission_id": submission_id,
            "event": event,
            "code": None,
            "run_id": None,
            "claim_seconds": 600 if event == "claimed" else None,
            "runner": key.key_id,
            "instance": self.instance,
            **changed,
        }
        if "previous" not in own:
            own["previous"] = self.control.shown(submission_id).head
        made = RunEvent.write(own, signed_at=self.control.world.clock())
        return sign_control(made, key)

    def report(self, submission_id: str, event: str, **changed: Any) -> Posted:
        made = self.event(submission_id, event, **changed)
        return self.control.broker.report(document_of(made))


@dataclass(kw_only=True)
class ControlWorld:
    """A release world whose broker has a submitter and two runners."""

    world: ReleaseWorld

    @property
    def broker(self) -> Any:
        return self.world.broker.run_control

    def submission(self, name: str = "nightly", by: str = SUBMITTER, **changed: Any) -> Submission:
        now = self.world.clock()
        given: dict[str, Any] = {
            "consortium_id": self.world.consortium.consortium_id,
            "target": self.world.target,
            "name": name,
            "ticket": ticket(self.world),
            "submitter": identity(by).signer.key_id,
            "signed_at": now,
            "not_after": now + 3600,
        }
        return Submission.of(**{**given, **changed})

    def submit(self, name: str = "nightly", by: str = SUBMITTER, **changed: Any) -> Posted:
        return self.post(self.submission(name, by, **changed), by)

    def post(self, document: ControlDocument, by: str) -> Posted:
        made = document_of(sign_control(document, identity(by).signer))
        posted: Posted
        if isinstance(document, RunStop):
            posted = self.broker.stop(made)
        else:
            posted = self.broker.submit(made)
        return posted

    def stop(self, submission_id: str, by: str = SUBMITTER, **changed: Any) -> Posted:
        own = {
            "consortium_id": self.world.consortium.consortium_id,
            "submission_id": submission_id,
            "signer": identity(by).signer.key_id,
            **changed,
        }
        return self.post(RunStop.write(own, signed_at=self.world.clock()), by)

    def shown(self, submission_id: str) -> ShownSubmission:
        found: ShownSubmission = self.broker.one(submission_id).submission
        return found

    def runner(self, name: str = RUNNER) -> Player:
        return Player(control=self, name=name)

    def events(self) -> list[str]:
        """Kinds of the ledger's entries about submissions, run events by their event."""
        entries: list[Any] = self.world.ledger.entries()
        return [
            entry["body"].get("event", entry["kind"])
            for entry in entries
            if entry["kind"] in ("submission", "run-event", "run-stop")
        ]


@contextmanager
def control_world(folder: Path, **changed: Any) -> Iterator[ControlWorld]:
    given = {"submitters": (SUBMITTER,), "runners": (RUNNER, OTHER), **changed}
    with release_world(folder, **given) as world:
        yield ControlWorld(world=world)
