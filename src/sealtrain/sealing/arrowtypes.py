"""Columns and types of records: which ones are sealed, and their canonical form.

The form (spec/sealed-file.md §7) is ours. What a library prints of a type changes with its version,
and differs for a map before and after it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.sealing.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH: Final = 60
"""Types inside each other; Arrow's files hold 64."""

SCHEMA_FORM: Final = "sealtrain/schema/v1"
_PLAIN: Final = (
    "null", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "string", "large_string", "string_view", "binary",
    "large_binary", "binary_view", "date32", "date64", "month_day_nano_interval",
)  # fmt: skip
"""Functions of pyarrow that name a type without parameters."""


def canonical_schema(schema: pa.Schema) -> JsonValue:
    """The JSON of columns and types that ``schema_digest`` is the digest of.

    Names inside lists and maps, metadata and what a library prints of a type are no part of it.

    Raises:
        SchemaMismatch: Two columns have one name, or a column has a type that is not sealed.
    """
    name = _find_repeated(schema)
    if name is not None:
        raise SchemaMismatch(
            "two columns have one name",
            check="schema",
            got=name,
            hint="rename or drop one of them before sealing",
        )
    return [SCHEMA_FORM, [_column(field) for field in schema]]


def is_deep(schema: pa.Schema) -> bool:
    """Whether a column has more types inside each other than are sealed."""
    import pyarrow as pa

    level = [field.type for field in schema]
    for _ in range(MAX_DEPTH):
        level = [
            kind.field(at).type
            for kind in level
            if pa.types.is_nested(kind)
            for at in range(kind.num_fields)
        ]
        if not level:
            return False
    return True


def choose_stored_schema(schema: pa.Schema, source: str) -> pa.Schema:
    """The schema under which columns of a file are sealed.

    A dictionary or run-end-encoded column becomes its values, an extension type its storage at any
    depth; metadata is dropped at any depth.

    Args:
        schema: Of the file.
        source: Name of the file for errors.

    Raises:
        SchemaMismatch: Two columns have one name, or a column has a type that is not sealed.
    """
    import pyarrow as pa

    if is_deep(schema):
        raise SchemaMismatch(
            f"{source}: a column has too many types inside each other",
            check="schema",
            expected=f"at most {MAX_DEPTH}",
            hint="write what lies deeper as JSON text",
        )
    columns = []
    for field in schema:
        kind = field.type
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        columns.append(pa.field(field.name, _storage(kind), field.nullable))
    stored = pa.schema(columns)
    try:
        canonical_schema(stored)
    except SchemaMismatch as error:
        raise error.with_message(f"{source}: {error.message}") from None
    return stored


def _column(field: pa.Field) -> JsonValue:
    try:
        return [field.name, _form(field.type), field.nullable]
    except _NotSealedType as error:
        raise SchemaMismatch(
            f"column {field.name} has a type that is not sealed",
            check="schema",
            got=str(error),
            hint="convert the column before sealing",
        ) from None


def _find_repeated(fields: Iterable[pa.Field]) -> str | None:
    """The first name that two of the fields have."""
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            return str(field.name)
        seen.add(field.name)
    return None


class _NotSealedType(Exception):
    """A type that has no canonical form; its text says which, without names of a file."""


def _form(kind: pa.DataType) -> JsonValue:
    """Canonical form of a type: its name, or an array of its name and its parameters."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_map(kind):
        return ["map", _form(kind.key_type), _member(kind.item_field), kind.keys_sorted]
    if is_a.is_struct(kind):
        if _find_repeated(kind) is not None:
            raise _NotSealedType("a struct with two fields of one name")
        return ["struct", [_describe_field(field) for field in kind]]
    if is_a.is_fixed_size_list(kind):
        return ["fixed_size_list", kind.list_size, _member(kind.value_field)]
    for name in ("list", "large_list", "list_view", "large_list_view"):
        if getattr(is_a, f"is_{name}")(kind):
            return [name, _member(kind.value_field)]
    if is_a.is_union(kind):
        members = [
            [code, *_describe_field(kind.field(i))] for i, code in enumerate(kind.type_codes)
        ]
        return ["union", kind.mode, members]
    if is_a.is_timestamp(kind):
        return ["timestamp", kind.unit, kind.tz]
    for name in ("time32", "time64", "duration"):
        if getattr(is_a, f"is_{name}")(kind):
            return [name, kind.unit]
    if is_a.is_decimal(kind):
        return [f"decimal{kind.bit_width}", kind.precision, kind.scale]
    if is_a.is_fixed_size_binary(kind):
        return ["fixed_size_binary", kind.byte_width]
    for name in _PLAIN:
        if kind == getattr(pa, name)():
            return name.rstrip("_")
    raise _NotSealedType(_kind_of(kind))


def _describe_field(field: pa.Field) -> list[JsonValue]:
    return [field.name, _form(field.type), field.nullable]


def _member(field: pa.Field) -> list[JsonValue]:
    """An item of a list or map; the name that a writer gave it means nothing."""
    return [_form(field.type), field.nullable]


def _kind_of(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return "a dictionary inside another type"
    if pa.types.is_run_end_encoded(kind):
        return "run ends inside another type"
    return "an extension type" if isinstance(kind, pa.BaseExtensionType) else "an unknown type"


def _storage(kind: pa.DataType) -> pa.DataType:
    """The type without extension types and metadata, at any depth."""
    import pyarrow as pa

    is_a = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _storage(kind.storage_type)
    if is_a.is_map(kind):
        items = _as_stored(kind.item_field)
        return pa.map_(_storage(kind.key_type), items, keys_sorted=kind.keys_sorted)
    if is_a.is_struct(kind):
        return pa.struct([_as_stored(field) for field in kind])
    if is_a.is_fixed_size_list(kind):
        return pa.list_(_as_stored(kind.value_field), kind.list_size)
    makers = {"list": pa.list_} | {
        name: getattr(pa, name) for name in ("large_list", "list_view", "large_list_view")
    }
    for name, make in makers.items():
        if getattr(is_a, f"is_{name}")(kind):
            return make(_as_stored(kind.value_field))
    return kind


def _as_stored(field: pa.Field) -> pa.Field:
    return field.with_type(_storage(field.type)).remove_metadata()
