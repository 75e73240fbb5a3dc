"""Vectors of schema digests: an Arrow schema message, its canonical form, the digest.

Called by ``sealed_file.py``; independent of sealtrain as everything here. The forms are written out
by hand after the table of spec/sealed-file.md §7; pyarrow makes the messages only.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from sealed_format import canonical, sha


def schema_vectors() -> list[dict[str, Any]]:
    """Schemas that have a digest, and schemas that a reader refuses."""
    text, number = pa.string(), pa.int64()
    plain = [
        ("null", pa.null()), ("bool", pa.bool_()), ("int8", pa.int8()), ("int64", number),
        ("uint8", pa.uint8()), ("uint64", pa.uint64()), ("float16", pa.float16()),
        ("float32", pa.float32()), ("float64", pa.float64()), ("string", text),
        ("large_string", pa.large_string()), ("string_view", pa.string_view()),
        ("binary", pa.binary()), ("large_binary", pa.large_binary()),
        ("binary_view", pa.binary_view()), ("date32", pa.date32()), ("date64", pa.date64()),
        ("month_day_nano_interval", pa.month_day_nano_interval()),
    ]  # fmt: skip
    cases: list[tuple[str, pa.DataType, Any]] = [(name, kind, name) for name, kind in plain]
    cases += [
        ("time32", pa.time32("s"), ["time32", "s"]),
        ("time64", pa.time64("ns"), ["time64", "ns"]),
        ("duration", pa.duration("ms"), ["duration", "ms"]),
        ("timestamp without a zone", pa.timestamp("us"), ["timestamp", "us", None]),
        ("timestamp", pa.timestamp("us", "UTC"), ["timestamp", "us", "UTC"]),
        ("decimal32", pa.decimal32(7, 2), ["decimal32", 7, 2]),
        ("decimal64", pa.decimal64(12, 2), ["decimal64", 12, 2]),
        ("decimal128", pa.decimal128(20, 5), ["decimal128", 20, 5]),
        ("decimal256", pa.decimal256(50, 0), ["decimal256", 50, 0]),
        ("fixed_size_binary", pa.binary(16), ["fixed_size_binary", 16]),
        ("list", pa.list_(text), ["list", ["string", True]]),
        ("list whose items a writer named", pa.list_(pa.field("element", text)),
         ["list", ["string", True]]),
        ("list without nulls", pa.list_(pa.field("item", text, nullable=False)),
         ["list", ["string", False]]),
        ("large_list", pa.large_list(text), ["large_list", ["string", True]]),
        ("list_view", pa.list_view(text), ["list_view", ["string", True]]),
        ("large_list_view", pa.large_list_view(text), ["large_list_view", ["string", True]]),
        ("fixed_size_list", pa.list_(text, 3), ["fixed_size_list", 3, ["string", True]]),
        ("struct", pa.struct([("a", number), pa.field("b", pa.list_(text), nullable=False)]),
         ["struct", [["a", "int64", True], ["b", ["list", ["string", True]], False]]]),
        ("map", pa.map_(text, number), ["map", "string", ["int64", True], False]),
        ("map whose members a writer named", pa.map_(text, pa.field("m", number)),
         ["map", "string", ["int64", True], False]),
        ("map with sorted keys", pa.map_(text, number, keys_sorted=True),
         ["map", "string", ["int64", True], True]),
        ("sparse union", pa.sparse_union([pa.field("a", number), pa.field("b", text)], [3, 5]),
         ["union", "sparse", [[3, "a", "int64", True], [5, "b", "string", True]]]),
        ("dense union", pa.dense_union([pa.field("a", number)]),
         ["union", "dense", [[0, "a", "int64", True]]]),
    ]  # fmt: skip
    refused = [
        ("dictionary", pa.dictionary(pa.int32(), text)),
        ("dictionary inside a list", pa.list_(pa.dictionary(pa.int32(), text))),
        ("run ends", pa.run_end_encoded(pa.int32(), text)),
        ("struct with two fields of one name", pa.struct([("a", text), ("a", text)])),
        ("extension type", pa.uuid()),
        ("extension type inside a struct", pa.struct([("a", pa.uuid())])),
    ]
    return [
        *(_case(name, pa.schema([("c", kind)]), [["c", form, True]]) for name, kind, form in cases),
        _case(
            "two columns, metadata",
            pa.schema(
                [
                    pa.field("Zürich", text, metadata={"a": "b"}),
                    pa.field("n", number, nullable=False),
                ],
                metadata={"c": "d"},
            ),
            [["Zürich", "string", True], ["n", "int64", False]],
        ),
        *(_case(name, pa.schema([("c", kind)]), None) for name, kind in refused),
        _case("two columns of one name", pa.schema([("c", text), ("c", number)]), None),
    ]


def _case(name: str, schema: pa.Schema, columns: list[Any] | None) -> dict[str, Any]:
    form = None if columns is None else canonical(["sealtrain/schema/v1", columns])
    return {
        "name": name,
        "message": base64.b64encode(schema.serialize().to_pybytes()).decode(),
        "form": None if form is None else form.decode(),
        "digest": None if form is None else sha(form),
    }
