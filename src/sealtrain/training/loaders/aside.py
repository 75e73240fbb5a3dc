"""Record batches decrypted by a forked process, handed over in shared memory without a copy.

Threads cannot hide decryption behind a reader that runs Python without a pause: every chunk of
16 KiB gives the interpreter lock back and waits milliseconds to get it again. A process has its
own. It is forked, so keys and opened datasets travel by inheritance and are never serialised; the
memory shared is anonymous and has no name in any file system.

Batches are laid into slots. A slot is free again when nothing refers to its batch any more. What
fits no free slot is decrypted in place by the reader, so neither side ever waits for memory.
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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from sealtrain.errors import DecryptionLost

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.sources import BatchedRecords

__all__ = ["AHEAD_BATCHES", "Aside"]

AHEAD_BATCHES = 4
# Fewer batches are decrypted before a process is up.
_WORTH_BATCHES = 64
_MAX_SLOT_BYTES = 64 << 20
_GRACE_SECONDS = 5.0


class _Sealed(Protocol):
    """Records that can be decrypted by one process and parsed by another."""

    batch_rows: tuple[int, ...]

    def batch(self, number: int) -> pa.RecordBatch: ...
    def batch_bytes(self, number: int) -> int: ...
    def decrypt_into(self, number: int, view: memoryview[Any]) -> tuple[int, int]: ...
    def parsed(self, number: int, data: pa.Buffer) -> pa.RecordBatch: ...


class Aside:
    """Decrypts record batches in the order asked for. One reader; not thread-safe."""

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

    def __init__(self, datasets: Sequence[Any], *, slots: int) -> None:
        """Fork the process.

        Args:
            datasets: Opened sealed datasets. What happens to them here later does not reach the
                process.
            slots: Batches that wait or are in use at a time.
        """
        self._datasets: tuple[_Sealed, ...] = tuple(datasets)
        largest = max(
            one.batch_bytes(number) for one in datasets for number in range(len(one.batch_rows))
        )
        self._slot_bytes = min(largest, _MAX_SLOT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        self._slot_bytes += mmap.PAGESIZE
        self._memory = mmap.mmap(-1, slots * self._slot_bytes)
        self._free: deque[int] = deque(range(slots))
        self._asked: deque[tuple[int, int, int | None]] = deque()
        self._connection, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(self._datasets, self._memory, self._slot_bytes, other, self._connection),
            name="sealtrain-aside",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child only reads files and decrypts.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def ask(self, dataset: int, number: int) -> None:
        """Have a record batch decrypted; ``answer`` gives batches in the order of questions."""
        slot = None
        if self._free and self._datasets[dataset].batch_bytes(number) <= self._slot_bytes:
            slot = self._free.popleft()
            try:
                self._connection.send((dataset, number, slot))
            except OSError:
                raise self._lost() from None
        self._asked.append((dataset, number, slot))

    def answer(self) -> pa.RecordBatch:
        """The batch asked for first of those not answered yet.

        Raises:
            SealRefused, RecordInvalid: As ``SealedDataset.batch``.
            DecryptionLost: The process ended without a word, as when memory runs out.
        """
        import pyarrow as pa

        dataset, number, slot = self._asked.popleft()
        if slot is None:
            return self._datasets[dataset].batch(number)
        try:
            place, failure = self._connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if failure is not None:
            raise _rebuilt(failure)
        begin, length = place
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + slot * self._slot_bytes
        lease = _Lease(self._memory, slot, self._free)
        return self._datasets[dataset].parsed(
            number, pa.foreign_buffer(start + begin, length, base=lease)
        )

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
    datasets: Sequence[_Sealed],
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
            dataset, number, slot = questions.recv()
            view = whole[slot * slot_bytes : (slot + 1) * slot_bytes]
            try:
                place = datasets[dataset].decrypt_into(number, view)
            except Exception as error:
                questions.send((None, _told(error)))
            else:
                questions.send((place, None))
    except (EOFError, OSError):
        return


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
