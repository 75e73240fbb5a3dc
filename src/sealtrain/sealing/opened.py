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
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sealtrain.base.encoding import from_hex
from sealtrain.errors import (
    DataInvalid,
    FileTruncated,
    FormatUnknown,
    LimitExceeded,
    RecordInvalid,
    RootMismatch,
    SealRefused,
    WrongContext,
)
from sealtrain.sealing.commitments import COMMITMENT_BYTES, Committer
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import INDEX_NAME, dataset_root
from sealtrain.sealing.file import open_file as open_sealed_file
from sealtrain.sealing.index import MAX_INDEX_BYTES, Index, schema_digest_of
from sealtrain.sealing.places import Folder, file_in
from sealtrain.sealing.reader import SealedFile
from sealtrain.sealing.recordbatch import parse_record_batch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SealedDataset", "contains_record", "read_index"]

MAX_DESCRIPTORS = 256


class SealedDataset:
    """Record batches and files of one sealed dataset. Thread-safe; use as a context manager.

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

    def __init__(self, folder: Folder, data_key: DataKey, index: Index, root: str) -> None:
        """Use ``open``, which makes the checks this class relies on."""
        self._folder = folder
        self._data_key = data_key
        self._index = index
        self._lock = threading.Lock()
        self._files: dict[int, SealedFile] = {}
        self._closed = False
        self.dataset_id, self.name = index.dataset_id, index.name
        self.owner_id, self.owner_name = index.owner_id, index.owner_name
        self.root, self.layout = root, index.layout
        self.records, self.tokens = index.records, index.tokens
        self._batches = [
            (number, batch)
            for number, shard in enumerate(index.shards)
            if shard.kind == "arrow"
            for batch in shard.batches
        ]
        self.batch_rows = tuple(batch.rows for _, batch in self._batches)
        self.largest_batch = max((batch.length for _, batch in self._batches), default=0)
        self._row_ends = list(accumulate(self.batch_rows))
        self.schema = _schema(index)

    @classmethod
    def open(cls, folder: Folder, data_key: DataKey, *, root: str) -> Self:
        """Open a dataset under the root its owner signed.

        Args:
            folder: ``X.sealed``, here or elsewhere.
            data_key: Key of the dataset.
            root: From the verified dataset manifest, 64 hex digits.

        Raises:
            NotSealed, LimitExceeded, SealRefused: The index does not open.
            RootMismatch: The folder holds another version of the dataset.
            StorageUnreachable: It lies elsewhere and does not answer.
        """
        return cls(folder, data_key, read_index(folder, data_key, root=root), root)

    @property
    def num_rows(self) -> int:
        """Records over all batches; 0 for raw files."""
        return self._row_ends[-1] if self._row_ends else 0

    @property
    def num_batches(self) -> int:
        """Record batches over all shards."""
        return len(self._batches)

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
        shard, place = self._batches[number]
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
            raise error.restated(
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

    def _shard(self, number: int) -> SealedFile:
        file = self._files.get(number)
        if file is None:
            few = len(self._index.shards) <= MAX_DESCRIPTORS
            # Not under the lock: elsewhere it takes requests, and other shards need not wait.
            opened = self._open_shard(number, keep_open=few)
            with self._lock:
                if self._closed:
                    opened.close()
                    raise ValueError("read from a closed dataset")
                file = self._files.setdefault(number, opened)
            if file is not opened:
                opened.close()
        return file

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
    except (pa.ArrowException, OSError, ValueError):
        raise DataInvalid(
            "index holds no valid Arrow schema", check="index", owner=index.owner_name
        ) from None
    if digest != index.schema_digest:
        raise DataInvalid(
            "index holds another schema than it names", check="index", owner=index.owner_name
        )
    return schema
