"""What grows with a dataset, and by how much: bytes, objects and requests, never seconds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from sealing_world import (
    DATASET_ID,
    KEY,
    OWNER_ID,
    SealedFolder,
    all_rows,
    json_lines,
    sealed_folder,
    with_index,
)
from storage_world import Server, serving

from sealtrain.errors import LimitExceeded
from sealtrain.sealing import index as index_module
from sealtrain.sealing.description import ShardInfo
from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.index import Batch, BatchTable, Index, IndexedShard, schema_digest_of
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.training.data.order import Order

MIB = 1 << 20
BATCHES_A_SHARD = 64
SCHEMA = pa.schema([("text", pa.string())])


def index_of(shards: int) -> Index:
    """The index of a dataset of so many shards of 64 MiB with 64 record batches each."""
    table = BatchTable.of(
        Batch(offset=8 + number * MIB, length=MIB - 64, rows=640)
        for number in range(BATCHES_A_SHARD)
    )
    return Index(
        dataset_id=DATASET_ID, name="records", owner_id=OWNER_ID, owner_name="a", layout="arrow",
        padding="none", suite=1, schema=SCHEMA.serialize().to_pybytes(),
        schema_digest=schema_digest_of(SCHEMA), records=640 * BATCHES_A_SHARD * shards, tokens=None,
        shards=tuple(
            IndexedShard(
                info=ShardInfo(name=f"shard-{number:05d}.sealed", size=66 * MIB, root="ab" * 32),
                kind="arrow",
                file=f"shard-{number:05d}.sealed",
                batches=table,
            )
            for number in range(shards)
        ),
    )  # fmt: skip


def kept(make: Callable[[], Any]) -> int:
    """Bytes that stay in memory with what ``make`` returns."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert made is not None
    return after - before


def test_an_index_grows_by_a_bounded_number_of_bytes_a_batch(tmp_path: Path) -> None:
    small, large = (index_of(shards).to_bytes() for shards in (20, 420))
    batches = 400 * BATCHES_A_SHARD
    assert (len(large) - len(small)) / batches < 26  # 2.6 MB in 100 GiB

    def opened(data: bytes) -> Callable[[], Any]:
        return lambda: SealedDataset(tmp_path, KEY, Index.from_bytes(data), "0" * 64)

    assert (kept(opened(large)) - kept(opened(small))) / batches < 48  # 5 MB in 100 GiB


def test_an_order_grows_by_a_bounded_number_of_bytes_a_batch() -> None:
    def walked(batches: int) -> Callable[[], Any]:
        def make() -> Order:
            order = Order([[640] * batches], [1.0], seed=1)
            order.round(0, 0)
            return order

        return make

    assert (kept(walked(120_000)) - kept(walked(20_000))) / 100_000 < 32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("scale")
    source = folder / "rows.jsonl"
    source.write_text(json_lines([{"text": f"{n} " + "word " * 300} for n in range(9000)]))
    found = sealed_folder(source, folder / "a.sealed", shard_bytes=MIB)
    assert len(found.description.shards) >= 6
    return found


def test_no_more_shards_stay_open_than_there_is_room_for(made: SealedFolder) -> None:
    room = sum(shard.size for shard in made.description.shards[:2])
    root = made.description.root
    with (
        made.open() as every,
        SealedDataset.open(made.folder, made.key, root=root, kept_bytes=room) as few,
    ):
        for _ in range(2):
            for number in reversed(range(few.num_batches)):
                assert few.batch(number).equals(every.batch(number))
                assert few.open_shards <= 2
        assert every.open_shards == len(made.description.shards)


def test_one_shard_stays_open_where_there_is_room_for_none(made: SealedFolder) -> None:
    root = made.description.root
    with (
        made.open() as every,
        SealedDataset.open(made.folder, made.key, root=root, kept_bytes=0) as one,
    ):
        assert all_rows(one) == all_rows(every)
        assert one.open_shards == 1


def test_a_shard_that_is_opened_again_is_checked_as_at_first(
    made: SealedFolder, tmp_path: Path
) -> None:
    folder = tmp_path / "copy.sealed"
    copytree(made.folder, folder)
    first = folder / "shard-00000.sealed"
    with SealedDataset.open(folder, made.key, root=made.description.root, kept_bytes=0) as dataset:
        dataset.batch(0)
        dataset.batch(dataset.num_batches - 1)  # the first shard is dropped
        spoilt = bytearray(first.read_bytes())
        spoilt[len(spoilt) // 2] ^= 1
        first.write_bytes(spoilt)
        with pytest.raises(RootMismatch):
            all_rows(dataset)


def requests_for(server: Server, made: SealedFolder, batch: int) -> int:
    """Range requests of one batch of a dataset that was opened before."""
    with closing(server.folder(made.folder.name)) as folder:
        dataset = SealedDataset.open(folder, made.key, root=made.description.root)
        before = folder.requests
        dataset.batch(batch)
        return int(folder.requests - before)


def test_a_batch_takes_as_many_requests_in_a_dataset_a_hundred_times_as_large(
    made: SealedFolder, tmp_path: Path
) -> None:
    def listed(index: Index) -> Index:
        """A hundred times as many shards; those that are added are not there, nor asked for."""
        more = tuple(
            replace(shard, info=replace(shard.info, name=f"x{number}-{shard.info.name}"))
            for number in range(100)
            for shard in index.shards
        )
        return replace(index, shards=index.shards + more, records=101 * (index.records or 0))

    copied = replace(made, folder=tmp_path / "many.sealed")
    copytree(made.folder, copied.folder)
    with serving(made.folder.parent) as server:
        few = requests_for(server, made, 3)
    with serving(tmp_path) as server:
        many = requests_for(server, with_index(copied, listed), 3)
    assert few == many <= 6


@pytest.mark.claim("C262")
@pytest.mark.parametrize(
    ("limit", "layout"),
    [("MAX_SHARDS", "raw"), ("MAX_SHARDS", "arrow"), ("MAX_INDEX_BYTES", "arrow")],
)
def test_more_than_an_index_lists_is_refused_while_it_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, layout: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    rows = [{"text": f"{number} " + "long " * 40_000} for number in range(60)]
    if layout == "raw":
        for number in range(5):
            (source / f"{number}.bin").write_bytes(b"bytes")
    else:
        (source / "rows.jsonl").write_text(json_lines(rows))
    monkeypatch.setattr(index_module, limit, 3 if limit == "MAX_SHARDS" else 600)
    path = source if layout == "raw" else source / "rows.jsonl"
    with pytest.raises(LimitExceeded) as refused:
        sealed_folder(path, tmp_path / "out.sealed", layout=layout, shard_bytes=MIB)
    assert refused.value.check == "index"
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]
