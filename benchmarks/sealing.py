"""Speed of sealed files against plaintext ones of the same shape, as ratios within one run.

    python benchmarks/sealing.py [--json] [--megabytes 256] [--rounds 5] [--folder DIR]

Rows: Arrow record batches of about 1 MiB with a text column (mean 1.6 kB) and two numbers.

======================  ===========================================================================
``batches_touched``     ``SealedDataset.batch(i)`` in random order, one byte of every 64 read;
                        against ``pa.memory_map`` + ``get_batch(i)`` + the same touch
``batches_to_rows``     the same, but the text column delivered as Python strings
``batches_first``       as ``batches_touched`` on a fresh open: group hashes, Arrow validation
``batches_two_threads`` two threads over sealed batches against two over plaintext ones
``batches_of_gcm``      ``SealedDataset.batch(i)`` alone against ``AESGCM.decrypt_into`` of as many
                        16 KiB chunks in cached memory: the most that this machine's AES allows
``sequential_read``     1 MiB reads of a whole sealed file against an unbuffered plain file
``seal``                ``seal_file`` with fsync against copying the plaintext with fsync
``checkpoint_write``    one buffer through ``SealedStore.write`` against ``file.write`` + fsync
======================  ===========================================================================

Plaintext and sealed passes alternate; each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.sealing.chunked import CHUNK_BYTES
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import FileContext, open_file, seal_file
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealer import NewDataset, SealOptions, seal_dataset
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.sealing.store import SealedStore

Pass = Callable[[], float]
OWNER = "00" * 32


def main() -> None:
    """Run every comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: temp)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        results = compare(Path(name), given.megabytes << 20, given.rounds)
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':22}{'plain MB/s':>12}{'sealed MB/s':>13}{'ratio':>8}")
    for label, row in results.items():
        print(f"{label:22}{row['plain']:12.0f}{row['sealed']:13.0f}{row['ratio']:8.2f}")


def compare(folder: Path, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Every comparison: MB/s of both sides and sealed ÷ plain."""
    records, plain = folder / "records.arrow", folder / "plain.arrow"
    write_records(records, size)
    key: list[DataKey] = []

    def stanzas(data_key: DataKey, _: str) -> tuple[Stanza, ...]:
        key.append(data_key)
        return ()

    description = seal_dataset(
        records,
        folder / "d.sealed",
        NewDataset(
            name="bench",
            owner_id=OWNER,
            owner_name="bench",
            binding=RecipeBinding("00" * 20, "00" * 32, OWNER),
            stanzas=stanzas,
            sign=lambda _: b"{}",
        ),
        SealOptions(shard_bytes=1 << 40),
    )

    def dataset() -> SealedDataset:
        return SealedDataset.open(folder / "d.sealed", key[0], root=description.root)

    # The plaintext side reads exactly what was sealed: the one shard's content.
    with dataset() as sealed, plain.open("wb") as file:
        file.write(sealed.open_file(sealed.file_names[0]).readall())
    with pa.memory_map(str(plain)) as source, dataset() as sealed:
        reader = pa.ipc.open_file(source)
        order = list(range(sealed.num_batches))
        random.Random(1).shuffle(order)  # noqa: S311 - an order, not a secret
        total = sum(reader.get_batch(i).nbytes for i in order)
        rows = {
            "batches_touched": (
                timed(lambda: [touch(reader.get_batch(i)) for i in order]),
                timed(lambda: [touch(sealed.batch(i)) for i in order]),
            ),
            "batches_to_rows": (
                timed(lambda: [reader.get_batch(i).column(0).to_pylist() for i in order]),
                timed(lambda: [sealed.batch(i).column(0).to_pylist() for i in order]),
            ),
            "batches_first": (
                timed(lambda: first_pass_plain(plain, order)),
                timed(lambda: first_pass_sealed(dataset, order)),
            ),
            "batches_two_threads": (
                timed(lambda: in_threads(order, lambda i: touch(reader.get_batch(i)))),
                timed(lambda: in_threads(order, lambda i: touch(sealed.batch(i)))),
            ),
        }
        rows["batches_of_gcm"] = (
            timed(lambda: only_gcm(total)),
            timed(lambda: [sealed.batch(i) for i in order]),
        )
        for i in order:
            touch(sealed.batch(i))
        results = measure(rows, total, rounds)
    results |= measure(file_passes(folder, plain), plain.stat().st_size, rounds)
    return results


def file_passes(folder: Path, plain: Path) -> dict[str, tuple[Pass, Pass]]:
    """Comparisons over whole files."""
    key = DataKey.generate()
    context = FileContext(dataset_id="00" * 16, owner_id=OWNER, name="bench")
    with plain.open("rb") as source:
        seal_file(source, folder / "one.sealed", data_key=key, context=context)
    content = memoryview(bytearray(plain.read_bytes()))
    store = SealedStore(folder, key, label="bench")

    def copy_plain() -> None:
        with plain.open("rb") as source, (folder / "copy").open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
            sync(target)

    def seal() -> None:
        (folder / "sealing").unlink(missing_ok=True)
        with plain.open("rb") as source:
            seal_file(source, folder / "sealing", data_key=key, context=context)

    def write_plain() -> None:
        with (folder / "checkpoint").open("wb") as target:
            target.write(content)
            sync(target)

    def write_sealed() -> None:
        with store.write("checkpoint", {"step": 1}) as target:
            target.write(content)

    def read_through(file: io.RawIOBase) -> None:
        buffer = bytearray(1 << 20)
        with file:
            while file.readinto(buffer):
                pass

    return {
        "sequential_read": (
            timed(lambda: read_through(io.FileIO(plain))),
            timed(lambda: read_through(open_file(folder / "one.sealed", key))),
        ),
        "seal": (timed(copy_plain), timed(seal)),
        "checkpoint_write": (timed(write_plain), timed(write_sealed)),
    }


def measure(
    rows: dict[str, tuple[Pass, Pass]], size: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Median MB/s of both passes, alternating, after one round that is thrown away."""
    results = {}
    for label, (plain, sealed) in rows.items():
        pairs = [(plain(), sealed()) for _ in range(rounds + 1)][1:]
        left = statistics.median(pair[0] for pair in pairs)
        right = statistics.median(pair[1] for pair in pairs)
        results[label] = {
            "plain": round(size / left / 1e6, 1),
            "sealed": round(size / right / 1e6, 1),
            "ratio": round(left / right, 3),
        }
    return results


def write_records(path: Path, size: int) -> None:
    """An Arrow file of about ``size`` bytes in record batches of about 1 MiB."""
    rng = np.random.default_rng(1)
    words = [
        "".join(chr(97 + c) for c in rng.integers(0, 26, n)) for n in rng.integers(2, 11, 4096)
    ]
    schema = pa.schema([("text", pa.string()), ("label", pa.int64()), ("score", pa.float64())])
    rows = 620
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while sink.tell() < size:
            counts = rng.integers(50, 450, rows)
            picks = rng.integers(0, len(words), int(counts.sum()))
            parts = np.split(picks, np.cumsum(counts)[:-1])
            text = [" ".join(words[i] for i in part) for part in parts]
            batch = [text, rng.integers(0, 9, rows), rng.random(rows)]
            writer.write_batch(pa.record_batch([pa.array(c) for c in batch], schema=schema))


def only_gcm(size: int) -> None:
    """Decrypt as many chunks as ``size`` bytes need, a mebibyte of memory over and over."""
    aead, nonce = AESGCM(bytes(32)), bytes(12)
    chunk = aead.encrypt(nonce, bytes(CHUNK_BYTES), None)
    sealed = memoryview(bytearray(chunk * 64))
    plain = memoryview(bytearray(64 * CHUNK_BYTES))
    for number in range(size // CHUNK_BYTES):
        at = number % 64
        aead.decrypt_into(
            nonce,
            sealed[at * len(chunk) : (at + 1) * len(chunk)],
            None,
            plain[at * CHUNK_BYTES : (at + 1) * CHUNK_BYTES],
        )


def touch(batch: pa.RecordBatch) -> int:
    """Read one byte of every cache line of a batch."""
    total = 0
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                total += int(np.frombuffer(buffer, dtype=np.uint8)[::64].sum())
    return total


def first_pass_plain(path: Path, order: list[int]) -> None:
    """Open, touch everything once, close."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for i in order:
            touch(reader.get_batch(i))


def first_pass_sealed(dataset: Callable[[], SealedDataset], order: list[int]) -> None:
    """Open, touch everything once, close."""
    with dataset() as opened:
        for i in order:
            touch(opened.batch(i))


def in_threads(order: list[int], work: Callable[[int], int], threads: int = 2) -> None:
    """Share ``order`` among threads."""

    def run(part: list[int]) -> None:
        for i in part:
            work(i)

    running = [threading.Thread(target=run, args=(order[k::threads],)) for k in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def timed(work: Callable[[], object]) -> Pass:
    """``work`` as a function that returns its wall time in seconds."""

    def run() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return run


def sync(file: io.BufferedWriter) -> None:
    """Flush to the disk."""
    file.flush()
    os.fsync(file.fileno())


if __name__ == "__main__":
    main()
