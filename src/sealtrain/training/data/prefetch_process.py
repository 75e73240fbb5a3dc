"""Record batches opened by a forked process, a few ahead of their reader.

Threads cannot hide decryption behind a reader that runs Python without a pause: every chunk of
16 KiB gives the interpreter lock back and waits milliseconds to get it again. A process has its
own. It is forked, so keys and opened datasets travel by inheritance and are never serialised; the
memory shared is anonymous and has no name in any file system.

The process lays batches into slots of that memory. A slot is free again when nothing refers to its
batch any more. A reader that keeps every batch gets copies once a single slot is left, so neither
side ever waits for memory.

Where there is more to do with a batch, the process does it, unless its reader would have to wait.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sealtrain.base.processes import answer_of, pack_error
from sealtrain.training.errors import DecryptionLost

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.data.sources import BatchedRecords

    Message = tuple[str, Any, bool]  # what it is, what it says, whether the batch is finished

Item = TypeVar("Item")

SLOTS: Final = 64
_MAX_SLOT_BYTES: Final = 64 << 20
_SLOT_MARGIN: Final = 64 << 10  # schema and padding around a batch
# Fewer batches are decrypted before a process is up.
_WORTH_BATCHES: Final = 64
_GRACE_SECONDS: Final = 5.0


class PrefetchProcess(Generic[Item]):
    """The record batches of items, in order. One reader; not thread-safe."""

    @staticmethod
    def helps(datasets: Sequence[BatchedRecords]) -> bool:
        """Whether a process of its own pays.

        It does on a system that forks, with a second processor, for more than a handful of batches
        that lie sealed on this machine.
        """
        return (
            sys.platform == "linux"
            and len(os.sched_getaffinity(0)) > 1
            and not multiprocessing.current_process().daemon
            and sum(len(dataset.batch_rows) for dataset in datasets) >= _WORTH_BATCHES
            and all(getattr(dataset, "local", False) for dataset in datasets)
        )

    def __init__(
        self,
        items: Iterator[Item],
        open_batch: Callable[[Item], pa.RecordBatch],
        *,
        largest: int,
        finish: Callable[[Item, pa.RecordBatch], pa.RecordBatch] | None = None,
        slots: int = SLOTS,
    ) -> None:
        """Fork the process.

        Args:
            items: What to open, in order. The process iterates a copy of its own, and neither sees
                what happens on the other side to this or to anything that the functions use.
            open_batch: Called in the process for each item.
            largest: Bytes of a batch, as a rule at most; one that is longer takes longer.
            finish: What is left to do with a batch; called in the process, except for items that
                the reader waits for.
            slots: Batches that wait or are in use at a time, at least 2.
        """
        # Shuffled and in other types, a batch may take some more than it did when it was sealed.
        room = min(largest + largest // 8, _MAX_SLOT_BYTES) + 2 * _SLOT_MARGIN
        self._slot_bytes = -(-room // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, slots * self._slot_bytes)
        self._free: deque[int] = deque(range(slots))
        self._lent = 0  # slots that the process may fill
        self._connection, other = multiprocessing.Pipe()
        filling = _Filling(self._memory, self._slot_bytes, slots, other)
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(filling.messages(items, open_batch, finish), other, self._connection),
            name="sealtrain-prefetch",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child only reads files and decrypts.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()
        # Before multiprocessing asks it to end by a signal that it ignores, and waits.
        self._ended = Finalize(self, self._process.kill, exitpriority=0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches that were not taken yet, finished or not. Raises as ``take``."""
        while (answer := self._answer()) is not None:
            yield answer[0]

    def take(self) -> tuple[pa.RecordBatch, bool]:
        """The next batch, and whether it is finished.

        It keeps a slot for as long as anything refers to it.

        Raises:
            DecryptionLost: The process ended without a word, as when memory runs out.
            SealtrainError: What opening the batch raised.
            IndexError: No batch is left.
        """
        answer = self._answer()
        if answer is None:
            raise IndexError("every batch was taken")
        return answer

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        if self._connection.closed or sys.is_finalizing():  # then multiprocessing ends it
            return
        self._connection.close()
        self._ended()  # it holds nothing that has to be left in order
        self._process.join()

    def _answer(self) -> tuple[pa.RecordBatch, bool] | None:
        """As ``take``, but ``None`` where none is left."""
        # A process that sent its last word is gone, and its words are still to be read.
        with suppress(OSError):
            while self._free:
                self._connection.send(self._free[0])
                self._free.popleft()
                self._lent += 1
        try:
            kind, told, finished = self._connection.recv()
        except (EOFError, OSError):
            raise self._lose() from None
        if kind == "over":
            return None
        if kind == "failed":
            raise answer_of(told)
        if kind == "sent":
            return _read(told), finished
        self._lent -= 1
        data = self._read_slot(*told)
        # Of the last slot that the process could fill the reader gets a copy, too: it is free then.
        starving = not self._lent and not self._free
        return _read(_copy(data) if starving else data), finished

    def _read_slot(self, slot: int, length: int) -> pa.Buffer:
        """What lies in a slot; the slot is free once nothing refers to this."""
        import pyarrow as pa

        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + slot * self._slot_bytes
        return pa.foreign_buffer(place, length, base=_Lease(self._memory, slot, self._free))

    def _lose(self) -> DecryptionLost:
        self._process.join(_GRACE_SECONDS)
        code = self._process.exitcode
        named = code is not None and code < 0
        return DecryptionLost(
            "the process that decrypts ahead is gone",
            check="loader",
            got=f"signal {signal.Signals(-code).name}" if named and code else f"status {code}",
            hint="see whether the machine ran out of memory, then resume the run",
        )


class _Lease:
    """Keeps shared memory mapped, and frees a slot once no buffer refers to it."""

    __slots__ = ("_free", "_memory", "_slot")

    def __init__(self, memory: mmap.mmap, slot: int, free: deque[int]) -> None:
        self._memory = memory
        self._slot = slot
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._slot)


class _Filling:
    """The process's side of the slots."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int, slots: int, reader: Connection) -> None:
        self._memory, self._slot_bytes, self._slots = memory, slot_bytes, slots
        self._reader = reader
        self._free: deque[int] = deque()

    def messages(
        self,
        items: Iterator[Item],
        open_batch: Callable[[Item], pa.RecordBatch],
        finish: Callable[[Item, pa.RecordBatch], pa.RecordBatch] | None,
    ) -> Iterator[Message]:
        """One for each item, whose batch is laid into a slot if it fits, and one that ends them."""
        try:
            for item in items:
                batch = open_batch(item)
                finished = finish is not None and self._ahead()
                if finish is not None and finished:
                    batch = finish(item, batch)
                yield self._hand_over(batch, finished)
        except Exception as error:
            yield "failed", pack_error(error), False
        else:
            yield "over", None, False

    def _ahead(self) -> bool:
        """Whether the reader has a quarter of all slots to work on."""
        while self._reader.poll():
            self._free.append(self._reader.recv())
        return 4 * len(self._free) <= 3 * self._slots

    def _hand_over(self, batch: pa.RecordBatch, finished: bool) -> Message:
        import pyarrow as pa

        if pa.ipc.get_record_batch_size(batch) + _SLOT_MARGIN > self._slot_bytes:
            sink = pa.BufferOutputStream()
            _write(batch, sink)
            return "sent", sink.getvalue().to_pybytes(), finished
        slot = self._free.popleft() if self._free else self._reader.recv()
        start = slot * self._slot_bytes
        view = memoryview(self._memory)[start : start + self._slot_bytes]
        laid = pa.FixedSizeBufferWriter(pa.py_buffer(view))
        _write(batch, laid)
        return "laid", (slot, laid.tell()), finished


def _serve(messages: Iterator[Message], reader: Connection, inherited: Connection) -> None:
    """The other process: work until nothing is left to do or the reader is gone."""
    inherited.close()  # or the end of the reader's process would never show here
    for number in (signal.SIGTERM, signal.SIGINT):  # a whole process group gets them
        signal.signal(number, signal.SIG_IGN)  # the reader decides when to stop
    threading.excepthook = lambda _: None
    try:
        for message in messages:
            reader.send(message)
    except (EOFError, OSError):
        return


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _read(data: pa.Buffer | bytes) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_next_batch()


def _copy(data: pa.Buffer) -> pa.Buffer:
    """The same bytes in memory of Arrow's pool, which is used again and again."""
    import pyarrow as pa

    room = pa.allocate_buffer(data.size)
    with memoryview(room).cast("B") as target, memoryview(data).cast("B") as source:
        target[:] = source
    return room
