"""The opener: the process that decrypts record batches and reads what is in them.

An owner's records are bytes that the owner chose. Hashes, ciphers and the reader of Arrow handle
them here, in a process that holds the data keys of the run and nothing else: its interpreter began
anew before there were keys, it has no network, no program, no capability and no file but sealed
data and libraries, and it ends with its keeper. It lays each batch that the keeper asks for into a
slot of the memory that a rank reads.

1. It closes its border and says so.
2. It gets keys, and opens the datasets under their signed roots.
3. For each rank a thread of its own lays batches, in the order of the questions.

A store elsewhere is read by the keeper, which has the connection: the opener asks it for ranges of
ciphertext. See spec/workload-channel.md §5.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import distribution
from math import nan
from pathlib import Path
from typing import Any, Final, NoReturn

from sealtrain.base.distributions import CORE
from sealtrain.base.encoding import from_base64
from sealtrain.base.version import own_folders
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.guest.sandbox.imports import import_only_pinned
from sealtrain.guest.sandbox.landlock import leave_no_memory, other_threads, restrict, unbound
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.sandbox.users import give_up_capabilities
from sealtrain.guest.workload.frames import (
    MAX_RANGE_BYTES,
    BatchLaid,
    BatchWanted,
    BorderClosed,
    DataPlaces,
    DatasetsGiven,
    GivenDataset,
    RangeRead,
    RangeWanted,
    SlotsGiven,
    exactly_into,
    receive_frame,
    send_frame,
)
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.recipe.importable import Importable
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import SchemaMismatch, SealRefused
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.training.data.columns import Projection
from sealtrain.training.data.sources import Source

REFUSED: Final = (DataInvalid, LimitExceeded, SealRefused, StorageUnreachable)
"""What a record batch may be refused with."""
SLOT_MARGIN: Final = 64 << 10
"""Bytes of schema and padding around a batch."""
_MACHINE: Final = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo")

_READ_ANY_FILE: Final = 1 << 2
"""CAP_DAC_READ_SEARCH: sealed data may be another user's; Landlock rules which files it reads."""

RankLines = tuple[socket.socket, socket.socket]
"""A rank's connection for batches, and one for ranges of a store elsewhere."""


class SlotFiller:
    """Lays record batches into slots. Thread-safe."""

    def __init__(self, sources: Sequence[Source], columns: Sequence[str]) -> None:
        """Look at the schemas.

        Args:
            sources: The opened records.
            columns: Names of the recipe.
        """
        self._projections = [project_columns(source, columns) for source in sources]

    def lay(
        self, memory: SharedMemory, slot_bytes: int, *, dataset: int, batch: int, slot: int
    ) -> int:
        """Lay a batch; returns its length.

        Raises:
            SealtrainError: As ``Projection.read``.
            LimitExceeded: It is longer than its dataset says.
        """
        import pyarrow as pa

        projection = self._projections[dataset]
        if projection is None:
            raise SchemaMismatch("the recipe's columns are missing", check="columns")
        read = projection.read(0, batch)
        length = pa.ipc.get_record_batch_size(read) + SLOT_MARGIN
        if length > slot_bytes:
            raise LimitExceeded("a record batch is longer than its dataset says", got=length)
        start = slot * slot_bytes
        laid = pa.FixedSizeBufferWriter(pa.py_buffer(memory.view[start : start + slot_bytes]))
        with pa.ipc.new_stream(laid, read.schema) as stream:
            stream.write_batch(read)
        return int(laid.tell())


def project_columns(source: Source, columns: Sequence[str]) -> Projection | None:
    """The recipe's columns of a dataset; ``None`` where it does not have them."""
    try:
        return Projection([source], columns)
    except SchemaMismatch:
        return None


def begin_anew(given: dict[str, Any]) -> NoReturn:
    """The opener in its own interpreter, to its end.

    Args:
        given: What ``guest.workload.opener`` wrote.
    """
    status = 1
    try:
        leave_no_memory()
        packages = {name: distribution(name) for name in given["packages"]}
        import_only_pinned(Importable(packages, given["packages"]))
        control, *lines = [socket.socket(fileno=number) for number in given["ends"]]
        serve(control, list(zip(lines[::2], lines[1::2], strict=True)))
        status = 0
    finally:
        os._exit(status)


def serve(control: socket.socket, lines: Sequence[RankLines]) -> None:
    """All of it, until the keeper closes its ends.

    Args:
        control: Where places and keys come from.
        lines: Of each rank.
    """
    import numpy  # noqa: F401  # before the border closes
    import pyarrow as pa

    give_up_capabilities(_READ_ANY_FILE)
    pa.set_cpu_count(1)
    places, _ = receive_frame(control, DataPlaces)
    if places is None:
        return  # the run ended before it had keys
    held = close_border([Path(place) for place in places.places])
    send_frame(control, held)
    given, _ = receive_frame(control, DatasetsGiven)
    if given is None:
        return
    stores = _Stores(lines[0][1])
    sources = [
        _open_source(number, dataset, stores) for number, dataset in enumerate(given.datasets)
    ]
    filler = SlotFiller(sources, given.columns)
    del given
    send_frame(control, held)
    threads = [
        threading.Thread(target=_serve_rank, args=(line, store, filler, stores), daemon=True)
        for line, store in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def close_border(places: Sequence[Path]) -> BorderClosed:
    """Close the border for good: libraries and sealed data are read, nothing else is reached.

    Args:
        places: Folders of sealed data.
    """
    older = other_threads()
    names = [
        sys.prefix,
        sys.base_prefix,
        *(entry for entry in sys.path if entry.startswith("/")),
        *map(str, own_folders([CORE]).values()),
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
        *_MACHINE,
        *(str(file) for place in places for file in (place, *_list_linked(place))),
    ]
    readable = [Path(os.path.realpath(name)) for name in dict.fromkeys(names) if name]
    landlock = restrict((), connect=(), readable=[path for path in readable if path.exists()])
    seccomp = refuse_calls(datagrams=False, network=False)
    return BorderClosed(landlock=landlock, seccomp=seccomp, unbound=unbound(landlock, older))


def _list_linked(folder: Path) -> list[Path]:
    """Files of a folder that lie elsewhere; a link to a folder would show all that is in it."""
    return [file for file in folder.iterdir() if file.is_symlink() and file.is_file()]


def _open_source(number: int, given: GivenDataset, stores: _Stores) -> Source:
    folder = _FarFolder(number, stores) if given.folder is None else Path(given.folder)
    key = DataKey(from_base64(given.key))
    return Source(
        role="train",
        owner=given.owner,
        name=given.name,
        weight=1.0,
        dataset=SealedDataset.open(folder, key, root=given.root),
        columns=given.columns,
        missing={name: nan if value is None else value for name, value in given.missing.items()},
    )


def _serve_rank(
    line: socket.socket, store: socket.socket, filler: SlotFiller, stores: _Stores
) -> None:
    """Lay batches for a rank. Whatever it cannot answer ends the process, and so the run."""
    try:
        stores.use(store)
        _lay_all(line, filler)
    except BaseException:
        os._exit(1)


def _lay_all(line: socket.socket, filler: SlotFiller) -> None:
    given, descriptor = receive_frame(line, SlotsGiven, descriptors=1)
    if given is None or descriptor is None:
        return
    memory, slot_bytes = SharedMemory.receive(descriptor), given.slot_bytes
    send_frame(line, BatchLaid())
    while True:
        wanted, _ = receive_frame(line, BatchWanted)
        if wanted is None:
            return
        try:
            length = filler.lay(
                memory, slot_bytes, dataset=wanted.dataset, batch=wanted.batch, slot=wanted.slot
            )
        except REFUSED as error:
            send_frame(line, BatchLaid(refused=error.code, column=error.column))
        else:
            send_frame(line, BatchLaid(length=length))


class _Stores:
    """Asks the keeper for ciphertext that lies elsewhere, over the line of the calling thread."""

    def __init__(self, line: socket.socket) -> None:
        self._of_thread = threading.local()
        self.use(line)

    def use(self, line: socket.socket) -> None:
        """Ask over this line in the calling thread."""
        self._of_thread.line = line

    def ask(self, question: RangeWanted, into: memoryview | None = None) -> int:
        """A size, or how many bytes were read.

        Raises:
            StorageUnreachable: The keeper could not read it.
        """
        line: socket.socket = self._of_thread.line
        send_frame(line, question)
        answer, _ = receive_frame(line, RangeRead)
        if answer is None or answer.size is None:
            raise StorageUnreachable("the store does not answer", check="store")
        if into is not None:
            exactly_into(line, into[: answer.size])
        return answer.size


class _FarFolder:
    """A sealed folder elsewhere, as ``FolderReader``."""

    name = "elsewhere"

    def __init__(self, dataset: int, stores: _Stores) -> None:
        self._dataset, self._stores = dataset, stores

    def open(self, name: str, *, size: int | None = None) -> _FarFile:
        """A file, by ranges."""
        if size is None:
            size = self._stores.ask(RangeWanted(dataset=self._dataset, file=name))
        return _FarFile(self._dataset, name, size, self._stores)

    def read(self, name: str, max_bytes: int) -> bytes:
        """A whole small file."""
        file = self.open(name)
        if file.size > max_bytes:
            raise LimitExceeded("a file of a store is too long", got=file.size)
        data = bytearray(file.size)
        return bytes(data[: file.read_into(0, memoryview(data))])

    def close(self) -> None:
        """The keeper has the connection."""


class _FarFile:
    """A file elsewhere, as ``Ranges``."""

    def __init__(self, dataset: int, name: str, size: int, stores: _Stores) -> None:
        self._dataset, self._name, self._stores = dataset, name, stores
        self.size = size

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        """Fill ``view`` from ``offset``."""
        done = 0
        while done < len(view):
            part = view[done : done + MAX_RANGE_BYTES]
            wanted = RangeWanted(
                dataset=self._dataset,
                file=self._name,
                size=self.size,
                offset=offset + done,
                length=len(part),
            )
            got = self._stores.ask(wanted, part)
            done += got
            if got < len(part):
                break
        return done

    def close(self) -> None:
        """The keeper has what was kept for it."""
