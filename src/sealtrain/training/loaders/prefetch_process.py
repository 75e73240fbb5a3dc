"""An iterator of record batches that runs in a forked process, a few batches ahead of its reader.

Threads cannot hide decryption behind a reader that runs Python without a pause: every chunk of
16 KiB gives the interpreter lock back and waits milliseconds to get it again. A process has its
own. It is forked, so keys and opened datasets travel by inheritance and are never serialised; the
memory shared is anonymous and has no name in any file system.

The process lays batches into slots of that memory, long ones in parts. A slot is free again when
nothing refers to its batch any more. A reader that keeps every batch gets copies once a single slot
is left, so neither side ever waits for memory. Few slots are used again and again: a fresh page of
shared memory costs more than filling it.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import DecryptionLost

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.sources import BatchedRecords

__all__ = ["PrefetchProcess"]

SLOTS: Final = 10
SLOT_BYTES: Final = 2 << 20
# Fewer batches are decrypted before a process is up.
_WORTH_BATCHES: Final = 64
_SLOT_MARGIN: Final = 64 << 10  # schema and padding around a batch
_GRACE_SECONDS: Final = 5.0


class PrefetchProcess:
    """Record batches of an iterator, in order; long ones come in parts. One reader."""

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
        make: Callable[[], Iterator[pa.RecordBatch]],
        *,
        slots: int = SLOTS,
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        """Fork the process.

        Args:
            make: Called in the process. A batch is copied before the next one is asked for, so the
                iterator may use the same memory again. What happens here later to the objects that
                it uses does not reach the process.
            slots: Batches that wait or are in use at a time, at least 2.
            slot_bytes: Memory of one of them. A batch that takes more is handed over in parts, a
                single row that does through a pipe.
        """
        self._slot_bytes = slot_bytes
        self._memory = mmap.mmap(-1, slots * slot_bytes)
        self._free: deque[int] = deque(range(slots))
        self._lent = 0  # slots that the process may fill
        self._connection, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(make, self._memory, slot_bytes, other, self._connection),
            name="sealtrain-prefetch",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child only reads files and decrypts.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches that have not been taken yet.

        Raises:
            DecryptionLost: The process ended without a word, as when memory runs out.
            SealtrainError: What the iterator raised.
        """
        while (batch := self._next()) is not None:
            yield batch

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        if self._connection.closed or sys.is_finalizing():  # then multiprocessing ends it
            return
        self._connection.close()
        self._process.terminate()
        self._process.join(_GRACE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _next(self) -> pa.RecordBatch | None:
        try:
            while self._free:
                self._connection.send(self._free.popleft())
                self._lent += 1
            kind, told = self._connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if kind == "over":
            return None
        if kind == "failed":
            raise _rebuilt(told)
        if kind == "sent":
            return _read(told)
        self._lent -= 1
        laid = self._laid(*told)
        # Of the last slot that the process could fill the reader gets a copy: it is free at once.
        return _read(laid if self._lent or self._free else laid.to_pybytes())

    def _laid(self, slot: int, length: int) -> pa.Buffer:
        """What lies in a slot; the slot is free once nothing refers to this."""
        import pyarrow as pa

        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + slot * self._slot_bytes
        return pa.foreign_buffer(place, length, base=_Lease(self._memory, slot, self._free))

    def _lost(self) -> DecryptionLost:
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


def _serve(
    make: Callable[[], Iterator[pa.RecordBatch]],
    memory: mmap.mmap,
    slot_bytes: int,
    reader: Connection,
    inherited: Connection,
) -> None:
    """The other process: fill slots until the iterator is over or the reader is gone."""
    inherited.close()  # or the end of the reader's process would never show here
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader decides when to stop
    threading.excepthook = lambda _: None
    whole = memoryview(memory)
    try:
        for part in _parts(make, slot_bytes):
            if isinstance(part, tuple):
                reader.send(part)
                continue
            slot = reader.recv()
            length = _fill(whole[slot * slot_bytes : (slot + 1) * slot_bytes], part)
            reader.send(("laid", (slot, length)))
    except (EOFError, OSError):
        return


def _parts(
    make: Callable[[], Iterator[pa.RecordBatch]], slot_bytes: int
) -> Iterator[pa.RecordBatch | tuple[str, Any]]:
    """Batches that fit a slot, and messages for all else that the reader is told."""
    try:
        for batch in make():
            yield from _cut(batch, slot_bytes)
    except Exception as error:
        yield "failed", _told(error)
    else:
        yield "over", None


def _cut(batch: pa.RecordBatch, slot_bytes: int) -> Iterator[pa.RecordBatch | tuple[str, bytes]]:
    import pyarrow as pa

    if pa.ipc.get_record_batch_size(batch) + _SLOT_MARGIN <= slot_bytes:
        yield batch
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half), slot_bytes)
        yield from _cut(batch.slice(half), slot_bytes)
    else:
        sink = pa.BufferOutputStream()
        _write(batch, sink)
        yield "sent", sink.getvalue().to_pybytes()


def _fill(view: memoryview[Any], batch: pa.RecordBatch) -> int:
    import pyarrow as pa

    sink = pa.FixedSizeBufferWriter(pa.py_buffer(view))
    _write(batch, sink)
    length: int = sink.tell()
    return length


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _read(data: pa.Buffer | bytes) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_next_batch()


def _told(error: Exception) -> bytes:
    try:
        return pickle.dumps((type(error), error.args, vars(error)))
    except Exception:  # what cannot be told stays here
        return pickle.dumps((RuntimeError, (type(error).__name__,), {}))


def _rebuilt(told: bytes) -> BaseException:
    kind, args, state = pickle.loads(told)  # noqa: S301  # from our own child
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error
