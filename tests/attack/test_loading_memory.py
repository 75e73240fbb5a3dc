"""A hundred gigabytes of batches are read in bounded memory, in any order and after any resume."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sealing_world import json_lines, sealed_folder, with_index

from sealtrain.sealing.index import BatchTable, Index

READ = """
import gc, random, sys
from pathlib import Path
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.data.sources import Source

def resident():
    gc.collect()
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1]
    return int(fields.split()[0]) >> 10

folder, key, root = sys.argv[1:]
dataset = SealedDataset.open(Path(folder), DataKey(bytes.fromhex(key)), root=root)
places = random.Random(1)
for _ in range(200):
    dataset.batch(places.randrange(dataset.num_batches))
before = resident()
for _ in range(800):
    dataset.batch(places.randrange(dataset.num_batches))
after_random = resident()
source = Source(role="train", owner="a", name="r", weight=1.0, dataset=dataset)
stream = RecordStream([source], seed=1, ahead=0)
peak = 0
for _ in range(3):
    start = places.randrange(dataset.num_rows)
    for table in stream.batches(64, start, start + 20_000):
        pass
    peak = max(peak, resident())
    first = first if "first" in dir() else peak
print(after_random - before, peak - first, peak)
"""


@pytest.mark.slow
def test_a_hundred_gigabytes_leave_memory_flat(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(
        json_lines([{"text": f"{n} " + "word " * 200, "n": n} for n in range(24_000)])
    )
    made = sealed_folder(source, tmp_path / "d.sealed", shard_bytes=2 << 20)

    def many(index: Index) -> Index:
        """The same batches listed many times: to a reader, as many batches of their own."""
        once = sum(batch.length for shard in index.shards for batch in shard.batches)
        times = (100 << 30) // once + 1
        shards = tuple(
            replace(shard, batches=BatchTable(shard.batches.packed * times))
            for shard in index.shards
        )
        return replace(index, shards=shards, records=24_000 * times)

    made = with_index(made, many)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            READ,
            str(made.folder),
            made.key.reveal().hex(),
            made.description.root,
        ],
        env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        check=True,
    )
    growth, later, peak = map(int, done.stdout.split())
    assert growth < 16, f"{growth} MiB more after 800 batches"
    assert later < 48, f"{later} MiB more after two more places"
    assert peak < 1024
