"""The change that each ledger entry makes in the database, for a request and for a replay.

A request appends its entry and makes the change in one transaction (``record``). If the change of
an entry is missing from the database, because the broker died between two commits or the database
is a copy or new, the same change is made from the entry (``change``). Entries of other kinds change
nothing: refusals, boots, rotations.

The entry of a lease does not state the instance that holds it, so a request passes it as an
argument. A lease that is made from its entry alone has ended, because its holder is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import from_rfc3339
from sealtrain.broker.store.transaction import Transaction
from sealtrain.client.errors import SubmissionUnknown
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.documents import DOCUMENTS
from sealtrain.consortium.receipts import Anchor, OwnedId, data_of_entry
from sealtrain.consortium.runevents import (
    RunEvent,
    SubmissionState,
    apply_event,
    state_submitted,
    stop_applied,
)
from sealtrain.consortium.submissions import RunStop, Submission
from sealtrain.ledger.ledger import Ledger
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.dsse import Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEntry:
    """One entry of a ledger.

    Attributes:
        index: From 0.
        kind: Kind of the entry.
        at: Its time, seconds since the epoch.
        body: Its statement.
        origin: Of its ledger.
        instance_id: Of the guest that gets the lease of a release, at a request; ``None`` at a
            replay.
    """

    index: int
    kind: str
    at: int
    body: Mapping[str, Any]
    origin: str
    instance_id: str | None = None


def record(
    transaction: Transaction,
    ledger: Ledger,
    kind: str,
    body: dict[str, JsonValue],
    *,
    now: int,
    instance_id: str | None = None,
) -> int:
    """Append an entry and make its change, both in one transaction; returns its index.

    Args:
        transaction: Commits with the ledger.
        ledger: The broker's.
        kind: As ``Ledger.append``, with its errors.
        body: As ``Ledger.append``.
        now: The broker's time, seconds since the epoch.
        instance_id: As ``RecordedEntry``.
    """
    index = ledger.append(kind, body)
    entry = RecordedEntry(
        index=index, kind=kind, at=now, body=body, origin=ledger.origin, instance_id=instance_id
    )
    change(transaction, entry)
    return index


def change(transaction: Transaction, entry: RecordedEntry) -> None:
    """Make the change that an entry states. Making it again changes nothing.

    Raises:
        KeyError: A field of the entry is missing.
        SealtrainError: A field of it is malformed.
    """
    act = _CHANGES.get(entry.kind)
    if act is not None:
        act(transaction, entry)


def _decision(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    if transaction.decision(body["digest"]) is None:
        transaction.add_decision(
            digest=body["digest"],
            app_id=body["app_id"],
            compose_hash=body["compose_hash"],
            recipe_hash=body["recipe_hash"],
            envelope=_envelope(body),
            ledger_index=entry.index,
        )


def _dataset(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    transaction.put_dataset(
        OwnedId(body["owner_id"], body["dataset_id"]),
        app_id=body["app_id"],
        compose_hash=body["compose_hash"],
        digest=body["digest"],
        envelope=_envelope(body),
        ledger_index=entry.index,
        **_series(body),
    )


def _series(body: Mapping[str, Any]) -> dict[str, Any]:
    """OWNER/SERIES of a member of a series, and its number."""
    payload = Envelope.from_dict(body["envelope"]).payload
    block = DatasetManifest.from_bytes(payload).series
    if block is None:
        return {}
    return {"series": f"{body['owner']}/{block.name}", "number": block.number}


def _owner_document(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    if transaction.owner_documents.find_recorded(body["digest"]) is None:
        envelope = Envelope.from_dict(body["envelope"])
        document = DOCUMENTS[entry.kind].from_bytes(envelope.payload)
        transaction.owner_documents.add(
            entry.kind,
            owner=body["owner"],
            owner_id=body["owner_id"],
            digest=body["digest"],
            envelope=envelope.to_bytes(),
            subjects=document.subjects(),
            ledger_index=entry.index,
        )


def _succession(transaction: Transaction, entry: RecordedEntry) -> None:
    """A succession to this ledger's own consortium is how the ledger began, and ends nothing."""
    body = entry.body
    if ledger_origin(body["successor_id"]) == entry.origin:
        return
    if transaction.successions.find_recorded() is None:
        transaction.successions.add(body["successor_id"], body["digest"], ledger_index=entry.index)


def _release(transaction: Transaction, entry: RecordedEntry) -> None:
    body, run_id = entry.body, entry.body["run_id"]
    replayed = entry.instance_id is None
    if replayed and transaction.lease(body["lease_id"]) is not None:
        return
    begins = transaction.run(run_id) is None
    with transaction.at_once():
        if begins:
            transaction.begin_run(
                run_id,
                app_id=body["app_id"],
                compose_hash=body["compose_hash"],
                recipe_hash=body["recipe_hash"],
                data=data_of_entry(body),
                submission_id=body["submission_id"],
                now=entry.at,
                ledger_index=entry.index,
            )
        transaction.grant_lease(
            body["lease_id"],
            run_id,
            not_after=from_rfc3339(body["not_after"]),
            instance_id=entry.instance_id or "",
            now=entry.at,
            ended=replayed,
        )
        if body.get("privacy"):
            transaction.reserve(run_id, ledger_index=entry.index)


def _renewal(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    if body["checkpoint"] is not None:
        transaction.anchor(body["run_id"], Anchor.model_validate(body["checkpoint"]))
    transaction.extend_lease(body["lease_id"], not_after=from_rfc3339(body["not_after"]))


def _manifest(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    if transaction.manifest(body["manifest_digest"]) is None:
        transaction.add_manifest(body["manifest_digest"], body["run_id"], ledger_index=entry.index)


def _failure(transaction: Transaction, entry: RecordedEntry) -> None:
    transaction.extend_lease(entry.body["lease_id"], not_after=entry.at)


def _submission(transaction: Transaction, entry: RecordedEntry) -> None:
    body = entry.body
    if transaction.submissions.get(body["submission_id"]) is None:
        document = Submission.from_bytes(Envelope.from_dict(body["envelope"]).payload)
        state = state_submitted(
            document, by=body["by"], digest=body["digest"], index=entry.index, at=entry.at
        )
        transaction.submissions.put(state, at=entry.at)


def _run_event(transaction: Transaction, entry: RecordedEntry) -> None:
    body, known = entry.body, transaction.submissions
    if known.find_recorded(body["digest"]) is not None:
        return
    event = RunEvent.from_bytes(Envelope.from_dict(body["envelope"]).payload)
    state = _find_submission(transaction, event.submission_id)
    after = apply_event(
        state, event, by=body["by"], digest=body["digest"], index=entry.index, at=entry.at
    )
    known.put(after, at=entry.at)
    known.add_document(
        body["digest"],
        submission_id=event.submission_id,
        run_id=event.run_id,
        ledger_index=entry.index,
    )


def _run_stop(transaction: Transaction, entry: RecordedEntry) -> None:
    body, known = entry.body, transaction.submissions
    if known.find_recorded(body["digest"]) is not None:
        return
    stop = RunStop.from_bytes(Envelope.from_dict(body["envelope"]).payload)
    state = _find_submission(transaction, stop.submission_id)
    known.put(stop_applied(state, by=body["by"], index=entry.index, at=entry.at), at=entry.at)
    known.add_document(
        body["digest"], submission_id=stop.submission_id, run_id=None, ledger_index=entry.index
    )


def _find_submission(transaction: Transaction, submission_id: str) -> SubmissionState:
    state = transaction.submissions.get(submission_id)
    if state is None:
        raise SubmissionUnknown("the ledger has no such submission", got=submission_id)
    return state


_CHANGES: Final[Mapping[str, Callable[[Transaction, RecordedEntry], None]]] = {
    "approval": _decision,
    "revocation": _decision,
    "dataset": _dataset,
    **dict.fromkeys(DOCUMENTS, _owner_document),
    "succession": _succession,
    "release": _release,
    "renewal": _renewal,
    "manifest": _manifest,
    "failure": _failure,
    "submission": _submission,
    "run-event": _run_event,
    "run-stop": _run_stop,
}


def _envelope(body: Mapping[str, Any]) -> bytes:
    return Envelope.from_dict(body["envelope"]).to_bytes()
