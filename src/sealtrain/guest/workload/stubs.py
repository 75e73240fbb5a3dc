"""What the workload has in place of the keeper's things: records, checkpoints, lease, metrics.

Each asks over the channel. None holds a key, a path of the run's folder or a dataset's object.
"""

from __future__ import annotations

import ctypes
import io
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sealtrain.base.encoding import from_base64
from sealtrain.guest.workload.channel import AskingEnd
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    FileDelivered,
    LayBatch,
    MakeRoom,
    MakeShardRoom,
    Names,
    OfferMetrics,
    Open,
    OpenModel,
    ReadShard,
    Retire,
    Seal,
    SealShard,
    Slots,
    Step,
    Stop,
    Stopped,
    Sweep,
)
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef, shard_named
from sealtrain.training.data.sources import Source
from sealtrain.training.errors import RankLost
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain.training.telemetry.monitor import TOKEN_COUNTS

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.guest.workload.messages import WorkloadQuestion
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.recipe.terms import ReleasePolicy
    from sealtrain.sealing.datakey import DataKey

_NAME: Final = re.compile(r"checkpoint-([0-9]{8})-([0-9]{10})")
_LOSS: Final = "loss"
SHARD_READ_BYTES: Final = 16 << 20
"""Most bytes of a shard in one answer."""
PART_BYTES: Final = 16 << 20
"""Most bytes of a model's file in one question."""


def numbers_of(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Measurements as a question carries them: ``None`` for a number that is not finite."""
    numbers = {name: float(value) for name, value in values.items()}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


class Slotted:
    """Record batches by way of the slots of a rank. Thread-safe."""

    def __init__(self, asking: AskingEnd) -> None:
        """Map the slots."""
        self._asking = asking
        answer, descriptor = asking.ask(Slots())
        self._memory = _require_memory(descriptor)
        self._slot_bytes = int(answer["slot_bytes"])
        self._free = list(range(self._memory.size // self._slot_bytes))
        self._freed = threading.Condition()

    def batch(self, dataset: int, number: int) -> pa.RecordBatch:
        """A record batch, in memory of this process's own."""
        import pyarrow as pa

        with self._freed:
            self._freed.wait_for(lambda: self._free)
            slot = self._free.pop()
        try:
            answer, _ = self._asking.ask(LayBatch(dataset=dataset, batch=number, slot=slot))
            start = slot * self._slot_bytes
            laid = self._memory.map[start : start + int(answer["length"])]
        finally:
            with self._freed:
                self._free.append(slot)
                self._freed.notify()
        return pa.ipc.open_stream(laid).read_next_batch()


class KeptRecords:
    """A dataset's records with the columns that the recipe names, as ``BatchedRecords``."""

    local = False  # each batch is asked for

    def __init__(self, number: int, stated: Mapping[str, Any], slots: Slotted) -> None:
        """A dataset as the keeper states it."""
        import numpy as np
        import pyarrow as pa

        self._number, self._slots = number, slots
        self.dataset_id: str = stated["dataset_id"]
        self.root: str = stated["root"]
        self.largest_batch: int = stated["largest_batch"]
        self.schema: pa.Schema | None = None
        if stated["schema"] is not None:
            self.schema = pa.ipc.read_schema(pa.py_buffer(from_base64(stated["schema"])))
        rows = np.frombuffer(from_base64(stated["batch_rows"]), dtype="<u4")
        self.batch_rows: tuple[int, ...] = tuple(rows.tolist())

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, 0-based."""
        return self._slots.batch(self._number, number)


class KeptStore:
    """The run's sealed checkpoints, as ``BlobStore``; the model's files go the same way.

    What is sealed lies in memory that the keeper reads: a state is copied there once, by the
    rank that makes the checkpoint, and encrypted from there.

    Attributes:
        anchored: Counter of the newest anchored checkpoint, as the keeper said last.
        before_seal: Called before each checkpoint is sealed.
    """

    def __init__(self, asking: AskingEnd) -> None:
        """Ask over this end."""
        self._asking = asking
        self._memory: SharedMemory | None = None
        self._shard_memory: SharedMemory | None = None
        self.anchored = 0
        self.before_seal: Callable[[], object] = _nothing

    def memory(self, size: int) -> memoryview:
        """Memory of at least that size which ``write`` seals without a copy."""
        if self._memory is None or self._memory.size < size:
            self._memory = None
            _, descriptor = self._asking.ask(MakeRoom(size=max(1, size)))
            self._memory = _require_memory(descriptor)
        return self._memory.view

    def shard_memory(self, size: int) -> memoryview:
        """As ``memory``, for this rank's shards."""
        if self._shard_memory is None or self._shard_memory.size < size:
            self._shard_memory = None
            _, descriptor = self._asking.ask(MakeShardRoom(size=max(1, size)))
            self._shard_memory = _require_memory(descriptor)
        return self._shard_memory.view

    @contextmanager
    def write(self, name: str, binding: Mapping[str, str | int]) -> Iterator[_Written]:
        """As ``BlobStore.write``; the keeper seals it when ``finish`` is called."""
        previous, shard = str(binding["previous"]), shard_named(name)
        if shard is None:
            yield _Written(self.memory, partial(self.seal, _ref(name, previous)))
        else:
            yield _Written(self.shard_memory, partial(self._seal_shard, shard, previous))

    def _seal_shard(self, ref: ShardRef, previous: str, size: int) -> str:
        question = SealShard(
            counter=ref.counter,
            step=ref.step,
            previous=previous,
            number=ref.number,
            count=ref.count,
            size=size,
        )
        answer, _ = self._asking.ask(question)
        return str(answer["digest"])

    def read_shard(self, question: ReadShard, into: memoryview) -> None:
        """Fill memory with a range of a shard."""
        memory = self.shard_memory(SHARD_READ_BYTES)
        self._asking.ask(question)
        into[: question.size] = memory[: question.size]

    def forget_shard(self) -> None:
        """Let the memory of shards go: the next one has the size that it needs."""
        self._shard_memory = None

    def seal(self, ref: CheckpointRef, size: int) -> str:
        """Seal the first bytes of the memory as a checkpoint; returns its digest."""
        self.before_seal()
        question = Seal(counter=ref.counter, step=ref.step, previous=ref.previous, size=size)
        answer, _ = self._asking.ask(question)
        self.anchored = int(answer["anchored"])
        return str(answer["digest"])

    def read(
        self, name: str, binding: Mapping[str, str | int], *, root: str | None = None
    ) -> io.RawIOBase:
        """As ``BlobStore.read``, for a checkpoint or shard whose root is known."""
        shard = shard_named(name)
        if shard is not None:
            return _OpenedShard(self, shard, str(binding["previous"]), root or "")
        ref = _ref(name, str(binding["previous"]))
        question = Open(
            counter=ref.counter, step=ref.step, digest=root or "", previous=ref.previous
        )
        self._memory = None  # before there is another: only one is held at a time
        answer, descriptor = self._asking.ask(question)
        self._memory = _require_memory(descriptor)
        return _Opened(self._memory.view[: int(answer["size"])])

    def deliver(self, name: str, size: int, blocks: Iterable[memoryview | bytes]) -> None:
        """Give the keeper a file of the trained model, a part at a time.

        Args:
            name: Of the file.
            size: Its bytes.
            blocks: Its content, of which each block may be gone with the next.
        """
        room = min(max(1, size), PART_BYTES)
        if self._memory is not None and self._memory.size > PART_BYTES:
            self._memory = None  # that of a checkpoint or base model: as large as they were
        offset = there = 0
        for block in blocks:
            view = memoryview(block).cast("B")
            while len(view):
                count = min(len(view), room - there)
                self.memory(room)[there : there + count] = view[:count]
                view, there = view[count:], there + count
                if there == room:
                    self._asking.ask(
                        FileDelivered(name=name, size=size, offset=offset, length=there)
                    )
                    offset, there = offset + there, 0
        if there or not size:
            self._asking.ask(FileDelivered(name=name, size=size, offset=offset, length=there))

    def names(self) -> tuple[str, ...]:
        """Names of all complete checkpoints."""
        answer, _ = self._asking.ask(Names())
        return tuple(answer["names"])

    def retire(self, name: str) -> None:
        """Let a checkpoint go; the keeper keeps those that lead back to the anchored one.

        It deletes the shards of a checkpoint with it, and those that belong to none by itself.
        """
        if shard_named(name) is not None:
            return
        ref = _ref(name, "")
        self._asking.ask(Retire(counter=ref.counter, step=ref.step))

    def remove(self, name: str) -> None:
        """As ``retire``."""
        self.retire(name)

    def sweep(self) -> None:
        """As ``BlobStore.sweep``."""
        self._asking.ask(Sweep())

    def binding(self, name: str) -> dict[str, str | int]:
        """Refused: the keeper chose the checkpoint to continue from."""
        raise _not_here()

    def root(self, name: str) -> str:
        """Refused, as ``binding``."""
        raise _not_here()

    def verify(self, name: str) -> str:
        """Refused, as ``binding``."""
        raise _not_here()


class KeptModel:
    """The sealed base model, as ``SealedFolder``: each file in memory of its own while it is open.

    Attributes:
        file_names: As the keeper states them.
    """

    def __init__(self, file_names: tuple[str, ...], asking: AskingEnd) -> None:
        """Ask over this end."""
        self.file_names = file_names
        self._asking = asking

    def open_file(self, name: str) -> io.RawIOBase:
        """Open one of them; the caller closes it."""
        answer, descriptor = self._asking.ask(OpenModel(name=name))
        return _Opened(_require_memory(descriptor).view[: int(answer["size"])])


@dataclass(frozen=True, slots=True)
class _Sealed:
    root: str


class _Written:
    """A checkpoint or shard that is being written, into the memory that it is sealed from."""

    def __init__(self, memory: Callable[[int], memoryview], seal: Callable[[int], str]) -> None:
        self._memory, self._seal = memory, seal
        self._size = 0

    def writelines(self, lines: Iterable[memoryview]) -> None:
        """Take parts; what lies in place already is not copied."""
        parts = [part.cast("B") for part in lines]
        size = self._size + sum(len(part) for part in parts)
        memory = self._memory(size)
        start = _address(memory)
        for part in parts:
            if len(part) and _address(part) != start + self._size:
                memory[self._size : self._size + len(part)] = part
            self._size += len(part)

    def finish(self) -> _Sealed:
        """Have the keeper seal it."""
        return _Sealed(self._seal(self._size))


class _Opened(io.RawIOBase):
    """An opened file, in the memory that the keeper decrypted it into."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._position = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = (0, self._position, len(self._content))[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as given, given.cast("B") as view:
            part = self._content[self._position : self._position + len(view)]
            view[: len(part)] = part
            self._position += len(part)
            return len(part)

    def readall(self) -> bytes:
        rest = bytes(self._content[self._position :])
        self._position = len(self._content)
        return rest


class _OpenedShard(io.RawIOBase):
    """A shard, of which the keeper decrypts one range after the other."""

    def __init__(self, store: KeptStore, ref: ShardRef, previous: str, digest: str) -> None:
        self._store, self._position = store, 0
        self._ref, self._previous, self._digest = ref, previous, digest

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a shard is not known here")
        self._position = offset + (self._position if whence else 0)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as given, given.cast("B") as view:
            size = min(len(view), SHARD_READ_BYTES)
            if size:
                question = ReadShard(
                    counter=self._ref.counter,
                    step=self._ref.step,
                    number=self._ref.number,
                    count=self._ref.count,
                    previous=self._previous,
                    digest=self._digest,
                    offset=self._position,
                    size=size,
                )
                self._store.read_shard(question, view)
            self._position += size
            return size

    def close(self) -> None:
        if not self.closed:
            self._store.forget_shard()
        super().close()


class KeptLease:
    """The lease, as ``LeaseKeeping``: the keeper decides.

    Attributes:
        asked_at: Step after which the keeper was asked last, which told it of the step.
    """

    def __init__(self, asking: AskingEnd, store: KeptStore) -> None:
        self._asking, self._store = asking, store
        self.asked_at: int | None = None

    @property
    def anchored(self) -> int:
        """Counter of the newest anchored checkpoint, 0 for none."""
        return self._store.anchored

    def must_stop(self, step: int, *, ahead: int, span: int, sealing: float | None) -> bool:
        """As ``LeaseKeeping.must_stop``."""
        question = Stop(step=step, ahead=ahead, span=span, sealing=sealing)
        answer, _ = self._asking.ask(question)
        self.asked_at = step
        return bool(answer["stop"])

    def end_training(self) -> NoReturn:
        """As ``LeaseKeeping.end_training``; the keeper knows why, and ends this process."""
        self._asking.ask(Stopped())
        raise RankLost("the keeper did not end this process", check="keeper")


class KeptMetrics(MetricGate):
    """The release policy is the keeper's: it gets what the recipe names, before rounding."""

    def __init__(self, policy: ReleasePolicy, asking: AskingEnd, lease: KeptLease) -> None:
        super().__init__(policy)
        self._asking, self._lease = asking, lease
        self._wanted = {*policy.metrics, _LOSS, *TOKEN_COUNTS}

    def offer(self, step: int, values: Mapping[str, float]) -> dict[str, float | None]:
        """Have the keeper release what may leave; this process is not told what did."""
        self._asking.ask(OfferMetrics(step=step, values=numbers_of(self.select(values))))
        return {}

    def select(self, values: Mapping[str, float]) -> dict[str, float]:
        """The measurements that the keeper has a use for."""
        renamed = {name.replace("/", "_"): value for name, value in values.items()}
        return {name: value for name, value in renamed.items() if name in self._wanted}

    def step(self, step: int, _values: Mapping[str, float]) -> None:
        """Tell the keeper's monitor that a step is done, unless it knows from another question."""
        if self._lease.asked_at != step:
            self._asking.ask(Step(step=step))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """The run as its workload sees it.

    Attributes:
        lock: The lock that the guest measured.
        recipe: Its recipe, as the ranks of this run train it.
        base: Folder that the recipe's paths start from: the copies of what the lock pins.
        memory: Folder that lies in memory and ends with the run.
        manifest: Where the keeper writes the manifest; this process cannot open it.
        run_id: 32 hex digits.
        resume: Checkpoint to continue from.
        sources: The opened records.
        places: Names that a script may know each of these datasets by, besides owner and name.
        model: The sealed base model; ``None`` where the recipe has another kind.
        secret: What this run alone has, derived for what the recipe draws; ``None`` without need.
        store: Checkpoints, and the model's files.
        lease: Says when to stop; ``None`` in a rank other than the first.
        metrics: Offers measurements; ``None`` in a rank other than the first.
        tally: Counts dropped output and refused calls.
        control: Asks for all else.
    """

    lock: Lock
    recipe: PhaseRecipe
    base: Path
    memory: Path
    manifest: Path
    run_id: str
    resume: CheckpointRef | None
    sources: tuple[Source, ...]
    places: tuple[frozenset[str], ...]
    model: KeptModel | None
    secret: DataKey | None
    store: KeptStore
    lease: KeptLease | None
    metrics: KeptMetrics | None
    tally: OutputTally
    control: AskingEnd

    def ask(self, question: WorkloadQuestion) -> dict[str, Any]:
        """Ask the keeper."""
        return self.control.ask(question)[0]


def _ref(name: str, previous: str) -> CheckpointRef:
    found = _NAME.fullmatch(name)
    if found is None:
        raise CheckpointRefused("not the name of a checkpoint", check="store", got=name)
    return CheckpointRef(counter=int(found[1]), step=int(found[2]), previous=previous)


def _require_memory(descriptor: int | None) -> SharedMemory:
    if descriptor is None:
        raise RankLost("the keeper passed no memory", check="keeper")
    return SharedMemory.receive(descriptor)


def _address(view: memoryview) -> int:
    """Where its first byte lies; 0 for memory that may only be read."""
    return 0 if view.readonly else ctypes.addressof(ctypes.c_char.from_buffer(view))


def _nothing() -> None:
    """Before a checkpoint of a run that has nothing to say then."""


def _not_here() -> CheckpointRefused:
    return CheckpointRefused("the keeper chose the checkpoint", check="store")
