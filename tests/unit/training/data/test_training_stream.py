from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from polling import wait_until
from sealing_world import sealed_folder
from training_world import PlainDataset, numbered, records, seal_records, source_of, write_records

from sealtrain.sealing.errors import ChunkDamaged, RecordInvalid, SchemaMismatch, SealRefused
from sealtrain.training.data.columns import join_types, reads_as
from sealtrain.training.data.prefetch import prefetch
from sealtrain.training.data.stream import RecordStream, read_all


def plain(**columns: Any) -> PlainDataset:
    return PlainDataset([pa.RecordBatch.from_pydict(columns)])


def test_sealed_records_stream_as_they_were(tmp_path: Path) -> None:
    paths = write_records(tmp_path)
    datasets = seal_records(paths, tmp_path)
    stream = RecordStream([source_of(datasets["hospital-a.records"])], ["prompt", "size"], seed=1)
    expected = [
        {"prompt": row["prompt"], "size": row["size"]} for row in records(40, "hospital-a.records")
    ]
    read = list(stream.rows(0, 40))
    assert read != expected
    assert sorted(read, key=str) == sorted(expected, key=str)


def test_all_records_are_read_in_order(tmp_path: Path) -> None:
    datasets = seal_records(write_records(tmp_path), tmp_path)
    sources = [source_of(datasets[key]) for key in ("hospital-b.records", "hospital-a.held-out")]
    read = [row for batch in read_all(sources, ["finding"]) for row in batch.to_pylist()]
    expected = [*records(40, "hospital-b.records"), *records(20, "hospital-a.held-out")]
    assert read == [{"finding": row["finding"]} for row in expected]


def test_no_source_gives_no_record() -> None:
    assert list(read_all([], ["x"])) == []


def test_columns_get_the_names_the_trainer_wants() -> None:
    stream = RecordStream(
        [source_of(plain(question=["a"], other=[1]))],
        ["question"],
        seed=1,
        names={"question": "prompt"},
    )
    assert next(stream.rows()) == {"prompt": "a"}
    assert stream.schema.names == ["prompt"]


def test_column_batches_have_the_asked_size() -> None:
    stream = RecordStream([source_of(numbered([33, 50]))], seed=1)
    batches = list(stream.batches(16, 0, 83))
    assert [batch.num_rows for batch in batches] == [16] * 5
    rows = [row["id"] for batch in batches for row in batch.to_pylist()]
    assert rows == [row["id"] for row in stream.rows(0, 80)]


def test_a_missing_column_names_owner_and_column() -> None:
    sources = [source_of(plain(a=["x"])), source_of(plain(b=["x"]), owner="hospital-b")]
    with pytest.raises(SchemaMismatch) as refusal:
        RecordStream(sources, ["a"], seed=1)
    assert refusal.value.owner == "hospital-b"
    assert refusal.value.expected == "a"


def test_texts_and_numbers_do_not_mix() -> None:
    sources = [source_of(plain(a=["x"])), source_of(plain(a=[1]), owner="hospital-b")]
    with pytest.raises(SchemaMismatch, check=carries(check="columns", got="int64")):
        RecordStream(sources, ["a"], seed=1)


def test_integers_become_floats_where_another_owner_has_floats() -> None:
    stream = RecordStream([source_of(plain(a=[1])), source_of(plain(a=[2.5]))], seed=1)
    assert sorted(row["a"] for row in stream.rows(0, 2)) == [1.0, 2.5]
    assert stream.schema.field("a").type == pa.float64()


def said(**call: object) -> dict[str, Any]:
    """A turn that calls a tool with these arguments, or speaks."""
    turn: dict[str, Any] = {"role": "assistant", "content": "x"}
    calls = [{"function": {"name": "dose", "arguments": call}}]
    return turn | ({"content": None, "tool_calls": calls} if call else {})


@pytest.mark.claim("C521")
def test_conversations_of_two_owners_keep_their_own_keys() -> None:
    owners = [[said()], [said(ward=1) | {"name": "n"}, said()], [said(unit={"of": "mg"})]]
    sources = [
        source_of(plain(messages=[turns]), owner=f"hospital-{number}")
        for number, turns in enumerate(owners)
    ]
    for order in (sources, sources[::-1]):
        stream = RecordStream(order, ["messages"], seed=1)
        found = [row["messages"] for row in stream.rows(0, len(owners))]
        assert sorted(found, key=str) == sorted(owners, key=str)


@pytest.mark.claim("C521")
@pytest.mark.parametrize(
    ("first", "second"), [(1, 0.5), (0.5, 1), (1, "1"), (True, 1), ({"k": 1}, {"k": 0.5})]
)
def test_no_number_in_a_tool_call_changes_for_another_owners_sake(
    first: object, second: object
) -> None:
    sources = [
        source_of(plain(messages=[[said(mg=value)]]), owner=owner)
        for owner, value in (("hospital-a", first), ("hospital-b", second))
    ]
    with pytest.raises(SchemaMismatch, check=carries(check="columns", column="messages")):
        RecordStream(sources, ["messages"], seed=1)


def test_tools_of_two_owners_keep_their_own_keys() -> None:
    tools = [
        [{"function": {"name": "beds", "parameters": {"ward": {"type": "string"}}}}],
        [{"function": {"name": "dose", "parameters": {"mg": {"type": "number", "least": 1}}}}],
    ]
    sources = [
        source_of(plain(messages=[[said()]], tools=[listed]), owner=f"hospital-{number}")
        for number, listed in enumerate(tools)
    ]
    stream = RecordStream(sources, ["messages", "tools"], seed=1)
    assert sorted((row["tools"] for row in stream.rows(0, 2)), key=str) == tools


@pytest.mark.parametrize("nothing", [pa.null(), pa.list_(pa.null())])
def test_an_owner_without_tools_reads_as_one_with_tools(nothing: pa.DataType) -> None:
    tools = [{"function": {"name": "beds", "parameters": {"ward": {"type": "string"}}}}]
    none: list[Any] = [[]] if pa.types.is_list(nothing) else [None]
    empty = PlainDataset(
        [pa.record_batch({"messages": [[said()]], "tools": pa.array(none, nothing)})]
    )
    pair = [source_of(plain(messages=[[said()]], tools=[tools])), source_of(empty)]
    for order in (pair, pair[::-1]):
        stream = RecordStream(order, ["messages", "tools"], seed=1)
        if pa.types.is_list(nothing):
            assert sorted((row["tools"] for row in stream.rows(0, 2)), key=str) == [[], tools]
            continue
        with pytest.raises(RecordInvalid, check=carries(check="columns", column="tools")):
            list(stream.rows(0, 2))


@pytest.mark.parametrize(
    ("kinds", "joined"),
    [
        ([pa.null(), pa.int64(), pa.float32()], pa.float64()),
        ([pa.list_(pa.null()), pa.list_(pa.int32())], pa.list_(pa.int32())),
        ([pa.binary(), pa.large_binary()], pa.binary()),
        ([pa.null(), pa.null()], pa.null()),
        ([pa.null(), pa.string(), pa.int64()], None),
        ([pa.list_(pa.null()), pa.string()], None),
        ([pa.string(), pa.list_(pa.struct({"role": pa.string()}))], None),
    ],
)
def test_what_says_nothing_of_a_type_has_that_of_the_others(
    kinds: list[pa.DataType], joined: pa.DataType | None
) -> None:
    for order in (kinds, kinds[::-1]):
        found = join_types(order)
        assert all(reads_as("x", kind, found) for kind in order) == (joined is not None)
        assert joined is None or found in (joined, order[0])


def test_large_texts_are_texts() -> None:
    large = PlainDataset(
        [pa.RecordBatch.from_arrays([pa.array(["y"], pa.large_string())], names=["a"])]
    )
    stream = RecordStream([source_of(plain(a=["x"])), source_of(large)], seed=1)
    assert {row["a"] for row in stream.rows(0, 2)} == {"x", "y"}


def test_an_empty_value_is_refused_without_quoting_the_record() -> None:
    stream = RecordStream([source_of(plain(a=["secret-text", None]))], seed=1)
    with pytest.raises(RecordInvalid) as refusal:
        list(stream.rows(0, 2))
    assert refusal.value.owner == "hospital-a"
    assert "secret-text" not in str(refusal.value.to_dict())


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.bin").write_bytes(b"x" * 100)
    raw = sealed_folder(tmp_path / "scan.bin", tmp_path / "raw.sealed").open()
    with pytest.raises(SchemaMismatch, match="records"):
        RecordStream([source_of(raw)], seed=1)


def test_a_damaged_chunk_stops_the_stream(tmp_path: Path) -> None:
    paths = write_records(tmp_path, count=2000)
    folder = sealed_folder(paths["hospital-a.records"], tmp_path / "x.sealed")
    shard = folder.folder / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[-20_000] ^= 1
    shard.write_bytes(data)
    stream = RecordStream([source_of(folder.open())], seed=1)
    with pytest.raises(SealRefused) as refusal:
        list(stream.rows(0, 2000))
    assert not isinstance(refusal.value, ChunkDamaged) or "canary" not in str(refusal.value)


def test_reading_ahead_stops_with_its_reader() -> None:
    before = set(threading.enumerate())  # of earlier tests, and these may end at any moment
    rows = RecordStream([source_of(numbered([100] * 20))], seed=1).rows()
    for _ in range(10):
        next(rows)
    assert set(threading.enumerate()) - before  # the helpers of a beginning reader may linger
    rows.close()
    del rows
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before, 5)


def test_an_error_ahead_reaches_the_reader() -> None:
    def failing() -> Any:
        yield 1
        raise RecordInvalid("broken")

    items = prefetch(failing, 2)
    assert next(items) == 1
    with pytest.raises(RecordInvalid, match="broken"):
        next(items)


def test_reading_ahead_is_bounded() -> None:
    made = []

    def counting() -> Any:
        for number in range(1000):
            made.append(number)
            yield number

    items = prefetch(counting, 3)
    next(items)
    time.sleep(0.2)
    assert len(made) <= 6
    items.close()  # type: ignore[attr-defined]
