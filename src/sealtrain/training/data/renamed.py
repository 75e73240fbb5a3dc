"""A dataset under the column names that the recipe uses, where its owner calls them otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sealtrain.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.data.sources import BatchedRecords

__all__ = ["Renamed", "renamed"]


def renamed(
    dataset: BatchedRecords, columns: Mapping[str, str], *, owner: str, name: str
) -> BatchedRecords:
    """The dataset with columns renamed; itself when there is nothing to rename.

    Args:
        dataset: Opened.
        columns: Owner's name of a column → its name in the recipe.
        owner: Owner's name, for refusals.
        name: Dataset's name, for refusals.

    Raises:
        SchemaMismatch: A column to rename is not there, or its new name is taken.
    """
    return Renamed(dataset, columns, owner=owner, name=name) if columns else dataset


class Renamed:
    """See ``renamed``. Everything but names is the dataset's own; nothing is copied."""

    def __init__(
        self, dataset: BatchedRecords, columns: Mapping[str, str], *, owner: str, name: str
    ) -> None:
        import pyarrow as pa

        before = dataset.schema
        if before is None:
            raise SchemaMismatch(
                f"dataset {name} holds files, which have no columns to rename",
                check="columns",
                owner=owner,
            )
        for column in columns:
            if before.names.count(column) != 1:
                raise SchemaMismatch(
                    f"dataset {name} has no column {column} to rename",
                    check="columns",
                    owner=owner,
                    expected=column,
                )
        names = [columns.get(column, column) for column in before.names]
        for ours in columns.values():
            if names.count(ours) != 1:
                raise SchemaMismatch(
                    f"dataset {name} would have column {ours} twice",
                    check="columns",
                    owner=owner,
                    hint="rename the other one too, or leave it out before sealing",
                )
        self._dataset: Any = dataset
        self.dataset_id, self.root = dataset.dataset_id, dataset.root
        self.batch_rows = dataset.batch_rows
        self._names = names
        self.schema: pa.Schema | None = pa.schema(
            [field.with_name(new) for field, new in zip(before, names, strict=True)]
        )

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number`` under the new names."""
        return self._dataset.batch(number).rename_columns(self._names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches in order, where the dataset streams them, under the new names."""
        for batch in self._dataset.batches():
            yield batch.rename_columns(self._names)

    def parsed(self, number: int, data: pa.Buffer) -> pa.RecordBatch:
        """As the dataset's ``parsed``, under the new names."""
        return self._dataset.parsed(number, data).rename_columns(self._names)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the dataset has."""
        if name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)
