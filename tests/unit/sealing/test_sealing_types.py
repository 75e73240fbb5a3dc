"""Types of columns: what was sealed opens, with the same values, whatever a file calls them."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from sealing_world import all_rows, sealed_folder, with_index

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.index import schema_digest_of

pytestmark = pytest.mark.long

DAY = datetime.date(2024, 5, 6)
NOON = datetime.datetime(2024, 5, 6, 12, 30, 1, 250_000)
NAMES = (
    "null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float", "double", "float16", "string", "large_string", "string_view", "binary",
    "large_binary", "binary_view", "fixed_size_binary", "decimal32(7, 2)", "decimal64(12, 2)",
    "decimal128(20, 2)", "decimal256(50, 2)", "date32", "date64", "time32", "time64",
    "timestamp", "timestamp_zone", "duration", "interval", "list", "list_named", "large_list",
    "list_view", "large_list_view", "fixed_size_list", "list_of_list", "struct",
    "struct_of_list", "map", "map_named", "map_in_list", "map_in_struct", "sparse_union",
    "dense_union", "dictionary", "dictionary_of_numbers",
    "dictionary_of_structs", "dictionary_of_lists", "run_ends", "uuid", "json", "bool8",
    "opaque", "tensor", "uuid_in_list", "uuid_in_struct", "uuid_in_map",
)  # fmt: skip
"""Of the columns; the arrays are made when a test runs, because pyarrow loads pandas then."""
NOT_IN_PARQUET = (
    "decimal32", "decimal64", "duration", "interval", "list_view", "large_list_view", "run_ends",
    "sparse_union", "dense_union", "null", "date64", "time32", "dictionary_of_structs",
    "dictionary_of_lists",
)  # fmt: skip
NOT_SEALED = (
    "dictionary_in_list", "dictionary_in_struct", "run_ends_in_struct", "struct_of_one_name",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns by name.

    Attributes:
        given: As a file has them.
        stored: As what a column is sealed, where that is not its own type.
        refused: Those that are not sealed.
    """

    given: dict[str, pa.Array]
    stored: dict[str, pa.Array]
    refused: dict[str, pa.Array]

    def sealed(self, name: str) -> pa.Array:
        return self.stored.get(name, self.given[name])


@pytest.fixture(scope="module")
def columns() -> Columns:
    codes = pa.array([0, None, 1], pa.int8())
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"]))
    ids = pa.array([bytes([n]) * 16 for n in range(3)], pa.binary(16))
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    picked = pa.array([1, None, 0], pa.uint8())
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), ids)
    given: dict[str, pa.Array] = {
        "null": pa.nulls(3),
        "bool": pa.array([True, None, False]),
        **{
            str(kind): pa.array([1, None, 100], kind)
            for kind in (
                pa.int8(),
                pa.int16(),
                pa.int32(),
                pa.int64(),
                pa.uint8(),
                pa.uint16(),
                pa.uint32(),
                pa.uint64(),
                pa.float32(),
                pa.float64(),
            )
        },
        "float16": pa.array([1.5, None, 2.0]).cast(pa.float16()),
        **{
            str(kind): pa.array(["ä", None, ""], kind)
            for kind in (pa.string(), pa.large_string(), pa.string_view())
        },
        **{
            str(kind): pa.array([b"\0", None, b""], kind)
            for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
        },
        "fixed_size_binary": ids,
        **{
            str(kind): pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(0)], kind)
            for kind in (
                pa.decimal32(7, 2),
                pa.decimal64(12, 2),
                pa.decimal128(20, 2),
                pa.decimal256(50, 2),
            )
        },
        "date32": pa.array([DAY, None, DAY], pa.date32()),
        "date64": pa.array([DAY, None, DAY], pa.date64()),
        "time32": pa.array([NOON.time(), None, NOON.time()], pa.time32("ms")),
        "time64": pa.array([NOON.time(), None, NOON.time()], pa.time64("us")),
        "timestamp": pa.array([NOON, None, NOON], pa.timestamp("us")),
        "timestamp_zone": pa.array([NOON, None, NOON], pa.timestamp("ms", "Europe/Zurich")),
        "duration": pa.array([datetime.timedelta(seconds=3), None, None], pa.duration("ms")),
        "interval": pa.array([(1, 2, 3), None, (0, 0, 1)], pa.month_day_nano_interval()),
        "list": pa.array([[1], None, []], pa.list_(pa.int64())),
        "list_named": pa.array([["a"], None, []], pa.list_(pa.field("element", pa.string()))),
        "large_list": pa.array([[1], None, []], pa.large_list(pa.int64())),
        "list_view": pa.array([[1], None, []], pa.list_view(pa.int64())),
        "large_list_view": pa.array([[1], None, []], pa.large_list_view(pa.int64())),
        "fixed_size_list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        "list_of_list": pa.array([[[1], []], None, [None]], pa.list_(pa.list_(pa.int64()))),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
        "struct_of_list": pa.array([{"a": [{"b": 1}]}, {"a": []}, None]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "map_named": pa.array(
            [[("k", 1)], None, []], pa.map_(pa.string(), pa.field("m", pa.int64()))
        ),
        "map_in_list": pa.array(
            [[[("k", 1)]], None, []], pa.list_(pa.map_(pa.string(), pa.field("m", pa.int64())))
        ),
        "map_in_struct": pa.array(
            [{"m": [("k", "v")]}, None, {"m": []}],
            pa.struct([("m", pa.map_(pa.string(), pa.field("w", pa.string())))]),
        ),
        "sparse_union": pa.UnionArray.from_sparse(
            pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
        ),
        "dense_union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()),
            pa.array([0, 0, 1], pa.int32()),
            [pa.array([1, 2]), pa.array(["x"])],
        ),
        "dictionary": words,
        "dictionary_of_numbers": pa.array([7, None, 9]).dictionary_encode(),
        "dictionary_of_structs": pa.DictionaryArray.from_arrays(
            picked, pa.array([{"a": 1}, {"a": 2}])
        ),
        "dictionary_of_lists": pa.DictionaryArray.from_arrays(picked, pa.array([[1], [2, 3]])),
        "run_ends": pa.RunEndEncodedArray.from_arrays([1, 3], pa.array(["a", "b"])),
        "uuid": uuids,
        "json": pa.array(['{"a": 1}', None, "[]"], pa.json_()),
        "bool8": pa.array([1, None, 0], pa.bool8()),
        "opaque": pa.ExtensionArray.from_storage(
            pa.opaque(pa.string(), "type", "maker"), pa.array(["a", None, "b"])
        ),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]),
            pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        ),
        "uuid_in_list": pa.ListArray.from_arrays(offsets, uuids),
        "uuid_in_struct": pa.StructArray.from_arrays([uuids], ["u"]),
        "uuid_in_map": pa.MapArray.from_arrays(offsets, pa.array(["a", "b", "c"]), uuids),
    }
    stored: dict[str, pa.Array] = {
        "dictionary": words.dictionary_decode(),
        "dictionary_of_numbers": pa.array([7, None, 9]),
        "dictionary_of_structs": pa.array([{"a": 2}, None, {"a": 1}]),
        "dictionary_of_lists": pa.array([[2, 3], None, [1]]),
        "run_ends": pa.array(["a", "b", "b"]),
        "uuid": ids,
        "json": given["json"].storage,
        "bool8": given["bool8"].storage,
        "opaque": given["opaque"].storage,
        "tensor": given["tensor"].storage,
        "uuid_in_list": pa.ListArray.from_arrays(offsets, ids),
        "uuid_in_struct": pa.StructArray.from_arrays([ids], ["u"]),
        "uuid_in_map": pa.MapArray.from_arrays(offsets, pa.array(["a", "b", "c"]), ids),
    }
    refused = {
        "dictionary_in_list": pa.ListArray.from_arrays(offsets, words),
        "dictionary_in_struct": pa.StructArray.from_arrays([words], ["u"]),
        "run_ends_in_struct": pa.StructArray.from_arrays([given["run_ends"]], ["u"]),
        "struct_of_one_name": pa.StructArray.from_arrays([ids, ids], ["u", "u"]),
    }
    return Columns(given, stored, refused)


def arrow_file(path: Path, column: pa.Array) -> Path:
    table = pa.table({"c": column, "row": pa.array(range(len(column)))})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


def opened_rows(source: Path, out: Path) -> tuple[pa.Schema, list[dict[str, Any]]]:
    made = sealed_folder(source, out)
    with made.open() as dataset:
        assert schema_digest_of(dataset.schema) == made.description.schema_digest
        assert dataset.schema is not None
        return dataset.schema, all_rows(dataset)


def test_every_column_has_its_name(columns: Columns) -> None:
    assert tuple(columns.given) == NAMES
    assert tuple(columns.refused) == NOT_SEALED


@pytest.mark.claim("C510")
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_every_type_is_sealed_and_opens(
    tmp_path: Path, columns: Columns, name: str
) -> None:
    stored = columns.sealed(name)
    schema, rows = opened_rows(
        arrow_file(tmp_path / "c.arrow", columns.given[name]), tmp_path / "d"
    )
    assert schema.field("c").type == stored.type
    assert [row["c"] for row in rows] == stored.to_pylist()


@pytest.mark.claim("C510")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NOT_IN_PARQUET)])
def test_a_parquet_column_of_every_type_is_sealed_and_opens(
    tmp_path: Path, columns: Columns, name: str
) -> None:
    stored = columns.sealed(name)
    source = tmp_path / "c.parquet"
    parquet.write_table(pa.table({"c": columns.given[name]}), source)
    _, rows = opened_rows(source, tmp_path / "d")
    assert [row["c"] for row in rows] == stored.to_pylist()


@pytest.mark.parametrize("name", NAMES)
def test_a_digest_is_the_same_after_the_schema_was_written(columns: Columns, name: str) -> None:
    schema = pa.schema([("c", columns.sealed(name).type)])
    written = pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes()))
    assert schema_digest_of(written) == schema_digest_of(schema)


@pytest.mark.parametrize("name", NOT_SEALED)
def test_a_column_that_cannot_be_opened_is_refused_when_it_is_sealed(
    tmp_path: Path, columns: Columns, name: str
) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        sealed_folder(arrow_file(tmp_path / "c.arrow", columns.refused[name]), tmp_path / "d")
    assert refused.value.check == "schema"
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_two_columns_of_one_name_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("q", pa.string()), ("twice", pa.string()), ("twice", pa.int64())])
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array([1])], schema=schema)
    source = tmp_path / f"c.{kind}"
    if kind == "parquet":
        parquet.write_table(table, source)
    else:
        with pa.ipc.new_file(source, schema) as writer:
            writer.write_table(table)
    with pytest.raises(SchemaMismatch) as refused:
        sealed_folder(source, tmp_path / "d")
    assert refused.value.got == "twice"


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("c", pa.uuid())]),
        pa.schema([("c", pa.dictionary(pa.int32(), pa.string()))]),
        pa.schema([("c", pa.int64()), ("c", pa.int64())]),
    ],
    ids=["extension", "dictionary", "one name"],
)
def test_an_index_with_a_type_that_is_not_sealed_is_refused(
    tmp_path: Path, schema: pa.Schema
) -> None:
    made = sealed_folder(arrow_file(tmp_path / "c.arrow", pa.array([1, 2])), tmp_path / "d")
    message = schema.serialize().to_pybytes()
    other = with_index(
        made, lambda index: replace(index, schema=message, schema_digest=sha256_hex(message))
    )
    with pytest.raises(DataInvalid) as refused:
        other.open()
    assert refused.value.check == "index"


def not_text() -> pa.Array:
    """A text column that is not UTF-8."""
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    return pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xffb"))


@pytest.mark.claim("C510")
def test_a_sealing_that_does_not_open_is_refused(tmp_path: Path) -> None:
    def spoil(opened: tuple[pa.Schema, Iterator[pa.RecordBatch]]) -> Any:
        schema, _ = opened
        return schema, iter([pa.record_batch([not_text(), pa.array([0, 1, 2])], schema=schema)])

    source = arrow_file(tmp_path / "c.arrow", pa.array(["a", "b"]))
    with pytest.raises(RecordInvalid):
        sealed_folder(source, tmp_path / "d", check=spoil)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_text_that_is_not_utf8_is_refused_when_it_is_sealed(tmp_path: Path, kind: str) -> None:
    source = tmp_path / f"c.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.table({"c": not_text()}), source)
    else:
        arrow_file(source, not_text())
    with pytest.raises(RecordInvalid) as refused:
        sealed_folder(source, tmp_path / "d")
    assert refused.value.check == "record"
