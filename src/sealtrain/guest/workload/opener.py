"""The keeper's side of the opener, which reads owners' record batches (``workload.opening``).

The opener is started before the brokers are asked, and gets the data keys of the datasets that the
recipe's code reads once its border is closed: not the run's key, nor the key of a sealed model.
What it answers counts as a stranger's word: a length within the slot, or one of the errors that a
record batch has. The keeper restates that error. It reads no memory that the opener writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from sealtrain.base.encoding import to_base64
from sealtrain.base.models import StrictModel
from sealtrain.base.processes import fork
from sealtrain.errors import SealtrainError, error_by_code
from sealtrain.guest.workload.fork import Guard, end_group, exit_status, join_group, strip
from sealtrain.guest.workload.frames import (
    BatchLaid,
    BatchWanted,
    BorderClosed,
    DataPlaces,
    DatasetsGiven,
    GivenDataset,
    RangeRead,
    RangeWanted,
    SlotsGiven,
    receive_frame,
    send_frame,
)
from sealtrain.guest.workload.new_interpreter import execute_anew
from sealtrain.guest.workload.opening import REFUSED, serve
from sealtrain.sealing.description import INDEX_NAME, shard_name
from sealtrain.sealing.places import FolderReader, Ranges
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.training.errors import DecryptionLost

if TYPE_CHECKING:
    from sealtrain.guest.datasets import FoundDataset
    from sealtrain.guest.sandbox.landlock import KernelBorder
    from sealtrain.recipe.importable import Importable
    from sealtrain.sealing.datakey import DataKey

_PR_SET_PDEATHSIG: Final = 1
_OPENING_SECONDS: Final = 15 * 60.0
_Answer = TypeVar("_Answer", bound=StrictModel)


class Opener:
    """A started opener."""

    def __init__(
        self,
        *,
        ranks: int,
        importable: Importable,
        live: Callable[[Importable, Sequence[socket.socket]], None] | None = None,
    ) -> None:
        """Start it; it waits.

        Args:
            ranks: How many ranks will ask for batches.
            importable: Modules of the packages that the lock pins.
            live: All that the process does with its ends; ``workload.opening`` when ``None``.
        """
        pairs = [socket.socketpair() for _ in range(1 + 2 * ranks)]
        ours, theirs = [own for own, _ in pairs], [other for _, other in pairs]
        keeper = os.getpid()
        self._pid = fork()
        if self._pid == 0:
            _live(keeper, lambda ends: (live or _begin)(importable, ends), ours, theirs)
        join_group(self._pid)
        for end in theirs:
            end.close()
        self._guard = Guard(self._pid)
        self._control, *lines = ours
        self._lines, self._stores = lines[::2], lines[1::2]
        self._asking = [threading.Lock() for _ in self._lines]
        self._looking = threading.Lock()
        self._status: int | None = None
        self._over = False
        self._far: Mapping[int, tuple[FolderReader, Collection[str]]] = {}
        self._store_error: SealtrainError | None = None
        self._held: BorderClosed | None = None
        self._names: list[tuple[str, str]] = []
        self._columns: frozenset[str] = frozenset()

    def open(
        self,
        datasets: Sequence[FoundDataset],
        keys: Mapping[str, DataKey],
        columns: Sequence[str],
        missing: Mapping[str, float | str] = MappingProxyType({}),
        *,
        seconds: float = _OPENING_SECONDS,
    ) -> None:
        """Have it close its border, then give it what it opens.

        Args:
            datasets: The run's; a sealed model among them is not opened.
            keys: By dataset id.
            columns: Names of the recipe.
            missing: What stands for a missing value, by the recipe's name of its column.
            seconds: Until it is ended without an answer: it reads what owners chose.

        Raises:
            DecryptionLost: It ended, or did not open what the keeper opened.
        """
        timer = threading.Timer(seconds, self.end)
        timer.daemon = True
        timer.start()
        try:
            self._open(datasets, keys, columns, missing)
        finally:
            timer.cancel()

    def _open(
        self,
        datasets: Sequence[FoundDataset],
        keys: Mapping[str, DataKey],
        columns: Sequence[str],
        missing: Mapping[str, float | str],
    ) -> None:
        found = [dataset for dataset in datasets if dataset.role != "model"]
        here = [
            str(dataset.folder.resolve()) for dataset in found if isinstance(dataset.folder, Path)
        ]
        self._tell(DataPlaces(places=tuple(here)))
        self._held = self._hear(self._control, BorderClosed)
        self._names = [(dataset.manifest.owner, dataset.manifest.name) for dataset in found]
        self._columns = frozenset(columns)
        self._far = {
            number: (dataset.folder, {INDEX_NAME, *map(shard_name, range(dataset.manifest.shards))})
            for number, dataset in enumerate(found)
            if not isinstance(dataset.folder, Path)
        }
        if self._far:
            for store in self._stores:
                threading.Thread(
                    target=self._serve_store, args=(store,), name="keeper-store", daemon=True
                ).start()
        given = [
            GivenDataset(
                folder=str(dataset.folder.resolve()) if isinstance(dataset.folder, Path) else None,
                key=to_base64(keys[dataset.manifest.dataset_id].reveal()),
                root=dataset.manifest.root,
                owner=dataset.manifest.owner,
                name=dataset.manifest.name,
                columns=dict(dataset.columns),
                missing={
                    name: None if isinstance(value, float) and isnan(value) else value
                    for name, value in missing.items()
                },
            )
            for dataset in found
        ]
        self._tell(DatasetsGiven(columns=tuple(columns), datasets=tuple(given)))
        self._hear(self._control, BorderClosed)

    def weaker(self, held: KernelBorder) -> KernelBorder:
        """How far the kernel enforces its border and another one.

        Args:
            held: The other's.
        """
        own = self._held
        if own is None:
            raise AssertionError("its border is not closed yet")
        return held.weaker(landlock=own.landlock, seccomp=own.seccomp, unbound=own.unbound)

    def take_slots(self, rank: int, descriptor: int, slot_bytes: int) -> None:
        """Give it the memory that a rank reads from.

        Args:
            descriptor: Of the memory; the caller closes it.
            slot_bytes: Of one slot.
        """
        self._ask(rank, SlotsGiven(slot_bytes=slot_bytes), descriptor)

    def lay(self, rank: int, *, dataset: int, batch: int, slot: int, slot_bytes: int) -> int:
        """Have it lay a batch into a slot of a rank; returns the length.

        Raises:
            DataInvalid, SealRefused, LimitExceeded: The batch does not open.
            StorageUnreachable: Its store does not answer.
            DecryptionLost: The process ended, or said something else.
        """
        answer = self._ask(rank, BatchWanted(dataset=dataset, batch=batch, slot=slot))
        if answer.refused is None and 0 < answer.length <= slot_bytes:
            return answer.length
        raise self._refuse(answer, dataset, batch)

    @property
    def status(self) -> int | None:
        """Its exit status as ``Popen.returncode``; ``None`` while it lives."""
        with self._looking:
            if self._status is None:
                try:
                    self._status = exit_status(self._pid)
                except ChildProcessError:  # it was ended with what the workload left
                    self._status = -signal.SIGKILL
            return self._status

    def end(self) -> None:
        """Kill it and all that it forked; no answer is waited for any more. Idempotent."""
        status = self.status
        with self._looking:
            if not self._over:
                self._over = True
                ended = end_group(self._pid)
                self._guard.end()
                self._status = ended if status is None else status
        for end in (self._control, *self._lines, *self._stores):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the lines, which no thread uses any more. Idempotent."""
        for end in (self._control, *self._lines, *self._stores):
            end.close()

    def _ask(self, rank: int, question: StrictModel, descriptor: int | None = None) -> BatchLaid:
        line = self._lines[rank]
        with self._asking[rank]:
            try:
                send_frame(line, question, descriptor)
            except OSError as error:
                raise self.loss_error() from error
            return self._hear(line, BatchLaid)

    def _tell(self, frame: StrictModel) -> None:
        try:
            send_frame(self._control, frame)
        except OSError as error:
            raise self.loss_error() from error

    def _hear(self, line: socket.socket, kind: type[_Answer]) -> _Answer:
        try:
            answer, _ = receive_frame(line, kind)
        except (EOFError, OSError, SealtrainError) as error:
            raise self.loss_error() from error
        if answer is None:
            raise self.loss_error()
        return answer

    def _refuse(self, answer: BatchLaid, dataset: int, batch: int) -> SealtrainError:
        kind = SealtrainError if answer.refused is None else error_by_code(answer.refused)
        if not issubclass(kind, REFUSED):
            return self.loss_error()
        if self._store_error is not None and kind is type(self._store_error):
            return self._store_error
        owner, name = self._names[dataset]
        return kind(
            f"record batch {batch} of dataset {name} does not open",
            check="record batch",
            owner=owner,
            dataset=name,
            column=answer.column if answer.column in self._columns else None,
            hint="have its owner look at the sealed data, and seal it anew",
        )

    def loss_error(self) -> DecryptionLost:
        """It ended, or broke the rules of its lines."""
        return DecryptionLost(
            "the process that opens the records is gone",
            check="opener",
            got=f"status {self.status}",
            hint="see whether the machine ran out of memory, then resume the run",
        )

    def _serve_store(self, line: socket.socket) -> None:
        """Read ranges of stores elsewhere for it; any other question ends its line."""
        files: dict[tuple[int, str], Ranges] = {}
        try:
            while (wanted := receive_frame(line, RangeWanted)[0]) is not None:
                try:
                    size, content = self._range(wanted, files)
                except StorageUnreachable as error:
                    self._store_error = error
                    send_frame(line, RangeRead(size=None))
                    continue
                send_frame(line, RangeRead(size=size))
                line.sendall(content)
        except (EOFError, OSError, LookupError, ValueError, SealtrainError):
            return
        finally:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _range(
        self, wanted: RangeWanted, files: dict[tuple[int, str], Ranges]
    ) -> tuple[int, memoryview]:
        """A size and nothing, or a length and bytes. Only of files of its datasets."""
        place = wanted.dataset, wanted.file
        folder, names = self._far[wanted.dataset]
        if wanted.file not in names or wanted.offset > (wanted.size or 0):
            raise ValueError("no file of its datasets")
        if place not in files:
            files[place] = folder.open(wanted.file, size=wanted.size)
        if wanted.size is None:
            return files[place].size, memoryview(b"")
        data = memoryview(bytearray(wanted.length))
        got = files[place].read_into(wanted.offset, data)
        return got, data[:got]


def _live(
    keeper: int,
    live: Callable[[Sequence[socket.socket]], None],
    others: Sequence[socket.socket],
    ends: Sequence[socket.socket],
) -> None:
    """The opener's whole life."""
    status = 1
    try:
        join_group()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the keeper ends it
        signal.set_wakeup_fd(-1)
        for end in others:
            end.detach()
        strip({end.fileno() for end in ends})
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:  # or it ended before the kernel was asked
            live(ends)
            status = 0
    finally:
        os._exit(status)


def _begin(importable: Importable, ends: Sequence[socket.socket]) -> None:
    """In an interpreter that begins anew; where training libraries are loaded, as it is.

    No keeper of a real run loads them (``guest.life``).
    """
    if "torch" in sys.modules:
        control, *lines = ends
        serve(control, list(zip(lines[::2], lines[1::2], strict=True)))
        return
    numbers = [end.fileno() for end in ends]
    execute_anew(
        "sealtrain.guest.workload.opening",
        {"packages": importable.listed, "ends": numbers},
        inherited=(0, 1, 2, *numbers),
    )
