"""Whatever an owner puts into its index or its batches: they are consistent, or refused."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from collecting import COLLECTING
from fuzzing import JSON, mutated, put_somewhere
from hypothesis import given, settings
from hypothesis import strategies as st
from sealing_world import DATASET_ID, OWNER_ID
from variants import examples

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import DataInvalid
from sealtrain.sealing.description import ShardInfo
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.index import MAX_BATCH_ROWS, Batch, BatchTable, Index, IndexedShard
from sealtrain.sealing.recordbatch import parse_record_batch

pytestmark = pytest.mark.claim("C101")
few = settings(max_examples=examples(50), deadline=None)

numbers = st.one_of(
    st.integers(0, 5000),
    st.sampled_from([(1 << bits) + more for bits in (31, 32, 63) for more in (-8, -1, 0, 8)]),
)
batches = st.builds(
    Batch,
    offset=numbers.map(lambda number: number // 8 * 8) | numbers,
    length=numbers.map(lambda number: number % (1 << 32)),
    rows=st.integers(0, 9) | st.sampled_from([MAX_BATCH_ROWS, MAX_BATCH_ROWS + 1, (1 << 32) - 1]),
)


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    layout = draw(st.sampled_from(["arrow", "arrow", "arrow", "raw", "other"]))
    shards = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([layout] * 5 + ["commitments", "index"]))
        shards.append(
            IndexedShard(
                info=ShardInfo(
                    name=draw(st.sampled_from([f"shard-{number:05d}.sealed"] * 5 + ["x.sealed"])),
                    size=draw(st.integers(0, 9000)),
                    root="ab" * 32,
                ),
                kind=kind,
                file="file",
                batches=BatchTable.of(
                    draw(st.lists(batches, max_size=3)) if kind == "arrow" else ()
                ),
            )
        )
    rows = sum(batch.rows for shard in shards for batch in shard.batches)
    return Index(
        dataset_id=DATASET_ID,
        name="records",
        owner_id=OWNER_ID,
        owner_name="mallory",
        layout=layout,
        padding="none",
        suite=Suite.BLAKE3,
        schema=None if layout == "raw" else b"schema",
        schema_digest="ef" * 32,
        records=None if layout == "raw" else draw(st.sampled_from([rows] * 9 + [rows + 1])),
        tokens=None,
        shards=tuple(shards),
    )


def require_inside(index: Index) -> None:
    """What every reader relies on afterwards."""
    assert len({shard.info.name for shard in index.shards}) == len(index.shards)
    rows = 0
    for shard in index.shards:
        assert "/" not in shard.info.name
        assert not shard.info.name.startswith(".")
        for batch in shard.batches:
            assert shard.kind == index.layout == "arrow"
            assert 0 <= batch.offset < batch.offset + batch.length <= shard.info.size
            assert batch.offset % 8 == 0
            assert 0 < batch.rows <= MAX_BATCH_ROWS
            rows += batch.rows
    assert index.records == (rows if index.layout == "arrow" else None)


@settings(max_examples=examples(200), deadline=None)
@given(indexes())
def test_an_index_is_consistent_or_refused(index: Index) -> None:
    try:
        read = Index.from_bytes(index.to_bytes())
    except DataInvalid:
        return
    assert read == index
    require_inside(read)


def document() -> dict[str, Any]:
    shard = IndexedShard(
        info=ShardInfo(name="shard-00000.sealed", size=5000, root="ab" * 32),
        kind="arrow",
        file="shard-00000.sealed",
        batches=BatchTable.of(
            [Batch(offset=8, length=1000, rows=10), Batch(offset=1008, length=800, rows=7)]
        ),
    )
    other = replace(shard, info=replace(shard.info, name="shard-00001.sealed"))
    index = Index(
        dataset_id=DATASET_ID, name="records", owner_id=OWNER_ID, owner_name="mallory",
        layout="arrow", padding="none", suite=Suite.BLAKE3, schema=b"schema",
        schema_digest="ef" * 32, records=34, tokens=None, shards=(shard, other),
    )  # fmt: skip
    found: dict[str, Any] = parse_json(index.to_bytes())
    return found


@few
@given(
    st.integers(0, 40), JSON | st.binary(max_size=48).map(lambda b: base64.b64encode(b).decode())
)
def test_any_value_anywhere_in_an_index_is_read_consistently_or_refused(
    path: int, value: Any
) -> None:
    changed = document()
    put_somewhere(changed, path, value)
    with suppress(DataInvalid):
        require_inside(Index.from_bytes(canonical_json(changed)))


@few
@given(mutated(canonical_json(document())))
def test_spoilt_bytes_of_an_index_are_read_consistently_or_refused(data: bytes) -> None:
    with suppress(DataInvalid):
        require_inside(Index.from_bytes(data))


if not COLLECTING:  # an array of Arrow loads pandas
    RECORDS = pa.record_batch(
        {
            "text": pa.array(["ä", "", None, "long " * 20]),
            "tokens": pa.array([[1, 2], [], None, [3]], pa.list_(pa.uint16())),
            "nested": pa.array([{"a": [b"x"]}, None, {"a": None}, {"a": [None, b"yz"]}]),
            "flag": pa.array([True, None, False, True]),
            "large": pa.array(["a", "bc", None, ""], pa.large_string()),
            "fixed": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int32(), 2)),
            "view": pa.array(["short", "longer than twelve bytes", None, ""], pa.string_view()),
        }
    )


@cache
def message() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORDS.schema) as stream:
        stream.write_batch(RECORDS)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    found: bytes = reader.read_next_message().serialize().to_pybytes()
    return found


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_spoilt_bytes_of_a_batch_are_valid_in_full_or_refused(data: st.DataObject) -> None:
    """Native code reads them: what is accepted is walked through to its last value."""
    spoilt = data.draw(mutated(message(), keep_length=True) | mutated(message()))
    whole = pa.py_buffer(spoilt + b"secret of another owner " * 50)
    try:
        batch = parse_record_batch(whole.slice(0, len(spoilt)), RECORDS.schema, RECORDS.num_rows)
    except DataInvalid:
        return
    batch.validate(full=True)
    assert "secret of another" not in str(batch.to_pylist())


def test_a_batch_that_nobody_spoilt_is_read() -> None:
    read = parse_record_batch(pa.py_buffer(message()), RECORDS.schema, RECORDS.num_rows)
    assert read.equals(RECORDS)
