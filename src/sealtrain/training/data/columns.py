"""Which columns training reads, under which names and types, over sources that may differ.

1. Every source has every column (``SchemaMismatch`` names owner and column).
2. Types agree up to Arrow's variants of one thing (string and large_string, integers and floats);
   the stream has the first source's, integers becoming floats where a source has floats.
3. No value is null (``RecordInvalid`` names owner and column, never the row's content).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sealtrain.errors import RecordInvalid, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.data.sources import Source

__all__ = ["Projection"]


class Projection:
    """Selects, renames and casts the columns of record batches."""

    def __init__(
        self,
        sources: Sequence[Source],
        columns: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Check every source's schema.

        Args:
            sources: In the order that ``project`` counts them.
            columns: Columns of the records to read; all of the first source when ``None``.
            names: Column of the records → name it gets in the stream.

        Raises:
            SchemaMismatch: A source lacks a column or has another type.
        """
        import pyarrow as pa

        self._sources = tuple(sources)
        first = _schema(sources[0])
        chosen = first.names if columns is None else columns
        self._columns = {(names or {}).get(column, column): column for column in chosen}
        wanted = {
            name: _wider([_field(one, _schema(one), column).type for one in sources])
            for name, column in self._columns.items()
        }
        self.schema: pa.Schema = pa.schema([(name, wanted[name]) for name in self._columns])
        for source in sources:
            schema = _schema(source)
            for name, column in self._columns.items():
                found = _field(source, schema, column).type
                if found != wanted[name] and _family(found) != _family(wanted[name]):
                    raise SchemaMismatch(
                        f"column {column} of {source.name} has another type than the stream",
                        check="columns",
                        owner=source.owner,
                        got=found,
                        expected=wanted[name],
                    )

    def project(self, source: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The stream's columns of one record batch.

        Raises:
            RecordInvalid: A value is null or does not fit the type.
        """
        import pyarrow as pa

        arrays = []
        for name, column in self._columns.items():
            array = batch.column(column)
            wanted = self.schema.field(name).type
            where = self._sources[source]
            if array.null_count:
                raise RecordInvalid(
                    f"column {column} of {where.name} has empty values",
                    check="columns",
                    owner=where.owner,
                    hint="leave out records without it before sealing",
                )
            if array.type != wanted:
                try:
                    array = array.cast(wanted)
                except pa.ArrowInvalid:
                    raise RecordInvalid(
                        f"column {column} of {where.name} holds a value beyond its type",
                        check="columns",
                        owner=where.owner,
                        expected=wanted,
                    ) from None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _schema(source: Source) -> pa.Schema:
    schema = source.dataset.schema
    if schema is None:
        raise SchemaMismatch(
            f"dataset {source.name} holds files, not records",
            check="columns",
            owner=source.owner,
            hint="seal JSONL, CSV, Parquet or Arrow",
        )
    return schema


def _field(source: Source, schema: pa.Schema, column: str) -> pa.Field:
    if schema.get_field_index(column) < 0:
        raise SchemaMismatch(
            f"dataset {source.name} has no column {column}",
            check="columns",
            owner=source.owner,
            expected=column,
        )
    return schema.field(column)


def _wider(kinds: list[pa.DataType]) -> pa.DataType:
    """The first source's type, but floats where any source has them."""
    import pyarrow as pa

    if any(pa.types.is_floating(kind) for kind in kinds) and _family(kinds[0]) == "number":
        return pa.float64()
    return kinds[0]


def _family(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list of {_family(kind.value_type)}"
    if pa.types.is_struct(kind):
        fields = {field.name: _family(field.type) for field in kind}
        return f"struct of {sorted(fields.items())}"
    return str(kind)
