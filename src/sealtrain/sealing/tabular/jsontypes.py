"""Types of JSON records: found in each block and file, merged over all of them.

``null`` and ``[]`` say nothing of a type: what no record says is sealed as Arrow's type ``null``,
and agrees with any type of another file or owner. A type given instead would make the answer depend
on where a block or a file ends.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.sealing.arrowtypes import MAX_DEPTH
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

_LONG_INTEGER: Final = re.compile(rb"[:\[,][ \t]*-?[0-9]{16,}[ \t]*[,\]}]")
"""Also within a text, which a parser then tells apart."""
_TEXTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?')
"""Also one that does not end: to try anew at each quote of it would take time without end."""
_MARKS: Final = re.compile(rb"[\[\]{}]")
_CALLS: Final = "tool_calls"
_MAX_SHOWN: Final = 80
"""Characters of a field's name in a refusal."""


def as_found(schema: pa.Schema) -> pa.Schema:
    """The schema of a block, without times: text stays text, also where it reads as one."""
    import pyarrow as pa

    return pa.schema([field.with_type(_text(field.type)) for field in schema])


def merge(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The schema that records of both fit; columns in the order in which they were first seen.

    Raises:
        SchemaMismatch: A column has two types; it is named, without a place.
    """
    import pyarrow as pa

    kinds = {field.name: field.type for field in left}
    for field in right:
        try:
            kinds[field.name] = _merge(kinds.get(field.name, pa.null()), field.type)
        except _TypesDiffer:
            raise SchemaMismatch(
                "a field has two types",
                check="schema",
                column=field.name[:_MAX_SHOWN],
                hint="give every record the same type in the same field",
            ) from None
    return pa.schema(list(kinds.items()))


def is_exact(number: int) -> bool:
    """Whether a float holds the integer as it is."""
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def holds_beyond(table: pa.Table, bound: float, *, integers: bool = False) -> bool:
    """Whether a number in a column of floats, at any depth, is as large as a bound or larger.

    An integer that a float rounds is read as such a number: what is smaller needs no other look.

    Args:
        table: Records that were parsed.
        bound: Of the number without its sign.
        integers: Look at columns of integers, too.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def is_wanted(kind: pa.DataType) -> bool:
        return _holds(kind, partial(_is_number, integers=integers))

    pending = [
        chunk for column in table.columns if is_wanted(column.type) for chunk in column.chunks
    ]
    while pending:
        values = pending.pop()
        if pa.types.is_list(values.type):
            pending.append(values.flatten())
        elif pa.types.is_struct(values.type):
            pending.extend(child for child in values.flatten() if is_wanted(child.type))
        else:
            ends = pc.min_max(values)
            least, most = ends["min"].as_py(), ends["max"].as_py()
            if most is not None and max(most, -least) >= bound:
                return True
    return False


def holds_floats(schema: pa.Schema) -> bool:
    """Whether a column has floats, at any depth."""
    return any(_holds(field.type, partial(_is_number, integers=False)) for field in schema)


def find_called_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns of conversations and tools, with the type of what a template writes as JSON."""
    import pyarrow as pa

    found = {}
    for field in schema:
        kind = field.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            continue
        if not pa.types.is_struct(kind.value_type):
            continue
        names = [part.name for part in kind.value_type]
        if "role" in names and _CALLS in names:
            calls = kind.value_type.field(_CALLS)
            found[field.name] = pa.list_(pa.struct([calls]))
        elif "function" in names or field.name == "tools":
            found[field.name] = kind
    return found


def holds_called_floats(schema: pa.Schema) -> bool:
    """Whether a tool call or a tool, which chat templates write as JSON, has floats."""
    return any(
        _holds(kind, partial(_is_number, integers=False))
        for kind in find_called_types(schema).values()
    )


def holds_null(kind: pa.DataType) -> bool:
    """Whether nothing is known of a type, or of a part of it."""
    import pyarrow as pa

    return _holds(kind, pa.types.is_null)


def mend_nulls(table: pa.Table) -> pa.Table:
    """The records, with as many nulls in lists and objects as there are; pyarrow 26 reads fewer."""
    import pyarrow as pa

    unknowns = [holds_null(field.type) and pa.types.is_nested(field.type) for field in table.schema]
    if not any(unknowns):
        return table
    columns = [
        pa.chunked_array([_mend(chunk) for chunk in column.chunks], column.type)
        if wrong
        else column
        for wrong, column in zip(unknowns, table.columns, strict=True)
    ]
    return pa.table(columns, schema=table.schema)


def refuse_inexact(name: str, first: int, block: bytes, schema: pa.Schema) -> None:
    """Refuse an integer that a column of floats would round.

    Args:
        name: Of the file, for errors.
        first: Records before this block.
        block: One JSON object a line.
        schema: Merged over all records.

    Raises:
        RecordInvalid: With record number and column.
    """
    if not _LONG_INTEGER.search(block):
        return
    kinds = {field.name: field.type for field in schema}
    number = first
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        number += 1
        if not _LONG_INTEGER.search(line):
            continue
        try:
            record = parse_foreign(line)
        except ValueError:
            continue  # the parser names this record
        for column, value in record.items() if isinstance(record, dict) else ():
            if column in kinds and not _all_exact(value, kinds[column]):
                raise refuse_rounded(name, number, column)


def refuse_changed_calls(name: str, first: int, block: bytes, schema: pa.Schema) -> None:
    """Refuse a whole number in a tool call or tool whose field has floats: 1 would be written 1.0.

    Args:
        name: Of the file, for errors.
        first: Records before this block.
        block: One JSON object a line.
        schema: Merged over all records; it ``holds_called_floats``.

    Raises:
        RecordInvalid: With record number and column.
    """
    kinds = find_called_types(schema)
    number = first
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        number += 1
        try:
            record = parse_foreign(line)
        except ValueError:
            continue  # the parser names this record
        for column, kind in kinds.items() if isinstance(record, dict) else ():
            if _has_changed(record.get(column), kind):
                raise RecordInvalid(
                    f"{name}: record {number} holds a whole number in a tool call or tool in field "
                    f"{column[:_MAX_SHOWN]}, where others have decimals",
                    check="record",
                    column=column[:_MAX_SHOWN],
                    hint="a column has one type, so a model would learn 1.0 in place of 1: write "
                    "arguments and tools as JSON text, or each number of the field alike",
                )


def refuse_rounded(name: str, number: int, column: str) -> RecordInvalid:
    """The refusal of an integer beyond 2**53 in a column that holds floats too.

    Args:
        name: Of the file.
        number: Of the record, from 1.
        column: Name of the column.
    """
    column = column[:_MAX_SHOWN]
    return RecordInvalid(
        f"{name}: record {number} holds an integer beyond 2^53 in field {column}, which has floats",
        check="record",
        column=column,
        hint="write the field as text, or every number of it as an integer",
    )


def _explain_syntax(line: bytes, error: json.JSONDecodeError, usual: str) -> str:
    """What the owner of a line that is no JSON can do."""
    text, at = line.decode("utf-8-sig", "replace").strip(), error.doc[error.pos :].lstrip()[:1]
    if text in ("[", "{"):
        return "write each object on one line; or, of an array, name the file .json"
    if error.msg.startswith("Extra data"):
        return "write nothing behind an object" if at == "," else usual
    if at in ("}", "]"):
        return "no comma stands before } or ]"
    if at == "'" or text.startswith("{'"):
        return "write names and texts in double quotes, as json.dumps does"
    if error.msg.startswith("Invalid control character"):
        return "write a tab inside a text as \\t, and a line break as \\n"
    if text.startswith(("//", "#")):
        return "leave comments out: JSON has none"
    return usual


def explain_refusal(name: str, first: int, lines: Sequence[bytes]) -> RecordInvalid:
    """What keeps records from being read under one schema; Arrow's message would quote one.

    Args:
        name: Of the file.
        first: Records before these.
        lines: One JSON text each, none blank.
    """
    kinds: dict[str, pa.DataType] = {}
    for number, line in enumerate(lines, first + 1):
        if (fault := _fault_of_bytes(line)) is not None:
            why, hint = fault
            return RecordInvalid(f"{name}: record {number} {why}", check="record", hint=hint)
        got, hint = None, "write one JSON object a line, UTF-8"
        try:
            record = parse_foreign(line)
        except ValueError as error:
            record = None
            if isinstance(error, json.JSONDecodeError):
                got, hint = f"column {error.pos + 1}", _explain_syntax(line, error, hint)
        if isinstance(record, list):
            got, hint = "an array", "write its objects one a line, or name the file .json"
        if not isinstance(record, dict):
            return RecordInvalid(
                f"{name}: record {number} is not a JSON object",
                check="record",
                got=got,
                hint=hint,
            )
        repeated = _find_repeated(line)
        if repeated:
            column = next((key[:_MAX_SHOWN] for key in record if key in repeated), None)
            return RecordInvalid(
                f"{name}: record {number} has two fields {column or 'of one name'}",
                check="record",
                column=column,
                hint="write each field once",
            )
        import pyarrow as pa

        for key, value in record.items():
            if _is_half(key) or _is_half(value):
                column = None if _is_half(key) else key[:_MAX_SHOWN]
                return RecordInvalid(
                    f"{name}: record {number} holds half of a character"
                    + (f" in field {column}" if column else ""),
                    check="record",
                    column=column,
                    hint="a text was cut inside a surrogate pair (\\ud800 to \\udfff): leave the "
                    "half out",
                )
            if _is_endless(value):
                return RecordInvalid(
                    f"{name}: record {number} holds a number in field {key[:_MAX_SHOWN]} that no "
                    "float of 64 bits holds",
                    check="record",
                    column=key[:_MAX_SHOWN],
                    hint="write the field as text, or leave such records out",
                )
            column = key[:_MAX_SHOWN]
            why = f"field {column} has another type from record {number} on"
            try:
                kinds[key] = _merge(kinds.get(key, pa.null()), _kind_of(value))
            except _ItemsDiffer:
                why = f"record {number} holds a list of several types in field {column}"
            except _TypesDiffer:
                pass
            else:
                continue
            return RecordInvalid(
                f"{name}: {why}",
                check="record",
                column=column,
                hint="give every record, and every item of a list, the same type in the same "
                "field; of chat logs, join content in parts into one text",
            )
    return RecordInvalid(
        f"{name}: records {first + 1} to {first + len(lines)} do not fit one schema",
        check="record",
        hint="give every record the same type in the same field; integers up to 64 bits",
    )


class _TypesDiffer(Exception):
    """Two types that no record can have both."""


class _ItemsDiffer(_TypesDiffer):
    """The same within one list."""


def _merge(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    is_a = pa.types
    if left == right or is_a.is_null(right):
        return left
    if is_a.is_null(left):
        return right
    if is_a.is_list(left) and is_a.is_list(right):
        return pa.list_(_merge(left.value_type, right.value_type))
    if is_a.is_struct(left) and is_a.is_struct(right):
        kinds = {field.name: field.type for field in left}
        for field in right:
            kinds[field.name] = _merge(kinds.get(field.name, pa.null()), field.type)
        return pa.struct(list(kinds.items()))
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise _TypesDiffer


def _text(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_text(field.type)) for field in kind])
    return kind


def _mend(values: pa.Array) -> pa.Array:
    """Values as Arrow's parser made them, which begin where their buffers do."""
    import pyarrow as pa

    kind = values.type
    if not holds_null(kind) or not len(values):
        return values
    if pa.types.is_list(kind):
        ends = values.offsets[-1].as_py()
        items = pa.nulls(ends) if pa.types.is_null(kind.value_type) else _mend(values.values)
        held = values.buffers()[:2]  # which are null, and where each begins
        return pa.Array.from_buffers(kind, len(values), held, children=[items])
    if pa.types.is_struct(kind):
        parts = [
            pa.nulls(len(values)) if pa.types.is_null(part.type) else _mend(values.field(at))
            for at, part in enumerate(kind)
        ]
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:1], children=parts)
    return values


def _kind_of(value: Any) -> pa.DataType:
    """Type of a parsed JSON value."""
    import pyarrow as pa

    if value is None:
        return pa.null()
    if isinstance(value, dict):
        return pa.struct([(name, _kind_of(item)) for name, item in value.items()])
    if isinstance(value, list):
        kind = pa.null()
        for item in value:
            try:
                kind = _merge(kind, _kind_of(item))
            except _TypesDiffer:
                raise _ItemsDiffer from None
        return pa.list_(kind)
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return plain.get(type(value), pa.string())


def _holds(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a leaf of a type is wanted."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        return any(_holds(kind.field(i).type, wanted) for i in range(kind.num_fields))
    return wanted(kind)


def _has_changed(value: Any, kind: pa.DataType) -> bool:
    """Whether a parsed value has a whole number where its type has a float."""
    import pyarrow as pa

    if isinstance(value, list):
        items = value if pa.types.is_list(kind) else ()
        return any(_has_changed(item, kind.value_type) for item in items)
    if isinstance(value, dict):
        parts = kind if pa.types.is_struct(kind) else ()
        return any(_has_changed(value.get(part.name), part.type) for part in parts)
    return type(value) is int and bool(pa.types.is_floating(kind))


def _is_number(kind: pa.DataType, *, integers: bool) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or (integers and pa.types.is_integer(kind)))


def _all_exact(value: Any, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(value, list) and pa.types.is_list(kind):
        return all(_all_exact(item, kind.value_type) for item in value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        return all(_all_exact(item, kinds[name]) for name, item in value.items() if name in kinds)
    return not (type(value) is int and pa.types.is_floating(kind)) or is_exact(value)


def _fault_of_bytes(line: bytes) -> tuple[str, str] | None:
    """Why a record cannot even be parsed, and what to do; ``None`` where it may be."""
    try:
        line.decode("utf-8-sig")
    except UnicodeDecodeError:
        encoding = "UTF-16" if b"\0" in line else "WINDOWS-1252"
        return "is not UTF-8 text", f"save the file as UTF-8, or: iconv -f {encoding} -t UTF-8"
    depth = 0
    for mark in _MARKS.findall(_TEXTS.sub(b"", line)):
        depth += 1 if mark in b"[{" else -1
        if depth > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels", "write what lies deeper as text"
    return None


def _is_endless(value: Any) -> bool:
    """Whether a value, at any depth, is a number that was too large for a float."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list):
            pending.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, float) and math.isinf(item):
            return True
    return False


def _is_half(value: Any) -> bool:
    """Whether a text in a value, at any depth, has one half of a surrogate pair alone."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _find_repeated(line: bytes) -> set[str]:
    """Names that one object of the record, at any depth, has twice."""
    found: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.add(name)
            seen.add(name)

    json.loads(line.decode("utf-8-sig"), object_pairs_hook=note)
    return found
