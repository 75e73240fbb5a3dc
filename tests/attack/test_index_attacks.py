"""An owner seals and signs an index that lies about its own shards.

What lies behind the end of a shard is not the owner's: memory that held another owner's batch is
used again for the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sealing_world import (
    DATASET_ID,
    OWNER_ID,
    SealedFolder,
    content,
    json_lines,
    sealed_folder,
    with_index,
)
from storage_world import serving
from training_world import source_of

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.description import ShardInfo
from sealtrain.sealing.errors import FileTruncated, RecordInvalid
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.index import MAX_BATCH_ROWS, Batch, BatchTable, Index, IndexedShard
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.recordbatch import parse_record_batch
from sealtrain.training.data.stream import RecordStream

pytestmark = pytest.mark.claim("C101")

VICTIMS = "of another owner"
MIB = 1 << 20


def dataset_of(folder: Path, name: str, text: str, rows: int = 3000) -> SealedFolder:
    source = folder / f"{name}.jsonl"
    source.write_text(json_lines([{"text": f"{text} {n:05d} " * 20} for n in range(rows)]))
    out = folder / f"{name}.sealed"
    return sealed_folder(source, out, salt=name, name=name, owner_name=name)


def first_batch(change: Callable[[Batch], Batch]) -> Callable[[Index], Index]:
    """An index of one shard and one batch, changed."""

    def changed(index: Index) -> Index:
        shard = index.shards[0]
        batch = change(shard.batches[0])
        shards = (replace(shard, batches=BatchTable.of([batch])),)
        return replace(index, shards=shards, records=batch.rows)

    return changed


@pytest.mark.parametrize("offset", [1 << 30, (1 << 63) - 8, (1 << 64) - 8, 8 * MIB])
def test_a_batch_behind_its_shard_is_refused_when_the_index_is_read(
    tmp_path: Path, offset: int
) -> None:
    made = dataset_of(tmp_path, "mallory", "mine")
    made = with_index(made, first_batch(lambda batch: replace(batch, offset=offset)))
    with pytest.raises(DataInvalid) as refused:
        made.open()
    assert refused.value.check == "index"
    assert refused.value.owner == "mallory"
    assert "shard-00000.sealed" in refused.value.message
    assert refused.value.exit_code == 5


def behind_the_content(index: Index) -> Index:
    """Inside the sealed file, of which the hashes at its end are no content."""
    shard = index.shards[0]
    *kept, last = shard.batches
    far = replace(last, offset=(shard.info.size - last.length) // 8 * 8)
    return replace(index, shards=(replace(shard, batches=BatchTable.of([*kept, far])),))


@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_read_that_comes_short_gives_no_room_that_held_another_batch(
    tmp_path: Path, where: str
) -> None:
    alice, mallory = (
        dataset_of(tmp_path, name, text) for name, text in (("alice", VICTIMS), ("mallory", "mine"))
    )
    mallory = with_index(mallory, behind_the_content)
    with serving(tmp_path) as server, alice.open() as victim:
        place: Any = mallory.folder if where == "disk" else server.folder("mallory.sealed")
        with SealedDataset.open(place, mallory.key, root=mallory.description.root) as attacker:
            for _ in range(20):  # Arrow's pool gives the same memory out again
                assert VICTIMS in victim.batch(0).column(0)[0].as_py()
                with pytest.raises(FileTruncated) as refused:
                    attacker.batch(attacker.num_batches - 1)
    assert refused.value.owner == "mallory"
    assert "mallory" in refused.value.message
    assert "shard-00000.sealed" in refused.value.message


@pytest.mark.parametrize("ahead", [0, 2])
def test_no_stream_hands_out_what_another_owner_sealed(tmp_path: Path, ahead: int) -> None:
    alice = dataset_of(tmp_path, "alice", VICTIMS)
    mallory = with_index(dataset_of(tmp_path, "mallory", "mine"), behind_the_content)
    with alice.open() as victim, mallory.open() as attacker:
        sources = [source_of(victim, owner="alice"), source_of(attacker, owner="mallory")]
        with pytest.raises(FileTruncated):
            list(RecordStream(sources, seed=1, ahead=ahead).rows(0, 6000))


def test_padding_is_no_content(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines([{"text": "x" * 50}] * 40))
    made = sealed_folder(source, tmp_path / "a.sealed", padding="fixed:100000")
    made = with_index(made, first_batch(lambda batch: replace(batch, offset=50_000)))
    with made.open() as dataset, pytest.raises(FileTruncated):
        dataset.batch(0)


BATCH = Batch(offset=8, length=1000, rows=10)
SHARD = IndexedShard(
    info=ShardInfo(name="shard-00000.sealed", size=5000, root="ab" * 32),
    kind="arrow",
    file="shard-00000.sealed",
    batches=BatchTable.of([BATCH]),
)
COMMITMENTS = IndexedShard(
    info=ShardInfo(name="commitments.sealed", size=900, root="cd" * 32),
    kind="commitments",
    file="commitments.sealed",
)
RAW = replace(SHARD, kind="raw", batches=BatchTable())
INDEX = Index(
    dataset_id=DATASET_ID,
    name="records",
    owner_id=OWNER_ID,
    owner_name="mallory",
    layout="arrow",
    padding="none",
    suite=Suite.BLAKE3,
    schema=pa.schema([("text", pa.string())]).serialize().to_pybytes(),
    schema_digest="ef" * 32,
    records=10,
    tokens=None,
    shards=(SHARD,),
)
FILES = replace(INDEX, layout="raw", schema=None, records=None, shards=(RAW,))


@pytest.mark.parametrize("index", [INDEX, FILES, replace(INDEX, shards=(SHARD, COMMITMENTS))])
def test_an_index_without_contradiction_is_read(index: Index) -> None:
    assert Index.from_bytes(index.to_bytes()) == index


def one_batch(**changes: int) -> Index:
    batch = replace(BATCH, **changes)
    return replace(
        INDEX, shards=(replace(SHARD, batches=BatchTable.of([batch])),), records=batch.rows
    )


def shards(*found: IndexedShard) -> Index:
    return replace(INDEX, shards=found)


CONTRADICTIONS: dict[str, Index] = {
    "ends a byte behind": one_batch(offset=8, length=4993),
    "begins behind": one_batch(offset=5000),
    "is nowhere": one_batch(length=0),
    "is not aligned": one_batch(offset=9),
    "has no row": one_batch(rows=0),
    "has too many rows": one_batch(rows=MAX_BATCH_ROWS + 1),
    "of no size": shards(replace(SHARD, info=replace(SHARD.info, size=0))),
    "of negative size": shards(replace(SHARD, info=replace(SHARD.info, size=-5000))),
    "one shard twice": replace(shards(SHARD, SHARD), records=20),
    "only commitments": replace(shards(COMMITMENTS), records=0),
    "commitments first": shards(COMMITMENTS, SHARD),
    "commitments with batches": shards(
        replace(SHARD, batches=BatchTable()), replace(COMMITMENTS, batches=BatchTable.of([BATCH]))
    ),
    "raw among records": shards(SHARD, replace(RAW, info=replace(RAW.info, name="b.sealed"))),
    "of no known kind": shards(replace(SHARD, kind="index")),
    "of no known layout": replace(
        shards(replace(SHARD, kind="blob", batches=BatchTable())), layout="blob"
    ),
    "one record more": replace(INDEX, records=11),
    "records not counted": replace(INDEX, records=None),
    "no schema": replace(INDEX, schema=None),
    "files with records": replace(FILES, records=10),
    "files with tokens": replace(FILES, tokens=10),
    "files with a schema": replace(FILES, schema=INDEX.schema),
    "files with batches": replace(FILES, shards=(replace(RAW, batches=BatchTable.of([BATCH])),)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CONTRADICTIONS))
def test_an_index_that_contradicts_itself_is_refused(name: str) -> None:
    with pytest.raises(DataInvalid) as refused:
        Index.from_bytes(CONTRADICTIONS[name].to_bytes())
    assert refused.value.check == "index"
    assert refused.value.owner == "mallory"


def test_a_shard_outside_the_folder_is_refused() -> None:
    for name in ("../a.sealed", ".a.sealed", "a/b.sealed", ""):
        shard = replace(SHARD, info=replace(SHARD.info, name=name))
        with pytest.raises(DataInvalid):
            Index.from_bytes(shards(shard).to_bytes())


@pytest.mark.claim("C103")
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_batch_is_refused_before_it_is_unpacked(compression: str) -> None:
    zeros = pa.record_batch([pa.array([bytes(64 * MIB)], pa.binary())], names=["blob"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, zeros.schema, options=options) as stream:
        stream.write_batch(zeros)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message().serialize()
    assert message.size < 2 * MIB
    schema, rows = zeros.schema, zeros.num_rows
    del zeros
    before = pa.default_memory_pool().max_memory()
    pool = pa.total_allocated_bytes()
    with pytest.raises(RecordInvalid):
        parse_record_batch(message, schema, rows)
    assert pa.total_allocated_bytes() == pool
    assert pa.default_memory_pool().max_memory() == before


def test_rows_that_hold_nothing_are_bounded_too(tmp_path: Path) -> None:
    nothing = pa.record_batch([pa.nulls(5000)], names=["n"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nothing.schema) as stream:
        stream.write_batch(nothing)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message().serialize()
    assert parse_record_batch(message, nothing.schema, 5000).num_rows == 5000
    for rows in (0, 4999, 5001):
        with pytest.raises(RecordInvalid):
            parse_record_batch(message, nothing.schema, rows)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"text", b"\xfftxt"), (b"text", b"name"), (b"\x10\0\0\0", b"\xff\xff\xff\x7f")],
)
def test_a_schema_that_is_spoilt_or_another_is_refused(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    made = dataset_of(tmp_path, "mallory", "mine", rows=10)

    def spoilt(index: Index) -> Index:
        assert index.schema is not None
        assert old in index.schema
        return replace(index, schema=index.schema.replace(old, new))

    with pytest.raises(DataInvalid) as refused:
        with_index(made, spoilt).open()
    assert (refused.value.check, refused.value.owner) == ("index", "mallory")


def test_an_index_too_long_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        Index.from_bytes(content(1) * ((256 << 20) + 1))
