"""A rank's connections to its keeper: which questions come when, and to what they lead."""

from __future__ import annotations

import threading
from typing import NoReturn, Protocol, cast

from sealtrain.guest.workload.channel import ChannelEnds, Misused, Reply
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    Ended,
    Failed,
    FileDelivered,
    LayBatch,
    MakeRoom,
    Names,
    OfferMetrics,
    Open,
    OpenModel,
    ProductsBegun,
    ProductsMade,
    RankReady,
    Retire,
    Seal,
    Sign,
    Slots,
    Step,
    Stop,
    Stopped,
    Sweep,
    TallyRecords,
    WorkloadQuestion,
)

__all__ = ["RankDesk"]


class AnsweringKeeper(Protocol):
    """What a desk passes questions to: ``guest.keeper.Keeper``, which says what each does."""

    storing: threading.Lock

    def begin(self, rank: int, ready: RankReady) -> Reply: ...
    def failed(self, question: Failed) -> None: ...
    def end(self) -> None: ...
    def step(self, question: Step) -> Reply: ...
    def stop(self, question: Stop) -> Reply: ...
    def stopped(self) -> NoReturn: ...
    def metrics(self, question: OfferMetrics) -> Reply: ...
    def tally(self, question: TallyRecords) -> Reply: ...
    def help(self, question: WorkloadQuestion) -> Reply: ...
    def sign(self, question: Sign) -> Reply: ...
    def slots(self, rank: int) -> tuple[SharedMemory, int, Reply]: ...
    def lay(
        self, rank: int, question: LayBatch, memory: SharedMemory, slot_bytes: int
    ) -> Reply: ...
    def open(self, question: Open) -> tuple[SharedMemory, Reply]: ...
    def open_model(self, question: OpenModel) -> Reply: ...
    def seal(self, question: Seal, memory: SharedMemory | None) -> Reply: ...
    def names(self) -> Reply: ...
    def retire(self, question: Retire) -> Reply: ...
    def sweep(self) -> Reply: ...
    def take(self, question: FileDelivered, memory: SharedMemory | None) -> Reply: ...


class RankDesk:
    """Passes a rank's questions to the keeper, in the order that the channel allows.

    See spec/workload-channel.md §2 and §3. Each method answers one connection.
    """

    def __init__(self, keeper: AnsweringKeeper, rank: int, ends: ChannelEnds) -> None:
        self._keeper, self._rank, self._ends = keeper, rank, ends
        self._begun = threading.Event()
        self._slots: tuple[SharedMemory, int] | None = None
        self._memory: SharedMemory | None = None

    def control(self, question: WorkloadQuestion) -> Reply | None:
        """Answer about the training; ``None`` after the rank's last word."""
        keeper = self._keeper
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
                keeper.failed(question)
                return None
            case _ if not self._begun.is_set():
                raise Misused("a rank is ready first")
            case Ended():
                keeper.end()
                return None
            case Step():
                return keeper.step(question)
            case Stop():
                return keeper.stop(question)
            case OfferMetrics():
                return keeper.metrics(question)
            case TallyRecords():
                return keeper.tally(question)
            case ConnectHelper() | ProductsBegun() | ProductsMade():
                return keeper.help(question)
            case Sign():
                return keeper.sign(question)
            case Stopped():
                keeper.stopped()
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
        if self._rank:
            raise Misused("the first rank keeps checkpoints")
        with keeper.storing:
            return self._stored(question)

    def _stored(self, question: WorkloadQuestion) -> Reply:
        keeper = self._keeper
        match question:
            case MakeRoom():
                self._memory = None
                self._memory, descriptor = SharedMemory.made(question.size)
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
