"""A client: an owner's process that answers the server's guest with activations of its records.

It has no TEE. The server's guest proves itself by evidence; the owner proves itself by its signing
key, and signs what it consents to before anything of a record leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.consortium.consents import Consent, ConsentedDataset
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.errors import RunMismatch
from sealtrain.manifest.checks.counts import counts_public
from sealtrain.recipe.missing import missing_values
from sealtrain.training.census import require_lessons
from sealtrain.training.data.sources import BatchedRecords, Source
from sealtrain.training.data.stream import read_all
from sealtrain.training.errors import ChannelBroken
from sealtrain.training.inputs.learnable import RecordTally, counts_records
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.cut.activations import encode
from sealtrain_together.cut.front import RecordEncoding
from sealtrain_together.cut.messages import (
    MAX_MANIFEST_BYTES,
    Ask,
    BeginCut,
    NotedState,
    OwnerJoined,
    receive_message,
    send_message,
)
from sealtrain_together.cut.states import Note, SealedCutState, require_agreement
from sealtrain_together.parties.party import ReportedCounts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.guest.datasets import FoundDataset
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.signing.dsse import Ed25519Signer
    from sealtrain.signing.identity import PublicIdentity
    from sealtrain.signing.target import Target

KEPT_BYTES: Final = 1 << 30
_JUDGED_AT_ONCE: Final = 256


def records_of(found: FoundDataset, opened: BatchedRecords, recipe: PhaseRecipe) -> pa.Table:
    """All records of an owner's dataset: the columns that the recipe reads, gaps as it says.

    Args:
        recipe: That owners approved.

    Raises:
        SchemaMismatch, RecordInvalid: They are not as the recipe reads them.
    """
    import pyarrow as pa

    source = Source(
        role=found.role,
        owner=found.manifest.owner,
        name=found.manifest.name,
        weight=found.weight,
        dataset=opened,
        columns=found.columns,
        missing=missing_values(recipe),
    )
    return pa.Table.from_batches(list(read_all([source], recipe.columns.names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDataset:
    """A dataset of the owner, opened on the owner's machine.

    Attributes:
        manifest: As the owner signed it.
        envelope: What it is in.
        records: The columns that the recipe reads; of training data those records that leave
            something to learn.
        counted: The recipe's records are counted, and it trains on these.
        counts: What all records leave to learn; ``None`` where that is not public.
        tally: The same for the owner, on whose machine it stays; nothing of a test split.
    """

    manifest: DatasetManifest
    envelope: dict[str, Any]
    records: pa.Table
    counted: bool = False
    counts: dict[str, int] | None = None
    tally: RecordTally = field(default_factory=RecordTally)

    @classmethod
    def read(
        cls, found: FoundDataset, records: pa.Table, recipe: PhaseRecipe, reading: RecordEncoding
    ) -> OwnDataset:
        """A dataset without the training records that leave nothing to learn.

        Args:
            records: All of it, the columns that the recipe reads.
            recipe: That owners approved.
            reading: Judges records.

        Raises:
            DataInvalid: It has training records, and none that leaves anything to learn.
            RecordInvalid: A record is not as the recipe says.
        """
        import pyarrow as pa

        manifest, tally = found.manifest, RecordTally()
        if found.role == "train":
            learning: list[bool] = []
            for start in range(0, records.num_rows, _JUDGED_AT_ONCE):
                parts = reading.judge(records.slice(start, _JUDGED_AT_ONCE).to_pylist())
                tally.add(parts)
                learning += [part in ("whole", "truncated") for part in parts]
            require_lessons(tally, owner=manifest.owner, dataset=manifest.name)
            records = records.filter(pa.array(learning, pa.bool_()))
        counted = found.role == "train" and counts_records(recipe)
        public = counted and counts_public(recipe, manifest.records)
        return cls(
            manifest=manifest,
            envelope=found.envelope,
            records=records,
            counted=counted,
            counts=tally.to_dict() if public else None,
            tally=tally,
        )


@dataclass(slots=True, kw_only=True)
class Client:
    """Answers one server, as often as it connects anew.

    Attributes:
        owner: The owner.
        consortium_id: The owner's consortium.
        signer: The owner's signing key.
        target: What the owner approved.
        datasets: What it sends activations of.
        reading: Makes them.
        rows: Records in a message.
        share: Gives the owner's share of the key of a run's states (``states.owner_share``).
        counts_records: Whether the recipe's records are counted.
        note: What the owner keeps of the run that it consented to; it takes part in no other.
        clock: Time of the consent, seconds since the epoch.
        on_sent: Called with the size of each message that was sent, bytes.
        kept_bytes: Messages that are kept for a server that asks again.
    """

    owner: PublicIdentity
    consortium_id: str
    signer: Ed25519Signer
    target: Target
    datasets: Sequence[OwnDataset]
    reading: RecordEncoding
    rows: int
    share: Callable[[str], bytes]
    clock: Callable[[], int]
    counts_records: bool = True
    note: Note = field(default_factory=Note)
    on_sent: Callable[[int], None] = lambda _size: None
    sent: int = 0
    """Bytes of activations so far."""
    kept_bytes: int = KEPT_BYTES
    _kept: dict[tuple[str, int], bytes] = field(init=False, default_factory=dict)
    _room: ByteBudget = field(init=False)

    def __post_init__(self) -> None:
        self._room = ByteBudget(self.kept_bytes)

    def serve(self, channel: AttestedChannel) -> bytes:
        """Consent and answer until the run has ended.

        Args:
            channel: To the server's guest, whose evidence was accepted.

        Returns:
            The run's signed manifest.

        Raises:
            RunMismatch: The server runs something else than the owner approved, or another run
                than the owner consented to.
            CheckpointRefused: The server goes on from another state than the owner noted.
            ChannelBroken, PeerUnreachable: The conversation broke off.
        """
        begun: BeginCut = receive_message(channel, BeginCut)
        self._refuse_other(begun)
        send_message(channel, NotedState(sealed=self.note.sealed))
        self._note_state(begun.run_id, begun.sealed)
        send_message(channel, self._join(begun.run_id))
        while True:
            asked: Ask = receive_message(channel, Ask)
            if asked.kind == "wait":
                continue
            if asked.kind == "end":
                return channel.expect(max_bytes=MAX_MANIFEST_BYTES)
            if asked.kind == "sealed":
                self._note_state(begun.run_id, asked.sealed)
                send_message(channel, NotedState(sealed=asked.sealed))
                continue
            message = self._message(str(asked.dataset_id), asked.number)
            channel.send(message)
            self.sent += len(message)
            self.on_sent(len(message))

    def _refuse_other(self, begun: BeginCut) -> None:
        facts = [
            ("deployment", begun.compose_hash, self.target.compose_hash),
            ("app id", begun.app_id, self.target.app_id),
            ("recipe", begun.recipe_hash, self.target.recipe_hash),
            ("run", begun.run_id, self.note.run_id or begun.run_id),
        ]
        for what, got, expected in facts:
            if got != expected:
                raise RunMismatch(
                    f"the server is of another {what}",
                    check="cut",
                    got=got,
                    expected=expected,
                    hint="send to the server whose deployment and recipe the owner approved; "
                    "another run has another --out",
                )

    def _note_state(self, run_id: str, sealed: SealedCutState | None) -> None:
        """Write down the server's newest state before anything is sent after it."""
        require_agreement(sealed, self.note.sealed, self.owner.name)
        if (self.note.run_id, self.note.sealed) != (run_id, sealed):
            self.note.keep(run_id, sealed)

    def _join(self, run_id: str) -> OwnerJoined:
        consent = Consent.of(
            [
                ConsentedDataset(
                    dataset_id=dataset.manifest.dataset_id,
                    name=dataset.manifest.name,
                    root=dataset.manifest.root,
                    rows=dataset.records.num_rows,
                )
                for dataset in self.datasets
            ],
            run_id=run_id,
            target=self.target,
            consortium_id=self.consortium_id,
            owner=self.owner,
            signed_at=self.clock(),
        )
        counts = {
            dataset.manifest.dataset_id: (
                None if dataset.counts is None else ReportedCounts(**dataset.counts)
            )
            for dataset in self.datasets
            if dataset.counted
        }
        return OwnerJoined(
            counts=counts if self.counts_records else None,
            owner=self.owner.name,
            share=self.share(run_id).hex(),
            consent=sign_owned(consent, self.signer).to_dict(),
            datasets=tuple(dataset.envelope for dataset in self.datasets),
        )

    def _message(self, dataset_id: str, number: int) -> bytes:
        key = dataset_id, number
        if key in self._kept:
            return self._kept[key]
        records = next(
            (
                dataset.records
                for dataset in self.datasets
                if dataset.manifest.dataset_id == dataset_id
            ),
            None,
        )
        start = number * self.rows
        if records is None or start >= records.num_rows:
            raise ChannelBroken("the server asks for records that there are not", check="cut")
        message = encode(self.reading.rows(records.slice(start, self.rows).to_pylist()))
        if self._room.take(len(message)):
            self._kept[key] = message
        return message
