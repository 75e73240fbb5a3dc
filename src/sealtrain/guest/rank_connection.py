"""A rank's connections to its keeper: which questions come when, and to what they lead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from sealtrain.guest.workload.channel import Misused, Reply
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    Ended,
    Failed,
    FileDelivered,
    LayBatch,
    MakeRoom,
    MakeShardRoom,
    Names,
    OfferMetrics,
    Open,
    OpenModel,
    ProductsBegun,
    ProductsMade,
    RankReady,
    ReadShard,
    Retire,
    Seal,
    SealShard,
    Sign,
    Slots,
    Step,
    Stop,
    Stopped,
    Sweep,
    TakeLink,
    TallyRecords,
    WorkloadQuestion,
)

if TYPE_CHECKING:
    from sealtrain.sealing.reader import SealedFile


class AnsweringKeeper(Protocol):
    """What a desk passes questions of any node to (``guest.workloadkeeper``)."""

    def begin(self, rank: int, ready: RankReady) -> Reply: ...
    def link(self, rank: int, question: TakeLink) -> Reply: ...
    def note_failure(self, question: Failed) -> None: ...
    def end(self) -> None: ...
    def end_training(self) -> NoReturn: ...
    def slots(self, rank: int) -> tuple[SharedMemory, int, Reply]: ...
    def lay(
        self, rank: int, question: LayBatch, memory: SharedMemory, slot_bytes: int
    ) -> Reply: ...
    def open(self, question: Open) -> tuple[SharedMemory, Reply]: ...
    def open_model(self, question: OpenModel) -> Reply: ...
    def read_shard(
        self, question: ReadShard, memory: SharedMemory | None, opened: OpenedShard
    ) -> Reply: ...


class LeadingKeeper(Protocol):
    """What a desk passes the other questions of the first rank of all to (``guest.keeper``)."""

    storing: threading.Lock

    def step(self, question: Step) -> Reply: ...
    def stop(self, question: Stop) -> Reply: ...
    def metrics(self, question: OfferMetrics) -> Reply: ...
    def tally(self, question: TallyRecords) -> Reply: ...
    def help(self, question: WorkloadQuestion) -> Reply: ...
    def sign(self, question: Sign) -> Reply: ...
    def seal(self, question: Seal, memory: SharedMemory | None) -> Reply: ...
    def seal_shard(self, rank: int, question: SealShard, memory: SharedMemory | None) -> Reply: ...
    def names(self) -> Reply: ...
    def retire(self, question: Retire) -> Reply: ...
    def sweep(self) -> Reply: ...
    def take(self, question: FileDelivered, memory: SharedMemory | None) -> Reply: ...


class OpenedShard:
    """The shard that a rank read last, kept open for its next range."""

    def __init__(self) -> None:
        self._key: object = None
        self._file: SealedFile | None = None

    def read_into(
        self, key: object, opened: Callable[[], SealedFile], offset: int, view: memoryview
    ) -> int:
        """Fill memory from an offset; returns how many bytes there were.

        Args:
            key: Of the shard.
            opened: Opens it, where it is another one than before.
            offset: In its content.
            view: To fill.
        """
        if self._file is None or self._key != key:
            self.close()
            self._file, self._key = opened(), key
        return self._file.pread_into(offset, view)

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()
        self._file = self._key = None


class RankDesk:
    """Passes a rank's questions to the keeper, in the order that the channel allows.

    See spec/workload-channel.md §2 and §3. Each method answers one connection.
    """

    def __init__(
        self, keeper: AnsweringKeeper, rank: int, *, leads: LeadingKeeper | None = None
    ) -> None:
        """Pass nothing yet.

        Args:
            keeper: Answers what any rank may ask.
            rank: Number of the rank within its guest.
            leads: Answers what only the first rank of all may ask; ``None`` in a node but the lead.
        """
        self._keeper, self._rank = keeper, rank
        self._leads = None if rank else leads
        self._seals = leads
        self._begun = threading.Event()
        self._slots: tuple[SharedMemory, int] | None = None
        self._memory: SharedMemory | None = None
        self._shard_memory: SharedMemory | None = None
        self._opened = OpenedShard()

    def control(self, question: WorkloadQuestion) -> Reply | None:
        """Answer about the training; ``None`` after the rank's last word."""
        keeper, leads = self._keeper, self._leads
        if isinstance(question, TakeLink):
            return keeper.link(self._rank, question)
        if isinstance(question, RankReady):
            if self._begun.is_set():
                raise Misused("a rank is ready once")
            reply = keeper.begin(self._rank, question)
            self._begun.set()
            return reply
        if self._rank:
            raise Misused("the first rank speaks for all")
        match question:
            case Failed():
                keeper.note_failure(question)
                return None
            case _ if not self._begun.is_set():
                raise Misused("a rank is ready first")
            case Ended():
                keeper.end()
                return None
            case Stopped():
                keeper.end_training()
            case _ if leads is None:
                raise Misused("the first rank of all speaks for all")
            case Step():
                return leads.step(question)
            case Stop():
                return leads.stop(question)
            case OfferMetrics():
                return leads.metrics(question)
            case TallyRecords():
                return leads.tally(question)
            case ConnectHelper() | ProductsBegun() | ProductsMade():
                return leads.help(question)
            case Sign():
                return leads.sign(question)
        raise AssertionError(f"no answer for {type(question).__name__}")

    def rows(self, question: WorkloadQuestion) -> Reply:
        """Answer about record batches."""
        self._require_begun()
        if isinstance(question, Slots):
            if self._slots is not None:
                raise Misused("a rank gets its slots once")
            memory, slot_bytes, reply = self._keeper.slots(self._rank)
            self._slots = memory, slot_bytes
            return reply
        if self._slots is None:
            raise Misused("slots come first")
        return self._keeper.lay(self._rank, cast("LayBatch", question), *self._slots)

    def store(self, question: WorkloadQuestion) -> Reply:
        """Answer about checkpoints and files of models."""
        self._require_begun()
        keeper = self._keeper
        if isinstance(question, Open):
            self._memory = None
            self._memory, reply = keeper.open(question)
            return reply
        if isinstance(question, OpenModel):
            return keeper.open_model(question)
        if isinstance(question, MakeShardRoom):
            self._shard_memory = None
            self._shard_memory, descriptor = SharedMemory.create(question.size)
            return Reply({}, descriptor)
        if isinstance(question, ReadShard):
            return keeper.read_shard(question, self._shard_memory, self._opened)
        if isinstance(question, SealShard) and self._seals is not None:
            return self._seals.seal_shard(self._rank, question, self._shard_memory)
        if self._leads is None:
            raise Misused("the first rank of all keeps checkpoints")
        with self._leads.storing:
            return self._store(question, self._leads)

    def _store(self, question: WorkloadQuestion, keeper: LeadingKeeper) -> Reply:
        match question:
            case MakeRoom():
                self._memory = None
                self._memory, descriptor = SharedMemory.create(question.size)
                return Reply({}, descriptor)
            case Seal():
                return keeper.seal(question, self._memory)
            case Names():
                return keeper.names()
            case Retire():
                return keeper.retire(question)
            case Sweep():
                return keeper.sweep()
        return keeper.take(cast("FileDelivered", question), self._memory)

    def _require_begun(self) -> None:
        if not self._begun.is_set():
            raise Misused("a rank is ready first")
