"""Shuffled rows per second from sealed data, as ratios within one run.

    python benchmarks/loader.py [--json] [--megabytes 192] [--rounds 5] [--epochs 3] [--folder DIR]

Three owners; record batches of about 1 MiB; a text column (mean 1.6 kB) and three small ones. All
sides read the same rows, a batch of 64 at a time, in shuffled order.

=================  ================================================================================
``columns``        ``RecordStream.batches``: Arrow columns, every text made a Python string
``dictionaries``   ``RecordStream.rows``: one dictionary a row, as trainers of rows want it
``first_epoch``    as ``columns`` on freshly opened data: the signed root is checked on first touch
``map_style``      ``columns`` of sealed data against a plaintext map-style ``datasets.Dataset`` on
                   a memory-mapped Arrow file, read by 64 shuffled indices at a time
``resume``         milliseconds from nothing to the first batch in the middle of an epoch; its ratio
                   is plaintext / sealed
=================  ================================================================================

The plaintext side of the first three is the same loader over memory-mapped Arrow files, without
reading ahead: it has nothing to wait for, and a thread would only slow it down. The first two read
``--epochs`` epochs in one go, the start of the reading process included. Sides alternate; figures
are medians of the rounds, and ``best`` is the ratio of each side's best round. ``cpu`` is processor
time, of all processes and threads, sealed / plain: what a busy machine pays.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np
import pyarrow as pa

from sealtrain.training.data.sources import Source
from sealtrain.training.data.stream import AHEAD_ROUNDS, RecordStream
from twosided import Sealed, seal

OWNERS = 3
ROWS_PER_BATCH = 640
BATCH = 64


class PlainDataset:
    """A memory-mapped Arrow file behind the interface of a sealed dataset."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.dataset_id, self.root = "0" * 32, "0" * 64
        self.schema: pa.Schema | None = self._reader.schema
        self.batch_rows = (ROWS_PER_BATCH,) * self._reader.num_record_batches

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, not copied."""
        return self._reader.get_batch(number)


class Data:
    """The same rows sealed, as plain Arrow files, and as one file for ``datasets``."""

    def __init__(self, folder: Path, size: int) -> None:
        self.rows = 0
        self._folder = folder
        self._sealed: list[Sealed] = []
        with (
            pa.OSFile(str(folder / "all.arrow"), "wb") as everything,
            pa.ipc.new_stream(everything, _schema()) as whole,
        ):
            for owner in range(OWNERS):
                self._write(owner, size // OWNERS, whole)

    def _write(self, owner: int, size: int, whole: pa.RecordBatchWriter) -> None:
        path = self._folder / f"{owner}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _schema()) as writer:
            for batch in _batches(owner, size):
                writer.write_batch(batch)
                whole.write_batch(batch)
                self.rows += batch.num_rows

        out = self._folder / f"{owner}.sealed"
        self._sealed.append(seal(path, out, owner=f"owner-{owner}", name="bench"))

    def sealed(self, stack: ExitStack) -> RecordStream:
        """A stream over freshly opened sealed datasets."""
        return _stream(stack.enter_context(dataset.open()) for dataset in self._sealed)

    def plain(self) -> RecordStream:
        """The same stream over plain Arrow files."""
        opened = (PlainDataset(self._folder / f"{owner}.arrow") for owner in range(OWNERS))
        return _stream(opened, ahead=0)

    def map_style(self) -> datasets.Dataset:
        """All rows as ``datasets`` maps them."""
        return datasets.Dataset.from_file(str(self._folder / "all.arrow"))


def _schema() -> pa.Schema:
    return pa.schema(
        [("text", pa.string()), ("id", pa.int64()), ("label", pa.int64()), ("origin", pa.string())]
    )


def _batches(owner: int, size: int) -> Iterator[pa.RecordBatch]:
    source = random.Random(owner)  # noqa: S311 - filler, not a secret
    words = [f"w{number:04d}" for number in range(5000)]
    texts = [" ".join(source.choices(words, k=source.randint(120, 410))) for _ in range(4000)]
    written = number = 0
    while written < size:
        batch = pa.RecordBatch.from_pydict(
            {
                "text": source.choices(texts, k=ROWS_PER_BATCH),
                "id": list(range(number, number + ROWS_PER_BATCH)),
                "label": source.choices((0, 1), k=ROWS_PER_BATCH),
                "origin": [f"hospital-{owner}"] * ROWS_PER_BATCH,
            },
            schema=_schema(),
        )
        yield batch
        number += ROWS_PER_BATCH
        written += batch.nbytes


def _stream(opened: Iterator[Any], *, ahead: int = AHEAD_ROUNDS) -> RecordStream:
    return RecordStream(
        [
            Source(role="train", owner=f"owner-{number}", name="bench", weight=1.0, dataset=dataset)
            for number, dataset in enumerate(opened)
        ],
        seed=1,
        ahead=ahead,
    )


def columns(stream: RecordStream, rows: int) -> None:
    """Read as columns of Python values."""
    for table in stream.batches(BATCH, 0, rows):
        table.to_pydict()


def dictionaries(stream: RecordStream, rows: int) -> None:
    """Read as one dictionary a row."""
    for _row in stream.rows(0, rows):
        pass


def indexed(dataset: datasets.Dataset, order: list[list[int]]) -> None:
    """Read by index, as a data loader without workers does."""
    for indices in order:
        dataset[indices]


def compare(folder: Path, size: int, rounds: int, epochs: int) -> dict[str, dict[str, float]]:
    """Every comparison.

    Args:
        folder: Where to write both kinds of data.
        size: Bytes of records.
        rounds: Passes of each side.
        epochs: Epochs of a pass, for ``columns`` and ``dictionaries``.

    Returns:
        Rows per second of both sides (milliseconds for ``resume``) and the ratios.
    """
    data = Data(folder, size)
    rows = data.rows // BATCH * BATCH
    sides: dict[str, list[list[Spent]]] = {
        name: [[], []] for name in ("columns", "dictionaries", "first_epoch", "map_style", "resume")
    }
    generator = np.random.default_rng(1)
    mapped = data.map_style()
    with ExitStack() as stack:
        sealed, plain = data.sealed(stack), data.plain()
        for _ in range(rounds):
            order = generator.permutation(data.rows)[:rows].reshape(-1, BATCH).tolist()
            both = sides["columns"]
            both[0].append(spent(lambda: columns(plain, rows * epochs), epochs))
            both[1].append(spent(lambda: columns(sealed, rows * epochs), epochs))
            sides["map_style"][0].append(spent(lambda order=order: indexed(mapped, order)))
            sides["map_style"][1].append(both[1][-1])
            both = sides["dictionaries"]
            both[0].append(spent(lambda: dictionaries(plain, rows * epochs), epochs))
            both[1].append(spent(lambda: dictionaries(sealed, rows * epochs), epochs))
            with ExitStack() as fresh_stack:
                fresh = data.sealed(fresh_stack)
                sides["first_epoch"][0].append(spent(lambda: columns(data.plain(), rows)))
                sides["first_epoch"][1].append(spent(lambda fresh=fresh: columns(fresh, rows)))
            both = sides["resume"]
            both[0].append(spent(lambda: next(data.plain().batches(BATCH, rows // 2))))
            with ExitStack() as fresh_stack:
                both[1].append(spent(lambda: resumed(data, fresh_stack, rows // 2)))
    return {
        name: compared(*both, None if name == "resume" else rows) for name, both in sides.items()
    }


def compared(plain: list[Spent], sealed: list[Spent], rows: int | None) -> dict[str, float]:
    """One line: medians as rows per second, or as milliseconds without ``rows``, and ratios."""
    before, after = (
        statistics.median(timing.seconds for timing in side) for side in (plain, sealed)
    )
    return {
        "plain": rows / before if rows else before * 1000,
        "sealed": rows / after if rows else after * 1000,
        "ratio": before / after,
        "best": min(timing.seconds for timing in plain) / min(timing.seconds for timing in sealed),
        "cpu": statistics.median(timing.processor for timing in sealed)
        / statistics.median(timing.processor for timing in plain),
    }


def resumed(data: Data, stack: ExitStack, row: int) -> None:
    """Open everything and read the first batch from a position on."""
    next(data.sealed(stack).batches(BATCH, row))


@dataclass(frozen=True, slots=True)
class Spent:
    """What a pass took.

    Attributes:
        seconds: By the clock.
        processor: Seconds of all threads and of processes that ended.
    """

    seconds: float
    processor: float


def spent(work: Callable[[], object], passes: int = 1) -> Spent:
    """What one of so many passes takes that ``work`` makes."""
    used = processor()
    seconds = timed(work)
    return Spent(seconds / passes, (processor() - used) / passes)


def processor() -> float:
    """Seconds of processor time so far, of this process and of children that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Run every comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: temp)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        results = compare(Path(name), given.megabytes << 20, given.rounds, given.epochs)
    if given.json:
        print(json.dumps(results, indent=2))
        return
    head = f"{'ratio':>8}{'best':>8}{'cpu':>8}"
    print(f"{'':14}{'plain':>12}{'sealed':>12}{head}   rows/s (resume: ms)")
    for label, row in results.items():
        ratios = "".join(f"{row[name]:8.2f}" for name in ("ratio", "best", "cpu"))
        print(f"{label:14}{row['plain']:12,.0f}{row['sealed']:12,.0f}{ratios}")


if __name__ == "__main__":
    main()
