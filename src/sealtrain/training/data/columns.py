"""Which columns training reads, under which names and types, over sources that may differ.

A column has up to three names: its owner's, the recipe's (``Source.columns``) and the trainer's. A
record batch is renamed once, from the first to the last, when its columns are selected.

1. Every source has every column (``SchemaMismatch`` names owner and column).
2. Types agree up to Arrow's variants of one thing (string and large_string, integers and floats);
   the stream has the first source's, integers becoming floats where a source has floats. What one
   source has only nulls in, or only empty lists, has the type of the others.
   Conversations and tools have the keys of every source: a key that a record lacks is null, and
   ``read_rows`` takes it out again. In what a template writes as JSON no number changes.
3. No value is null (``RecordInvalid`` names owner and column, never the row's content), unless the
   recipe says what stands for a missing one; a number for which the model does is then not finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sealtrain.recipe.conversations import is_list_of_structs
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.jsontypes import find_called_types

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.data.sources import Source


class Projection:
    """Record batches of several sources with the columns of one stream.

    Attributes:
        sources: In the order that ``read`` counts them.
        schema: Columns of the stream.
        growth: How many times as long a column may become at most where it changes its type.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        columns: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Check every source's schema.

        Args:
            sources: Opened datasets.
            columns: Columns to read, under the recipe's names; all of the first source when
                ``None``.
            names: Recipe's name of a column → its name in the stream.

        Raises:
            SchemaMismatch: A column of a source is missing or has another type.
        """
        import pyarrow as pa

        self.sources = tuple(sources)
        schemas = [_schema(source) for source in self.sources]
        chosen = schemas[0].names if columns is None else columns
        self._columns = {(names or {}).get(column, column): column for column in chosen}
        found = {
            name: [
                _read_as(source, column, _field(source, schema, column).type)
                for source, schema in zip(self.sources, schemas, strict=True)
            ]
            for name, column in self._columns.items()
        }
        self.schema: pa.Schema = pa.schema(
            [(name, join_types(kinds)) for name, kinds in found.items()]
        )
        self.growth: int = max(
            (
                -(-self.schema.field(name).type.bit_width // kind.bit_width)
                for name, column in self._columns.items()
                for kind in (schema.field(column).type for schema in schemas)
                if _is_widened(kind, self.schema.field(name).type)
            ),
            default=1,
        )
        # A batch is read by position: the owner's names of its columns may be others.
        self._positions = [
            [schema.get_field_index(column) for column in self._columns.values()]
            for schema in schemas
        ]
        for number, source in enumerate(self.sources):
            for name, column in self._columns.items():
                got, expected = found[name][number], self.schema.field(name).type
                if not reads_as(name, got, expected):
                    raise _differs(source.owner, source.name, column, got, expected)

    def read(self, source: int, batch: int) -> pa.RecordBatch:
        """Record batch ``batch`` of source ``source``, with the columns of the stream.

        Raises:
            SealRefused: It does not decrypt.
            RecordInvalid: A value is null or does not fit the type.
        """
        import pyarrow as pa

        read = self.sources[source].dataset.batch(batch)
        arrays = [
            _convert(self.sources[source], column, read.column(position), field.type)
            for column, position, field in zip(
                self._columns.values(), self._positions[source], self.schema, strict=True
            )
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def require_same_types(datasets: Sequence[tuple[str, str, Mapping[str, pa.DataType]]]) -> None:
    """Refuse columns of several datasets that no stream can read together.

    Args:
        datasets: Owner, name, and the types of columns, under the recipe's names.

    Raises:
        SchemaMismatch: A column has several types; the error names the first dataset that differs.
    """
    for name in sorted({name for _, _, kinds in datasets for name in kinds}):
        having = [(owner, title, kinds[name]) for owner, title, kinds in datasets if name in kinds]
        wanted = join_types([kind for _, _, kind in having])
        for owner, title, kind in having:
            if not reads_as(name, kind, wanted):
                raise _differs(owner, title, name, kind, wanted)


def join_types(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a stream whose sources have these types in a column.

    It is the first one that says something, but floats where any source has them, and of
    conversations and tools the keys of all. Where types do not agree, ``reads_as`` says of which.
    """
    import pyarrow as pa

    known = [kind for kind in kinds if not _says_nothing(kind)]
    if not known:
        return kinds[0]
    if _family(known[0]) == "number" and any(pa.types.is_floating(kind) for kind in known):
        return pa.float64()
    if len({*kinds}) > 1 and all(map(is_list_of_structs, known)):
        united = _unite(known)
        return known[0] if united is None else _name_unknown(united)
    return known[0]


def reads_as(name: str, got: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a column can be read as the stream's type.

    Args:
        name: Of the column.
        got: Its type in one source.
        wanted: As ``join_types`` says.
    """
    import pyarrow as pa

    if got == wanted:
        return True
    if not is_list_of_structs(wanted):
        return _is_of_family(got, wanted)
    if _says_nothing(got):
        return True
    if not is_list_of_structs(got):
        return False
    called, as_called = (
        find_called_types(pa.schema([(name, kind)])).get(name, pa.null()) for kind in (got, wanted)
    )
    return _unite([wanted, got]) == wanted and not _turns_decimal(called, as_called)


def _differs(
    owner: str, dataset: str, column: str, got: pa.DataType, expected: pa.DataType
) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {column} of {dataset} has another type than the stream",
        check="columns",
        owner=owner,
        dataset=dataset,
        column=column,
        got=got,
        expected=expected,
        hint="give a field the same type in every dataset, and leave keys out that are null in "
        "every record; or, of tool calls and tools, write arguments and tools as JSON text"
        if is_list_of_structs(got)
        else None,
    )


def _convert(source: Source, column: str, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if column in source.missing:
        try:
            values = _fill_missing(values, source.missing[column])
        except pa.ArrowInvalid:
            raise _beyond(source, column, wanted) from None
    if values.null_count:
        raise RecordInvalid(
            f"column {column} of {source.name} has empty values",
            check="columns",
            owner=source.owner,
            dataset=source.name,
            column=column,
            hint="leave out records without it before sealing, or write missing in the recipe",
        )
    if values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        raise _beyond(source, column, wanted) from None


def _beyond(source: Source, column: str, wanted: pa.DataType) -> RecordInvalid:
    return RecordInvalid(
        f"column {column} of {source.name} holds a value beyond its type",
        check="columns",
        owner=source.owner,
        dataset=source.name,
        column=column,
        expected=wanted,
    )


def _read_as(source: Source, column: str, kind: pa.DataType) -> pa.DataType:
    """The type of a column: a number that may be missing is a float."""
    import pyarrow as pa

    if column not in source.missing or _family(kind) != "number" or pa.types.is_floating(kind):
        return kind
    return pa.float64()


def _fill_missing(values: pa.Array, stand_in: float | str) -> pa.Array:
    """The values, with what stands for missing ones; of floats, not a number is missing, too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(stand_in, str):
        return values.fill_null(stand_in) if values.null_count else values
    if not pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
    absent = pc.fill_null(pc.is_nan(values), True)
    if not pc.any(absent).as_py():
        return values
    [number] = pa.array([stand_in], values.type)
    return pc.if_else(absent, number, values)


def _schema(source: Source) -> pa.Schema:
    schema = source.schema
    if schema is None:
        raise SchemaMismatch(
            f"dataset {source.name} holds files, not records",
            check="columns",
            owner=source.owner,
            dataset=source.name,
            hint="seal JSONL, CSV, Parquet or Arrow",
        )
    return schema


def _field(source: Source, schema: pa.Schema, column: str) -> pa.Field:
    if schema.get_field_index(column) < 0:
        raise SchemaMismatch(
            f"dataset {source.name} has no column {column}",
            check="columns",
            owner=source.owner,
            dataset=source.name,
            column=column,
            expected=column,
        )
    return schema.field(column)


def _unite(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """The type with the keys of all; ``None`` where a key has types that do not agree."""
    import pyarrow as pa

    try:
        united = pa.unify_schemas(
            [pa.schema([("x", kind)]) for kind in kinds], promote_options="permissive"
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return united.field(0).type


def _says_nothing(kind: pa.DataType) -> bool:
    """Whether a column holds nothing but nulls and empty lists."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _says_nothing(kind.value_type)
    return bool(pa.types.is_null(kind))


def _name_unknown(kind: pa.DataType) -> pa.DataType:
    """The type, as text where it says nothing: pyarrow 26 cannot cast a list of nulls to one."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(_name_unknown(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_name_unknown(part.type)) for part in kind])
    return kind


def _turns_decimal(got: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a whole number somewhere in a type becomes a float."""
    import pyarrow as pa

    if pa.types.is_struct(got):
        return any(_turns_decimal(part.type, wanted.field(part.name).type) for part in got)
    if got.num_fields:
        return _turns_decimal(got.field(0).type, wanted.field(0).type)
    return bool(pa.types.is_integer(got) and pa.types.is_floating(wanted))


def _is_widened(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of numbers is read as another type of number."""
    return bool(kind != wanted) and _family(kind) == _family(wanted) == "number"


def _is_of_family(got: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are Arrow's variants of one thing, or one of them says nothing."""
    import pyarrow as pa

    if _says_nothing(got):
        return pa.types.is_null(got) or _family(wanted) == "list"
    if _family(got) != _family(wanted):
        return False
    if _family(got) == "list":
        return _is_of_family(got.value_type, wanted.value_type)
    if pa.types.is_struct(got):
        parts, others = ({part.name: part.type for part in kind} for kind in (got, wanted))
        return parts.keys() == others.keys() and all(
            _is_of_family(parts[name], others[name]) for name in parts
        )
    return True


def _family(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    return "object" if pa.types.is_struct(kind) else str(kind)
