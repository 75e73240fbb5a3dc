"""The sealed data path against what others offer, as ratios within one run.

    python benchmarks/data_path.py [--json] [--megabytes 128] [--rounds 3] [--no-peers]

Rows of a text column (mean 1.6 kB) and three small ones, shuffled, in batches of 64. What the text
of a row begins with makes plaintext on a disk easy to find.

============== ===================================================================================
``sealed``     ``RecordStream.batches`` over sealed data, every value made a Python object
``arrow``      the same loader over memory-mapped plaintext Arrow
``hf-map``     ``datasets.Dataset`` by 64 shuffled indices at a time, plaintext
``hf-stream``  ``datasets.IterableDataset`` over Parquet, shuffled by its buffer, plaintext
``parquet``    Parquet modular encryption (AES-GCM), row groups in random order
``mosaic``     MosaicML streaming, plaintext
``lit-…``      litdata 0.2.73: plaintext, and Fernet by chunk
``defect``     litdata 0.2.76 with Fernet by sample: whether rows lie in the clear on the disk
============== ===================================================================================

Peers are installed below the temporary folder, without their dependencies on image packages, beside
what this environment has; one that cannot be installed is left out and named. Further lines: rows
in order (``scan`` by ``read_all``, which works ahead; ``batch by batch`` in one thread, which does
not), tokens per second against a numpy memmap, resume, and the order for 1, 2, 4, 8 ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loader import BATCH, PlainDataset, _batches, _schema, columns, indexed, timed
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealer import NewDataset, seal_dataset
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.sources import Source
from sealtrain.training.data.stream import RecordStream, read_all

MARK = "plainly-readable-mark"
RECIPE = RecipeBinding("00" * 20, "00" * 32, "00" * 32)
LITDATA = ("lightning-utilities", "tifffile", "obstore")
MOSAIC = ("Brotli", "python-snappy<1", "cramjam", "xxhash", "zstd<2", "catalogue")
PEERS = {
    "lit-plain": ("litdata==0.2.73", LITDATA, "plain"),
    "lit-fernet": ("litdata==0.2.73", LITDATA, "chunk"),
    "defect": ("litdata==0.2.76", LITDATA, "sample"),
    "mosaic": ("mosaicml-streaming==0.13.0", MOSAIC, "mosaic"),
}
SEQUENCE = 2048
SEQUENCES = 16


class Data:
    """The same rows in every form that is read here."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.rows = self.bytes = 0
        with (
            pa.OSFile(str(folder / "file.arrow"), "wb") as file,
            pa.OSFile(str(folder / "stream.arrow"), "wb") as stream,
            pa.ipc.new_file(file, _schema()) as first,
            pa.ipc.new_stream(stream, _schema()) as second,
            pq.ParquetWriter(folder / "plain.parquet", _schema()) as parquet,
            pq.ParquetWriter(
                folder / "sealed.parquet",
                _schema(),
                compression="none",
                encryption_properties=_parquet_keys()[0],
            ) as encrypted,
        ):
            for plain in _batches(0, size):
                batch = _marked(plain)
                first.write_batch(batch)
                second.write_batch(batch)
                parquet.write_batch(batch)
                encrypted.write_batch(batch)
                self.rows += batch.num_rows
                self.bytes += batch.nbytes
        self.rows -= self.rows % BATCH
        self.key, self.root = _sealed(folder / "file.arrow", folder / "rows.sealed")

    def sealed(self, stack: ExitStack) -> RecordStream:
        """Our stream, freshly opened."""
        opened = SealedDataset.open(self.folder / "rows.sealed", self.key, root=self.root)
        return _stream(stack.enter_context(opened))

    def arrow(self) -> RecordStream:
        """The same stream over plaintext."""
        return _stream(PlainDataset(self.folder / "file.arrow"))


def _marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    texts = pa.array([f"{MARK} {text}" for text in batch.column("text").to_pylist()], pa.string())
    return batch.set_column(0, batch.schema.field(0), texts)


def _sealed(source: Path, out: Path) -> tuple[DataKey, str]:
    keys: list[DataKey] = []

    def stanzas(data_key: DataKey, _: str) -> tuple[Stanza, ...]:
        keys.append(data_key)
        return ()

    made = seal_dataset(
        source,
        out,
        NewDataset(
            name="bench",
            owner_id="00" * 32,
            owner_name="bench",
            binding=RECIPE,
            stanzas=stanzas,
            sign=lambda _: b"{}",
        ),
    )
    return keys[0], made.root


def _stream(dataset: Any) -> RecordStream:
    return RecordStream([_source(dataset)], seed=1)


def _source(dataset: Any) -> Source:
    return Source(role="train", owner="o", name="bench", weight=1.0, dataset=dataset)


def _sealed_beside(label: str) -> str:
    """Which sealed reader a reader is compared with."""
    way, comma, _ = label.partition(",")
    return f"{way}, sealed" if comma else "sealed"


def _parquet_keys() -> tuple[Any, Any]:
    import pyarrow.parquet.encryption as pe

    key = bytes(range(32))
    return (
        pe.create_encryption_properties(key, aad_prefix=b"rows", store_aad_prefix=False),
        pe.create_decryption_properties(key, aad_prefix=b"rows"),
    )


def streamed(data: Data) -> None:
    """Hugging Face streaming with its shuffle buffer."""
    path = str(data.folder / "plain.parquet")
    found = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
    for _batch in found.shuffle(seed=1, buffer_size=1000).batch(BATCH):
        pass


def encrypted(data: Data, seed: int) -> None:
    """Parquet modular encryption by row group, shuffled inside each."""
    file = pq.ParquetFile(data.folder / "sealed.parquet", decryption_properties=_parquet_keys()[1])
    generator = np.random.default_rng(seed)
    for group in generator.permutation(file.num_row_groups):
        table = file.read_row_group(int(group))
        table = table.take(pa.array(generator.permutation(table.num_rows)))
        for start in range(0, table.num_rows, BATCH):
            table.slice(start, BATCH).to_pydict()


def scanned(dataset: Any) -> None:
    """Every batch in order, as evaluation reads them, as Python values."""
    for batch in read_all([_source(dataset)]):
        batch.to_pydict()


def batch_by_batch(dataset: Any) -> None:
    """Every batch in order, opened in this thread when it is asked for, as Python values."""
    for number in range(len(dataset.batch_rows)):
        dataset.batch(number).to_pydict()


def shuffled_rows(data: Data, rounds: int) -> dict[str, list[float]]:
    """Rows per second of everything that runs in this environment, by round."""
    rates: dict[str, list[float]] = {}
    mapped = datasets.Dataset.from_file(str(data.folder / "stream.arrow"))
    generator = np.random.default_rng(1)

    def note(name: str, work: Callable[[], object]) -> None:
        rates.setdefault(name, []).append(data.rows / timed(work))

    with ExitStack() as stack:
        sealed, plain = data.sealed(stack), data.arrow()
        opened = stack.enter_context(
            SealedDataset.open(data.folder / "rows.sealed", data.key, root=data.root)
        )
        mapped_arrow = PlainDataset(data.folder / "file.arrow")
        for number in range(rounds):
            order = generator.permutation(data.rows).reshape(-1, BATCH).tolist()
            note("arrow", lambda: columns(plain, data.rows))
            note("sealed", lambda: columns(sealed, data.rows))
            note("hf-map", lambda order=order: indexed(mapped, order))
            note("hf-stream", lambda: streamed(data))
            note("parquet", lambda number=number: encrypted(data, number))
            for side, dataset in (("arrow", mapped_arrow), ("sealed", opened)):
                note(f"scan, {side}", lambda dataset=dataset: scanned(dataset))
                note(f"batch by batch, {side}", lambda dataset=dataset: batch_by_batch(dataset))
    return rates


def tokens(folder: Path, size: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second: random crops of a memmap, and our stream over the same tokens."""
    values = np.random.default_rng(1).zipf(1.3, size // 2).clip(max=65_535).astype(np.uint16)
    values = values[: len(values) // SEQUENCE * SEQUENCE]
    values.tofile(folder / "tokens.bin")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), SEQUENCE)
    with pa.ipc.new_file(str(folder / "tokens.arrow"), pa.schema([("t", lists.type)])) as out:
        for start in range(0, len(lists), 256):
            out.write_batch(pa.record_batch([lists[start : start + 256]], names=["t"]))
    key, root = _sealed(folder / "tokens.arrow", folder / "tokens.sealed")
    memory = np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r")
    generator = np.random.default_rng(2)
    count = len(lists) // SEQUENCES * SEQUENCES

    def crops() -> None:
        for _ in range(count // SEQUENCES):
            places = generator.integers(0, len(memory) - SEQUENCE, SEQUENCES)
            np.stack([memory[place : place + SEQUENCE].astype(np.int64) for place in places])

    def ours(stream: RecordStream) -> None:
        for table in stream.batches(SEQUENCES, 0, count):
            flat = table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
            flat.reshape(SEQUENCES, SEQUENCE).astype(np.int64)

    rates: dict[str, list[float]] = {"memmap": [], "sealed": []}
    with SealedDataset.open(folder / "tokens.sealed", key, root=root) as opened:
        stream = _stream(opened)
        for _ in range(rounds):
            rates["memmap"].append(count * SEQUENCE / timed(crops))
            rates["sealed"].append(count * SEQUENCE / timed(lambda: ours(stream)))
    return rates


def resume(data: Data, rounds: int) -> dict[str, float]:
    """Milliseconds from nothing to the first batch at a random place, and bytes of state."""
    places = random.Random(1)  # noqa: S311 - a place, not a secret
    spent = []
    for _ in range(max(rounds, 5)):
        row = places.randrange(data.rows - BATCH)
        with ExitStack() as stack:
            spent.append(timed(lambda: next(data.sealed(stack).batches(BATCH, row))))  # noqa: B023
    return {
        "milliseconds": statistics.median(spent) * 1000,
        "state_bytes": float(len(json.dumps({"row": data.rows}))),
    }


def same_for_ranks(data: Data, steps: int = 40, size: int = 64) -> bool:
    """Whether 1, 2, 4 and 8 ranks together read the same global batches."""
    with ExitStack() as stack:
        stream = data.sealed(stack)
        found = []
        for world in (1, 2, 4, 8):
            parts = [
                [
                    value
                    for batch in stream.rounds(
                        0, steps * size, part=RankPart(rank=rank, world=world, step=size)
                    )
                    for value in batch.column("id").to_pylist()
                ]
                for rank in range(world)
            ]
            each = size // world
            found.append(
                [
                    sorted(sum((part[t * each : (t + 1) * each] for part in parts), []))  # noqa: RUF017
                    for t in range(steps)
                ]
            )
        return all(value == found[0] for value in found)


def peers(data: Data, rounds: int) -> tuple[dict[str, list[float]], dict[str, str], bool | None]:
    """Rows per second of the peers that could be installed, why others could not, the defect."""
    rates: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    clear: bool | None = None
    for name, (package, needs, mode) in PEERS.items():
        try:
            python = _environment(data.folder / package, package, needs)
            script = Path(__file__).with_name("data_path_peers.py")
            words = [mode, data.folder / "stream.arrow", data.folder / name, str(rounds)]
            done = subprocess.run(
                [python, script, *words], capture_output=True, text=True, timeout=1800, check=True
            )
            found = json.loads(done.stdout.strip().splitlines()[-1])
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            missing[name] = lines[-1][:160] if lines else type(error).__name__
            continue
        if name == "defect":
            clear = found["clear"]
        elif found["rates"]:
            rates[name] = found["rates"]
        else:
            missing[name] = "it could not read what it wrote"
    return rates, missing, clear


def _environment(folder: Path, package: str, needs: tuple[str, ...]) -> Path:
    """A Python with one peer, and what this environment has behind it."""
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        inner = next(folder.glob("lib/python*/site-packages"))
        (inner / "behind.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
        subprocess.run(
            [*install, "--ignore-installed", package, *needs],
            check=True,
            capture_output=True,
            text=True,
        )
    return python


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true", help="install nothing")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: temp)")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        data = Data(Path(name), given.megabytes << 20)
        rates = shuffled_rows(data, given.rounds)
        missing: dict[str, str] = {}
        clear = None
        if not given.no_peers:
            found, missing, clear = peers(data, given.rounds)
            rates |= found
        by_token = tokens(Path(name), given.megabytes << 20, given.rounds)
        resumed = resume(data, given.rounds)
        same = same_for_ranks(data)
    middle = {label: statistics.median(values) for label, values in rates.items()}
    size = data.bytes / data.rows / 1e6
    results = {
        "rows": {
            label: {
                "rows_per_second": rate,
                "megabytes_per_second": rate * size,
                "sealed_is_times": middle[_sealed_beside(label)] / rate,
            }
            for label, rate in middle.items()
        },
        "tokens": {label: statistics.median(values) for label, values in by_token.items()},
        "resume": resumed,
        "same_batches_for_1_2_4_8_ranks": same,
        "litdata_0_2_76_fernet_by_sample_in_clear": clear,
        "not_compared": missing,
        "seconds": time.perf_counter() - began,
    }
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':24}{'rows/s':>12}{'MB/s':>9}{'sealed is':>11}")
    for label, row in results["rows"].items():
        print(
            f"{label:24}{row['rows_per_second']:12,.0f}{row['megabytes_per_second']:9,.0f}"
            f"{row['sealed_is_times']:10.2f}x"
        )
    ratio = results["tokens"]["sealed"] / results["tokens"]["memmap"]
    print(f"tokens/s          {results['tokens']['sealed']:12,.0f}, {ratio:.2f} x memmap crops")
    print(
        f"resume            {resumed['milliseconds']:.1f} ms, state {resumed['state_bytes']:.0f} B"
    )
    print(f"ranks 1, 2, 4, 8  {'the same batches' if same else 'DIFFERENT BATCHES'}")
    if clear is not None:
        print(
            f"litdata 0.2.76    rows {'in the clear' if clear else 'not in the clear'} on the disk"
        )
    for label, why in missing.items():
        print(f"{label} was not compared: {why}")


if __name__ == "__main__":
    main()
