"""What a row costs where a process of its own opens it, against a thread of the keeper.

    python benchmarks/opener.py [--json] [--megabytes 96] [--rounds 6] [--folder DIR]

Record batches of about 1 MiB with a text column (mean 1.6 kB) and two small ones are laid into the
slots of a rank, one after another, by both sides in turn. ``cpu`` is processor time of all
processes and threads for each row, ``wall`` the time for all rows in the best round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

import sealtrain.guest.keeper  # noqa: F401  # what a keeper has loaded
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.opener import Opener
from sealtrain.guest.workload.opening import SLOT_MARGIN, SlotFiller
from sealtrain.recipe.importable import Importable
from sealtrain.training.data.sources import Source
from twosided import Sealed, seal

ROWS_PER_BATCH = 640
COLUMNS = ["text", "label"]
SLOTS = 2


def main() -> None:
    """Measure both sides and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--megabytes", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = measured(Path(folder), args.megabytes, args.rounds)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for side in ("thread", "opener"):
        print(f"{side:8} cpu {found[side]['cpu_us']:.2f} µs a row, {found[side]['wall_s']:.2f} s")


def measured(folder: Path, megabytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Both sides over the same sealed data."""
    sealed = _sealed(folder, megabytes)
    dataset = sealed.open()
    source = Source(role="train", owner="owner", name="bench", weight=1.0, dataset=dataset)
    slot_bytes = dataset.largest_batch + dataset.largest_batch // 8 + 2 * SLOT_MARGIN
    memory, descriptor = SharedMemory.create(SLOTS * slot_bytes)
    filler = SlotFiller([source], COLUMNS)
    opener = Opener(ranks=1, importable=_installed())
    manifest = SimpleNamespace(
        dataset_id=dataset.dataset_id,
        root=dataset.root,
        owner="owner",
        name="bench",
        shards=len(list(sealed.folder.glob("shard-*"))),
    )
    found: Any = SimpleNamespace(role="train", folder=sealed.folder, columns={}, manifest=manifest)
    try:
        opener.open([found], {dataset.dataset_id: sealed.key}, COLUMNS)
        opener.take_slots(0, descriptor, slot_bytes)

        def by_thread(batch: int) -> object:
            slot = batch % SLOTS
            return filler.lay(memory, slot_bytes, dataset=0, batch=batch, slot=slot)

        def by_opener(batch: int) -> object:
            slot = batch % SLOTS
            return opener.lay(0, dataset=0, batch=batch, slot=slot, slot_bytes=slot_bytes)

        sides = {"thread": by_thread, "opener": by_opener}
        runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, lay in sides.items():
                runs[side].append(_round(lay, dataset.num_batches))
        return {
            side: {
                "cpu_us": statistics.median(cpu for cpu, _ in figures) / dataset.num_rows * 1e6,
                "wall_s": min(wall for _, wall in figures),
            }
            for side, figures in runs.items()
        }
    finally:
        opener.end()
        opener.close()


def _round(lay: Callable[[int], object], batches: int) -> tuple[float, float]:
    before, begun = _cpu(), time.monotonic()
    for batch in range(batches):
        lay(batch)
    return _cpu() - before, time.monotonic() - begun


def _cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for pid in _children():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children() -> list[int]:
    return [
        int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ]


def _installed() -> Importable:
    found = {distribution.metadata["Name"]: distribution for distribution in distributions()}
    listed = {name: [str(path) for path in item.files or ()] for name, item in found.items()}
    return Importable(found, listed)


def _sealed(folder: Path, megabytes: int) -> Sealed:
    source = random.Random(1)  # noqa: S311 - filler, not a secret
    words = [f"w{number:04d}" for number in range(5000)]
    texts = [" ".join(source.choices(words, k=source.randint(120, 410))) for _ in range(2000)]
    schema = pa.schema([("text", pa.string()), ("id", pa.int64()), ("label", pa.int64())])
    path = folder / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for _ in range(megabytes):
            rows = [source.choice(texts) for _ in range(ROWS_PER_BATCH)]
            numbers = list(range(ROWS_PER_BATCH))
            writer.write_batch(pa.record_batch([rows, numbers, numbers], schema=schema))
    return seal(path, folder / "rows.sealed", owner="owner", name="bench")


if __name__ == "__main__":
    main()
