"""What sealing costs: loaders and one whole training run, sealed and in plaintext.

    python benchmarks/sealed_vs_plain.py [--json] [--megabytes 192] [--rounds 5] [--steps 150]

==================  ===============================================================================
``rows``            shuffled rows per second as trainers read them, one dictionary each: sealed /
                    the same loader over plain Arrow files
``rows_as_columns`` the same rows as columns of Python values, where little else is left to do
``rows_map_style``  shuffled rows per second, sealed / a plaintext map-style ``datasets.Dataset``
``resume``          milliseconds from nothing to the first batch of 64 rows, amid an epoch
``training``        wall time of one ``sft`` run, sealed / plaintext: the demo's model and records,
                    checkpoints included (sealed against ``torch.save`` into plain files)
``help``            seconds of ``sealtrain --help``
``verify``          seconds of ``sealtrain verify`` on a simulated run's manifest, whole process
==================  ===============================================================================

``benchmarks/loader.py`` shows more of the loaders, ``benchmarks/sealing.py`` of the files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import loader
from measured_on import machine
from sealtrain.recipe.schema import load_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from twosided import PlainRecords, PlainStore, run, seal

REPOSITORY = Path(__file__).resolve().parents[1]
DEMO = REPOSITORY / "examples" / "three_hospitals"
WORLDS = REPOSITORY / "tests" / "support"  # the parts of a whole run, made without training
BARS = {
    "rows": 0.85,
    "rows_as_columns": 0.85,
    "rows_map_style": 2.0,
    "resume": 50.0,
    "training": 1.01,
    "help": 0.3,
    "verify": 1.0,
}


def training(folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Seconds of the same run over sealed and over plain records, and their ratio."""
    sys.path.insert(0, str(DEMO))
    from records import write_records

    write_records(folder)
    recipe = load_recipe(DEMO / "recipe.yaml")
    shorter = recipe.trainer.model_copy(update={"max_steps": steps, "save_steps": steps // 3})
    recipe = recipe.model_copy(update={"trainer": shorter})
    sealed = {
        f"{dataset.owner}.{dataset.name}": seal(
            folder / dataset.owner / f"{dataset.name}.jsonl",
            folder / f"{dataset.owner}.{dataset.name}.sealed",
            owner=dataset.owner,
            name=dataset.name,
        ).open()
        for dataset in recipe.datasets
    }
    plain = {key: PlainRecords(dataset) for key, dataset in sealed.items()}
    seconds: dict[str, list[float]] = {"plain": [], "sealed": []}
    for turn in range(rounds + 1):
        plain_store = PlainStore(folder / f"plain-{turn}")
        sealed_store = SealedStore(
            folder / f"sealed-{turn}", DataKey.generate(), label="checkpoint"
        )
        took = {
            "plain": loader.timed(lambda store=plain_store: run(recipe, DEMO, plain, store)),
            "sealed": loader.timed(lambda store=sealed_store: run(recipe, DEMO, sealed, store)),
        }
        if turn:  # the first turn warms both up
            for side, value in took.items():
                seconds[side].append(value)
    before, after = (statistics.median(seconds[side]) for side in ("plain", "sealed"))
    return {"plain": before, "sealed": after, "ratio": after / before}


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
        rows = loader.compare(folder / "rows", given.megabytes << 20, given.rounds, epochs=3)
        (folder / "run").mkdir()
        run = training(folder / "run", given.steps, max(1, given.rounds // 2))
        (folder / "verify").mkdir()
        verify = verify_seconds(folder / "verify", given.rounds)
    measured = {
        "rows": rows["dictionaries"]["ratio"],
        "rows_as_columns": rows["columns"]["ratio"],
        "rows_map_style": rows["map_style"]["ratio"],
        "resume": rows["resume"]["sealed"],
        "training": run["ratio"],
        "help": help_seconds(given.rounds),
        "verify": verify,
    }
    results = {
        "machine": machine(
            "torch", "pyarrow", "cryptography", "datasets", aes_gcm_gb_s=aes_gigabytes()
        ),
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
