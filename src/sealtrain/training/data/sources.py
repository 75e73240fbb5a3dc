"""What training is given: datasets that decrypt themselves, under the names the recipe uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from io import RawIOBase
from typing import TYPE_CHECKING, Protocol

from sealtrain.sealing.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa


class BatchedRecords(Protocol):
    """Records in Arrow record batches, readable in any order from several threads."""

    dataset_id: str
    root: str

    @property
    def batch_rows(self) -> Sequence[int]:
        """Rows of each record batch."""

    @property
    def schema(self) -> pa.Schema | None:
        """Columns; ``None`` when the dataset holds files instead of records."""

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, 0-based."""


class BlobWriter(Protocol):
    """A blob while it is written."""

    def writelines(self, lines: Iterable[memoryview], /) -> None:
        """Take bytes; each part stays as it is until this returns."""

    def finish(self) -> SealedBlob:
        """Complete the blob."""


class SealedBlob(Protocol):
    """A complete blob."""

    @property
    def root(self) -> str:
        """File root, 64 hex digits."""


class BlobStore(Protocol):
    """Named blobs that are sealed as they are written."""

    def memory(self, size: int) -> memoryview | None:
        """Memory of at least that size which ``write`` seals without a copy; ``None`` for any.

        Asked for before the first blob is written: blobs may all have one length, which it sets.
        """

    def shard_memory(self, size: int) -> memoryview | None:
        """As ``memory``, for the shards of checkpoints: a rank has both."""

    def write(
        self, name: str, binding: Mapping[str, str | int]
    ) -> AbstractContextManager[BlobWriter]:
        """Open a blob for writing; it appears whole when the block ends well."""

    def read(
        self, name: str, binding: Mapping[str, str | int], *, root: str | None = None
    ) -> RawIOBase:
        """Open a blob, seekable; raises unless binding and root are what it was written under."""

    def binding(self, name: str) -> dict[str, str | int]:
        """What a blob says it is bound to; ``read`` proves it."""

    def root(self, name: str) -> str:
        """File root that a blob's end claims, 64 hex digits; ``verify`` and ``read`` prove it."""

    def verify(self, name: str) -> str:
        """File root, after hashing every byte; raises when the blob is not whole."""

    def names(self) -> tuple[str, ...]:
        """Names of all complete blobs, sorted."""

    def remove(self, name: str) -> None:
        """Delete a blob if it is there."""

    def retire(self, name: str) -> None:
        """Delete a blob; its space may be kept for the next one until ``sweep``."""

    def sweep(self) -> None:
        """Delete what interrupted writes and retired blobs left."""


class SealedFolder(Protocol):
    """Files that are decrypted as they are read."""

    @property
    def file_names(self) -> tuple[str, ...]:
        """Relative POSIX paths."""

    def open_file(self, name: str) -> RawIOBase:
        """Open one of them; the caller closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One dataset of the recipe.

    Attributes:
        role: ``train`` or ``test``.
        owner: Owner's name.
        name: Dataset's name.
        weight: Relative share of the training stream, > 0.
        dataset: The records, under the column names that their owner gave them.
        max_records: Most rows of it in an epoch; ``None`` for what its weight gives it.
        columns: Owner's name of a column → its name in the recipe, where the two differ.
        missing: Recipe's name of a column → what stands for a missing value; not a number for one
            that the model fills. A column without an entry has no gap.

    Raises:
        SchemaMismatch: A column to rename is missing, or its new name is taken.
    """

    role: str
    owner: str
    name: str
    weight: float
    dataset: BatchedRecords
    max_records: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names that do not fit the dataset, before anything is read."""
        if not self.columns:
            return
        before = self.dataset.schema
        if before is None:
            raise SchemaMismatch(
                f"dataset {self.name} holds files, which have no columns to rename",
                check="columns",
                owner=self.owner,
                dataset=self.name,
            )
        for column in self.columns:
            if before.names.count(column) != 1:
                raise SchemaMismatch(
                    f"dataset {self.name} has no column {column} to rename",
                    check="columns",
                    owner=self.owner,
                    dataset=self.name,
                    column=column,
                    expected=column,
                )
        names = self._names(before.names)
        for name in self.columns.values():
            if names.count(name) != 1:
                raise SchemaMismatch(
                    f"dataset {self.name} would have column {name} twice",
                    check="columns",
                    owner=self.owner,
                    dataset=self.name,
                    column=name,
                    hint="rename the other one too, or leave it out before sealing",
                )

    @property
    def schema(self) -> pa.Schema | None:
        """Columns under the recipe's names; ``None`` when the dataset holds files."""
        import pyarrow as pa

        schema = self.dataset.schema
        if schema is None or not self.columns:
            return schema
        names = self._names(schema.names)
        return pa.schema([kept.with_name(new) for kept, new in zip(schema, names, strict=True)])

    def rename(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A record batch of the dataset under the recipe's names; no value is copied."""
        return batch.rename_columns(self._names(batch.schema.names)) if self.columns else batch

    def _names(self, names: Sequence[str]) -> list[str]:
        return [self.columns.get(name, name) for name in names]
