"""Record batches prepared by a forked process, handed over in shared memory.

Threads cannot hide decryption behind a reader that runs Python without a pause: every chunk of
16 KiB gives the interpreter lock back and waits milliseconds to get it again. A process has its
own. It is forked, so keys and opened datasets travel by inheritance and are never serialised; the
memory shared is anonymous and has no name in any file system.

Batches are laid into slots. A slot is free again when nothing refers to its batch any more. What
finds no free slot is prepared in place by the reader, so neither side ever waits for memory.
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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sealtrain.errors import DecryptionLost

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.sources import BatchedRecords

__all__ = ["AHEAD_BATCHES", "AHEAD_BYTES", "Aside"]

Question = TypeVar("Question")

AHEAD_BATCHES = 4
AHEAD_BYTES = 64 << 20
# Fewer batches are decrypted before a process is up.
_WORTH_BATCHES = 64
_MAX_SLOT_BYTES = 64 << 20
_SLOT_MARGIN = 64 << 10  # schema and padding around a batch
_GRACE_SECONDS = 5.0


class Aside(Generic[Question]):
    """Prepares record batches in the order asked for. One reader; not thread-safe."""

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
            and sum(len(one.batch_rows) for one in datasets) >= _WORTH_BATCHES
            and all(getattr(one, "local", False) for one in datasets)
        )

    def __init__(
        self, prepare: Callable[[Question], pa.RecordBatch], *, slots: int, largest: int
    ) -> None:
        """Fork the process.

        Args:
            prepare: What the process does with each question; its answers are copied, so it may
                use the same memory again. What happens here later to what it uses does not reach
                the process.
            slots: Batches that wait or are in use at a time.
            largest: Bytes of a batch, as a rule at most; one that is longer takes longer.
        """
        self._prepare = prepare
        self._slot_bytes = min(largest, _MAX_SLOT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        self._slot_bytes += _SLOT_MARGIN
        self._memory = mmap.mmap(-1, slots * self._slot_bytes)
        self._free: deque[int] = deque(range(slots))
        self._asked: deque[tuple[Question, int | None]] = deque()
        self._connection, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(prepare, self._memory, self._slot_bytes, other, self._connection),
            name="sealtrain-aside",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child only reads files and decrypts.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def ask(self, question: Question) -> None:
        """Have a batch prepared; ``answer`` gives batches in the order of questions."""
        slot = None
        if self._free:
            slot = self._free.pop()
            try:
                self._connection.send((question, slot))
            except OSError:
                raise self._lost() from None
        self._asked.append((question, slot))

    def answer(self) -> pa.RecordBatch:
        """The batch asked for first of those not answered yet.

        Raises:
            DecryptionLost: The process ended without a word, as when memory runs out.
            SealtrainError: What preparing the batch raised.
        """
        import pyarrow as pa

        question, slot = self._asked.popleft()
        if slot is None:
            return _read(_written(self._prepare(question)))
        try:
            kind, told = self._connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if kind == "failed":
            raise _rebuilt(told)
        lease = _Lease(self._memory, slot, self._free)  # frees the slot at once if it was not used
        if kind == "sent":
            return _read(told)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + slot * self._slot_bytes
        return _read(pa.foreign_buffer(start, told, base=lease))

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
    prepare: Callable[[Question], pa.RecordBatch],
    memory: mmap.mmap,
    slot_bytes: int,
    questions: Connection,
    inherited: Connection,
) -> None:
    """The other process: answer until the reader is gone."""
    inherited.close()  # or the end of the reader's process would never show here
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader decides when to stop
    threading.excepthook = lambda _: None
    whole = memoryview(memory)
    try:
        while True:
            question, slot = questions.recv()
            view = whole[slot * slot_bytes : (slot + 1) * slot_bytes]
            try:
                answer = _handed_over(prepare(question), view)
            except Exception as error:
                answer = "failed", _told(error)
            questions.send(answer)
    except (EOFError, OSError):
        return


def _handed_over(batch: pa.RecordBatch, view: memoryview[Any]) -> tuple[str, int | bytes]:
    """Lay a batch into a slot; what is too long goes through the connection."""
    import pyarrow as pa

    if pa.ipc.get_record_batch_size(batch) + _SLOT_MARGIN > len(view):
        return "sent", _written(batch).to_pybytes()
    laid = pa.FixedSizeBufferWriter(pa.py_buffer(view))
    _write(batch, laid)
    return "laid", laid.tell()


def _written(batch: pa.RecordBatch) -> pa.Buffer:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    _write(batch, sink)
    return sink.getvalue()


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
