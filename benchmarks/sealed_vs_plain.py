"""What sealing costs: loaders and one whole training run, sealed and in plaintext.

    python benchmarks/sealed_vs_plain.py [--json] [--megabytes 192] [--rounds 5] [--steps 150]

==================  ===============================================================================
``rows``            shuffled rows per second, sealed / the same loader over plain Arrow files
``rows_map_style``  shuffled rows per second, sealed / a plaintext map-style ``datasets.Dataset``
``training``        wall time of one ``sft`` run, sealed / plaintext: the demo's model and records,
                    checkpoints included (sealed against ``torch.save`` into plain files)
``help``            seconds of ``sealtrain --help``
``verify``          seconds of ``sealtrain verify`` on a simulated run's manifest, whole process
==================  ===============================================================================

``benchmarks/loader.py`` shows more of the loaders, ``benchmarks/sealing.py`` of the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import loader
from sealtrain.recipe.schema import Recipe, load_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.dataset import SealedDataset, seal_dataset
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.store import SealedStore
from sealtrain.training.run import train
from sealtrain.training.sources import Source

REPOSITORY = Path(__file__).resolve().parents[1]
DEMO = REPOSITORY / "examples" / "three_hospitals"
WORLDS = REPOSITORY / "tests" / "support"  # the parts of a whole run, made without training
BARS = {"rows": 0.85, "rows_map_style": 2.0, "training": 1.01, "help": 0.3, "verify": 1.0}


class PlainStore:
    """Checkpoints as plain files, on disk before training goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @contextmanager
    def write(self, name: str, binding: Mapping[str, str | int]) -> Iterator[BinaryIO]:
        """Open a new file."""
        with (self._folder / name).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str, binding: Mapping[str, str | int]) -> Any:
        """Open a file."""
        return (self._folder / name).open("rb")

    def digest(self, name: str) -> str:
        """SHA-256 of a file."""
        return hashlib.sha256((self._folder / name).read_bytes()).hexdigest()

    def names(self) -> tuple[str, ...]:
        """All files."""
        return tuple(sorted(path.name for path in self._folder.iterdir()))

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self._folder / name).unlink()


def training(folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Seconds of the same run over sealed and over plain records, and their ratio."""
    sys.path.insert(0, str(DEMO))
    from plaintext import PlainRecords
    from records import write_records

    write_records(folder)
    recipe = load_recipe(DEMO / "recipe.yaml")
    shorter = recipe.trainer.model_copy(update={"max_steps": steps, "save_steps": steps // 3})
    recipe = recipe.model_copy(update={"trainer": shorter})
    sealed = _sealed(recipe, folder)
    plain = {
        (one.owner, one.name): PlainRecords(folder / one.owner / f"{one.name}.jsonl")
        for one in recipe.datasets
    }
    seconds: dict[str, list[float]] = {"plain": [], "sealed": []}
    for turn in range(rounds + 1):
        plain_store = PlainStore(folder / f"plain-{turn}")
        sealed_store = SealedStore(
            folder / f"sealed-{turn}", DataKey.generate(), label="checkpoint"
        )
        took = {
            "plain": loader.timed(lambda store=plain_store: _run(recipe, plain, store)),
            "sealed": loader.timed(lambda store=sealed_store: _run(recipe, sealed, store)),
        }
        if turn:  # the first turn warms both up
            for side, value in took.items():
                seconds[side].append(value)
    before, after = (statistics.median(seconds[side]) for side in ("plain", "sealed"))
    return {"plain": before, "sealed": after, "ratio": after / before}


def _sealed(recipe: Recipe, folder: Path) -> dict[tuple[str, str], Any]:
    opened = {}
    for one in recipe.datasets:
        keys: list[DataKey] = []

        def stanzas(key: DataKey, _: str, keys: list[DataKey] = keys) -> tuple[Stanza, ...]:
            keys.append(key)
            return ()

        out = folder / f"{one.owner}.{one.name}.sealed"
        description = seal_dataset(
            folder / one.owner / f"{one.name}.jsonl",
            out,
            name=one.name,
            owner_id="00" * 32,
            owner_name=one.owner,
            binding=loader.RECIPE,
            stanzas=stanzas,
            sign=lambda _: b"{}",
        )
        opened[one.owner, one.name] = SealedDataset.open(out, keys[0], root=description.root)
    return opened


def _run(recipe: Recipe, datasets: Mapping[tuple[str, str], Any], store: Any) -> None:
    train(
        recipe,
        run_id="00" * 16,
        base_dir=DEMO,
        sources=[
            Source(
                role=one.role,
                owner=one.owner,
                name=one.name,
                weight=one.weight,
                dataset=datasets[one.owner, one.name],
            )
            for one in recipe.datasets
        ],
        store=store,
        metrics=lambda step, values: None,
        on_checkpoint=lambda ref: None,
        resume=None,
        progress=False,
    )


def help_seconds(rounds: int) -> float:
    """Fastest of several starts of the command line."""
    command = [sys.executable, "-m", "sealtrain", "--help"]
    return min(
        loader.timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        for _ in range(max(3, rounds))
    )


def verify_seconds(folder: Path, rounds: int) -> float:
    """Fastest of several whole ``sealtrain verify`` processes on a simulated run's manifest."""
    sys.path.insert(0, str(WORLDS))
    from manifest_world import make_world

    world = make_world(folder)
    manifest, trust = world.artefacts / "manifest.json", folder / "trust.json"
    manifest.write_bytes(world.manifest())
    trust.write_text(json.dumps(world.trust_document()))
    words = ["verify", str(manifest), "--trust", str(trust), "--json"]
    command = [sys.executable, "-m", "sealtrain", *words]
    return min(
        loader.timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        for _ in range(max(3, rounds))
    )


def aes_gigabytes() -> float:
    """AES-256-GCM of one core, GB/s over 16 KiB chunks in cached memory: the floor of decryption.

    Processors with VAES give 10 to 20, those without it 2 to 4; below 4 the ciphers alone take a
    sixth of the time a plaintext loader needs for rows of 1.6 kB.
    """
    cipher, nonce, out = AESGCM(bytes(32)), bytes(12), bytearray(16384)
    chunk = cipher.encrypt(nonce, bytes(16384), None)
    count = 4000
    seconds = min(
        loader.timed(lambda: [cipher.decrypt_into(nonce, chunk, None, out) for _ in range(count)])
        for _ in range(3)
    )
    return round(count * len(out) / seconds / 1e9, 2)


def machine() -> dict[str, str | int | float | None]:
    """What the numbers were measured on."""
    cpu = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (cpu.read_text() if cpu.exists() else "").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        "aes_gcm_gb_s": aes_gigabytes(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pyarrow", "cryptography", "datasets")},
    }


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        rows = loader.compare(folder / "rows", given.megabytes << 20, given.rounds)
        (folder / "run").mkdir()
        run = training(folder / "run", given.steps, max(1, given.rounds // 2))
        (folder / "verify").mkdir()
        verify = verify_seconds(folder / "verify", given.rounds)
    measured = {
        "rows": rows["columns"]["ratio"],
        "rows_map_style": rows["map_style"]["ratio"],
        "training": run["ratio"],
        "help": help_seconds(given.rounds),
        "verify": verify,
    }
    results = {
        "machine": machine(),
        "rounds": given.rounds,
        "seconds": round(time.monotonic() - began, 1),
        "ratios": measured,
        "bars": BARS,
        "details": {"loader": rows, "training": run},
    }
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{results['machine']}\n")
    for label, value in measured.items():
        bar = "at least" if label.startswith("rows") else "at most"
        print(f"{label:16}{value:8.3f}   {bar} {BARS[label]}")


if __name__ == "__main__":
    main()
