"""An opened dataset: batches and files, decrypted on demand, checked against the signed root.

Checks, in order:
 1. The index opens under the data key (as any sealed file), every group under the root it claims.
 2. The dataset root over that index and the shards it lists is the signed one (``RootMismatch``).
 3. A shard, when it is opened, is there and has its size (``FileTruncated``), is the file of this
    dataset and position (``WrongContext``) and has the root the index names (``RootMismatch``).
 4. Each time it is read, a record batch is whole (``FileTruncated``), under the root
    (``RootMismatch``) and valid Arrow in all its offsets: one owner's data must not be able to read
    memory that holds another's (``RecordInvalid``).
"""

from __future__ import annotations

import hmac
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.base.encoding import from_hex
from sealtrain.errors import DataInvalid, FormatUnknown, LimitExceeded
from sealtrain.sealing.commitments import COMMITMENT_BYTES, Committer
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import INDEX_NAME, dataset_root
from sealtrain.sealing.errors import (
    FileTruncated,
    RecordInvalid,
    RootMismatch,
    SchemaMismatch,
    SealRefused,
    WrongContext,
)
from sealtrain.sealing.file import open_file as open_sealed_file
from sealtrain.sealing.index import MAX_INDEX_BYTES, Batch, Index, schema_digest_of
from sealtrain.sealing.places import Folder, file_in
from sealtrain.sealing.reader import SealedFile
from sealtrain.sealing.recordbatch import parse_record_batch

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DESCRIPTORS: Final = 256
KEPT_BYTES: Final = 128 << 30
"""Size of the shards that stay open, in bytes. Open, a shard takes a third of a thousandth of its
size: the hashes of its groups, and the marks of those that were read."""


class SealedDataset:
    """Record batches and files of one sealed dataset. Thread-safe; use as a context manager.

    Memory is 28 bytes a record batch, and what the shards take that are kept open: those that were
    read last, up to a bound. A shard that is read again later is opened anew, with every check.

    Attributes:
        dataset_id: 32 hex digits.
        name: Name the owner gave it.
        owner_id: 64 hex digits.
        owner_name: The owner's name.
        root: The signed root it was opened under, 64 hex digits.
        layout: ``arrow`` or ``raw``.
        records: Number of records, ``None`` for raw files.
        tokens: Number of tokens, where the owner counted them.
        batch_rows: Rows of each record batch over all shards.
        largest_batch: Bytes of the longest record batch.
    """

    def __init__(
        self,
        folder: Folder,
        data_key: DataKey,
        index: Index,
        root: str,
        *,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Use ``open``, which makes the checks this class relies on."""
        self._folder = folder
        self._data_key = data_key
        self._index = index
        self._lock = threading.Lock()
        self._files: OrderedDict[int, SealedFile] = OrderedDict()
        self._kept_bytes, self._room = 0, kept_bytes
        self._all_kept = sum(shard.info.size for shard in index.shards) <= kept_bytes
        self._closed = False
        self.dataset_id, self.name = index.dataset_id, index.name
        self.owner_id, self.owner_name = index.owner_id, index.owner_name
        self.root, self.layout = root, index.layout
        self.records, self.tokens = index.records, index.tokens
        # Numbers and not objects: there are a hundred thousand batches in 100 GB.
        self._batch_ends = array("q", accumulate(len(shard.batches) for shard in index.shards))
        self.batch_rows = array("I")
        self.largest_batch = 0
        for shard in index.shards:
            if len(shard.batches):
                table = shard.batches.columns()
                self.batch_rows.frombytes(table["rows"].astype("=u4").tobytes())
                self.largest_batch = max(self.largest_batch, int(table["length"].max()))
        self._row_ends = array("q", accumulate(self.batch_rows))
        self.schema = _schema(index)

    @classmethod
    def open(
        cls, folder: Folder, data_key: DataKey, *, root: str, kept_bytes: int = KEPT_BYTES
    ) -> Self:
        """Open a dataset under the root its owner signed.

        Args:
            folder: ``X.sealed``, here or elsewhere.
            data_key: Key of the dataset.
            root: From the verified dataset manifest, 64 hex digits.
            kept_bytes: Size of the shards to keep open, in bytes; one is kept in any case.

        Raises:
            NotSealed, LimitExceeded, SealRefused: The index does not open.
            RootMismatch: The folder holds another version of the dataset.
            StorageUnreachable: It lies elsewhere and does not answer.
        """
        index = read_index(folder, data_key, root=root)
        return cls(folder, data_key, index, root, kept_bytes=kept_bytes)

    @property
    def num_rows(self) -> int:
        """Records over all batches; 0 for raw files."""
        return self._row_ends[-1] if self._row_ends else 0

    @property
    def num_batches(self) -> int:
        """Record batches over all shards."""
        return len(self.batch_rows)

    @property
    def open_shards(self) -> int:
        """Shards that are kept open now."""
        return len(self._files)

    @property
    def local(self) -> bool:
        """Whether a forked process can read it too: files of this machine, no connection."""
        return isinstance(self._folder, Path)

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names that ``open_file`` takes: original files, or Arrow shards."""
        return tuple(shard.file for shard in self._index.shards if shard.kind != "commitments")

    def batch(self, number: int) -> pa.RecordBatch:
        """Decrypt one record batch into Arrow pool memory.

        Args:
            number: 0 … ``num_batches`` - 1.

        Raises:
            SealRefused: The shard does not open, or its store gives other bytes than were signed.
            RecordInvalid: The batch is no valid Arrow data.
        """
        shard, place = self._place(number)
        try:
            data = self._shard(shard).read_buffer_at(place.offset, place.length)
            if data.size != place.length:
                raise FileTruncated(
                    "a record batch lies behind the end of its shard",
                    check="record batch",
                    got=f"{data.size} bytes",
                    expected=f"{place.length} bytes",
                )
            return parse_record_batch(data, self.schema, place.rows)
        except (SealRefused, RecordInvalid) as error:
            name = self._index.shards[shard].info.name
            raise error.with_message(
                f"record batch {number} of dataset {self.name}, in {name}: {error.message}",
                owner=self.owner_name,
            ) from None

    def locate(self, row: int) -> tuple[int, int]:
        """Batch that holds a row, and the row's position in it.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= row < self.num_rows:
            raise IndexError("row outside the dataset")
        number = bisect_right(self._row_ends, row)
        return number, row - (self._row_ends[number] - self.batch_rows[number])

    def open_file(self, name: str) -> SealedFile:
        """Open one of ``file_names`` as a seekable, read-only file; the caller closes it.

        Raises:
            FormatUnknown: There is no file of this name.
            SealRefused: It does not open.
        """
        for number, shard in enumerate(self._index.shards):
            if shard.file == name and shard.kind != "commitments":
                return self._open_shard(number, keep_open=True)
        raise FormatUnknown(
            "dataset has no such file", got=name, hint="see file_names for what it holds"
        )

    def commitments(self) -> bytes:
        """Commitments of all records in row order, 32 bytes each.

        Raises:
            FormatUnknown: The dataset was sealed without commitments.
            SealRefused: They do not open.
        """
        for number, shard in enumerate(self._index.shards):
            if shard.kind == "commitments":
                with self._open_shard(number, keep_open=True) as file:
                    return file.readall()
        raise FormatUnknown(
            "dataset was sealed without record commitments", hint="seal it with commitments"
        )

    def committer(self) -> Committer:
        """Computes commitments as this dataset's owner did."""
        return Committer(self._data_key, self.dataset_id)

    def close(self) -> None:
        """Close every shard."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                file.close()
            self._files.clear()
            if not isinstance(self._folder, Path):
                self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, number: int) -> tuple[int, Batch]:
        """Shard of a record batch, and where the batch lies in it."""
        if not 0 <= number < self.num_batches:
            raise IndexError("no such record batch")
        shard = bisect_right(self._batch_ends, number)
        batches = self._index.shards[shard].batches
        return shard, batches[number - (self._batch_ends[shard] - len(batches))]

    def _shard(self, number: int) -> SealedFile:
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
        # Shards that may be dropped while a thread reads them have no descriptor to leave behind.
        few = self._all_kept and len(self._index.shards) <= MAX_DESCRIPTORS
        # Not under the lock: elsewhere it takes requests, and other shards need not wait.
        opened = self._open_shard(number, keep_open=few)
        with self._lock:
            if self._closed:
                opened.close()
                raise ValueError("read from a closed dataset")
            file = self._files.setdefault(number, opened)
            if file is opened:
                self._kept_bytes += self._index.shards[number].info.size
                self._drop_oldest()
        if file is not opened:
            opened.close()
        return file

    def _drop_oldest(self) -> None:
        """Keep no more shards than there is room for; the newest stays."""
        while self._kept_bytes > self._room and len(self._files) > 1:
            number, _ = self._files.popitem(last=False)
            self._kept_bytes -= self._index.shards[number].info.size

    def _open_shard(self, number: int, *, keep_open: bool) -> SealedFile:
        shard = self._index.shards[number]
        # A remote store is not asked for the size: with a wrong size the trailer is not found.
        path = file_in(self._folder, shard.info.name, size=shard.info.size)
        size: int | None = shard.info.size
        if isinstance(path, Path):
            size = path.stat().st_size if path.is_file() else None
        if size != shard.info.size:
            raise FileTruncated(
                f"{shard.info.name} is missing or has another size",
                check="shard size",
                got="no file" if size is None else f"{size} bytes",
                expected=f"{shard.info.size} bytes",
                hint="fetch the dataset again from its owner",
            )
        position = 0 if shard.kind == "commitments" else number
        return open_sealed_file(
            path,
            self._data_key,
            context=self._index.context(shard.kind, position),
            root=shard.info.root,
            keep_open=keep_open,
        )


def read_index(folder: Folder, data_key: DataKey, *, root: str) -> Index:
    """Open and parse the index, checked against the signed root.

    Raises:
        NotSealed, LimitExceeded, SealRefused: It does not open.
        RootMismatch: The folder holds another version of the dataset.
    """
    path = file_in(folder, INDEX_NAME)
    with open_sealed_file(path, data_key) as claimed:
        claimed_root = claimed.root
    with open_sealed_file(path, data_key, root=claimed_root) as file:
        if file.size > MAX_INDEX_BYTES:
            raise LimitExceeded("index is too long", expected=f"at most {MAX_INDEX_BYTES} bytes")
        index = Index.from_bytes(file.readall())
        context = file.context
    computed = dataset_root(
        from_hex(index.dataset_id, length=16).hex(), claimed_root, [s.info for s in index.shards]
    )
    if not hmac.compare_digest(computed, root):
        raise RootMismatch(
            "sealed dataset differs from the root that was signed",
            check="dataset root",
            got=computed,
            expected=root,
            hint="the folder is another version of the dataset; fetch the signed one",
        )
    if context != index.context("index", 0):
        raise WrongContext("index belongs to another dataset", check="file context")
    return index


def contains_record(dataset: SealedDataset, record: Mapping[str, Any]) -> tuple[int, ...]:
    """Row numbers at which a record lies, by its commitment; empty if it is not in.

    Args:
        dataset: Sealed with commitments.
        record: Field names and values; null fields may be left out.

    Raises:
        FormatUnknown: The dataset was sealed without commitments.
    """
    wanted = dataset.committer().of(record)
    stored = dataset.commitments()
    rows: list[int] = []
    at = stored.find(wanted)
    while at >= 0:
        if at % COMMITMENT_BYTES == 0:
            rows.append(at // COMMITMENT_BYTES)
        at = stored.find(wanted, at + 1)
    return tuple(rows)


def _schema(index: Index) -> pa.Schema | None:
    if index.schema is None:
        return None
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(index.schema))
        digest = schema_digest_of(schema)  # names of columns are decoded here
    except (pa.ArrowException, OSError, ValueError, SchemaMismatch):
        raise DataInvalid(
            "index holds no valid Arrow schema", check="index", owner=index.owner_name
        ) from None
    if digest != index.schema_digest:
        raise DataInvalid(
            "index holds another schema than it names", check="index", owner=index.owner_name
        )
    return schema
