"""What a broker answers about submissions and runs (spec/run-control.md §3, §5)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sealtrain.base.models import (
    ErrorCode,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
    SkipReason,
    StrictModel,
    Timestamp,
)
from sealtrain.consortium.runevents import Event, State
from sealtrain.consortium.submissions import KeyId
from sealtrain.release.messages import EnvelopeDocument


class Posted(StrictModel):
    """A submission, run event or stop was recorded, now or before.

    Attributes:
        submission_id: Which submission it is about.
        index: Its entry in the ledger.
        digest: Of the recorded envelope.
        proof: Of the entry.
        first: Whether this post recorded it.
    """

    version: Literal[1]
    submission_id: Hex32
    index: int = Field(ge=0)
    digest: Hex64
    proof: dict[str, Any]
    first: bool


class StopFact(StrictModel):
    """The first stop of a submission."""

    signer: OwnerName
    at: Timestamp
    index: int = Field(ge=0)


class RunnerWord(StrictModel):
    """The runner's word: the last run event."""

    name: OwnerName
    key_id: KeyId
    instance: Hex32
    event: Event
    code: SkipReason | ErrorCode | None
    run_id: Hex32 | None
    at: Timestamp
    index: int = Field(ge=0)
    claim_until: Timestamp


class ManifestFact(StrictModel):
    """The first manifest of a run that the broker verified and recorded."""

    index: int = Field(ge=0)
    digest: Hex64


class BrokerFacts(StrictModel):
    """The broker's own record of a run.

    Attributes:
        run_id: Of the run.
        began_at: Time of the first release.
        lease_until: End of its lease, if it holds one.
        checkpoint: Counter of the anchored checkpoint.
        failure: Code that the guest reported with its lease.
        manifest: Of the run.
    """

    run_id: Hex32
    began_at: Timestamp
    lease_until: Timestamp | None
    checkpoint: int | None
    failure: ErrorCode | None
    manifest: ManifestFact | None


class ShownSubmission(StrictModel):
    """Where a submission stands: what the runner says, and what the broker recorded itself."""

    submission_id: Hex32
    name: OwnerName
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    submitter: OwnerName
    index: int = Field(ge=0)
    submitted_at: Timestamp
    not_after: Timestamp
    state: State
    head: Hex64 | None
    stop: StopFact | None
    runner: RunnerWord | None
    broker: BrokerFacts | None


class SubmissionPage(StrictModel):
    """Submissions, newest first."""

    submissions: tuple[ShownSubmission, ...] = Field(max_length=100)


class SubmissionAnswer(StrictModel):
    """One submission, and as it was signed."""

    submission: ShownSubmission
    envelope: EnvelopeDocument


class FoundEntry(StrictModel):
    """An entry of the ledger."""

    index: int = Field(ge=0)
    entry: dict[str, Any]


class SearchPage(StrictModel):
    """Entries that a search found, in their order.

    Attributes:
        entries: At most 100.
        end: Where to continue; ``None`` after the last.
    """

    entries: tuple[FoundEntry, ...] = Field(max_length=100)
    end: int | None
