"""What training is given: datasets that decrypt themselves, under the names the recipe uses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import RawIOBase
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchedRecords", "BlobStore", "Source"]


class BatchedRecords(Protocol):
    """Records in Arrow record batches, readable in any order from several threads."""

    dataset_id: str
    root: str
    batch_rows: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema | None:
        """Columns; ``None`` when the dataset holds files instead of records."""

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, 0-based."""


class BlobStore(Protocol):
    """Named blobs that are sealed as they are written."""

    def write(
        self, name: str, binding: Mapping[str, str | int]
    ) -> AbstractContextManager[RawIOBase]:
        """Open a blob for writing; it appears whole when the block ends well."""

    def read(self, name: str, binding: Mapping[str, str | int]) -> RawIOBase:
        """Open a blob, seekable; raises unless the binding is the one it was written under."""

    def digest(self, name: str) -> str:
        """SHA-256 of a blob's sealed bytes, 64 hex digits."""

    def names(self) -> tuple[str, ...]:
        """Names of all complete blobs, sorted."""

    def remove(self, name: str) -> None:
        """Delete a blob if it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One dataset of the recipe.

    Attributes:
        role: ``train`` or ``test``.
        owner: Owner's name.
        name: Dataset's name.
        weight: Relative share of the training stream, > 0.
        dataset: The records.
    """

    role: str
    owner: str
    name: str
    weight: float
    dataset: BatchedRecords
