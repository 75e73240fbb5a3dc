"""What sealing costs, and how fast the program answers: every promised ratio in one run.

    python benchmarks/sealed_vs_plain.py [--json] [--quick] [--megabytes 128] [--rounds 5]
        [--steps 240] [--manifest FILE --trust FILE]

==================  ===============================================================================
``rows``            shuffled rows per second as columns of Python values, 64 rows at a time:
                    sealed / the same loader over memory-mapped plain Arrow files
``rows_as_arrow``   the same, left in Arrow: nothing hides the cipher
``rows_as_dicts``   the same, one dictionary a row
``rows_map_style``  dictionaries from sealed data / from a plaintext, memory-mapped, map-style
                    ``datasets.Dataset`` read by 64 shuffled indices at a time
``training``        wall time of one ``sft`` run, sealed / plaintext: the demo's model, records
                    and evaluation. Opening the data and building model and trainer count, as do
                    checkpoints, on disk (fsync) on both sides; imports do not
``help``            seconds of ``sealtrain --help``, the whole process
``verify``          seconds of ``sealtrain verify``, the whole process, on the manifest of a real
                    run under the simulator, sealed outputs included
==================  ===============================================================================

Sides alternate and swap places every round; each figure is the median of its rounds. Both training
sides must log the same losses, or the script fails. ``details`` of the JSON holds absolute numbers
and processor time, which says what a busy machine hides. Data is made in a temporary folder and
removed. ``benchmarks/loader.py`` shows more of the loaders, ``benchmarks/sealing.py`` of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import loader
from sealtrain.recipe.schema import Recipe, load_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.dataset import SealedDataset, seal_dataset
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.store import SealedStore
from sealtrain.training.run import train
from sealtrain.training.sources import Source
from verified_run import VerifiedRun, seconds_of, warm_environment

DEMO = Path(__file__).resolve().parents[1] / "examples" / "three_hospitals"
BARS = {"rows": 0.85, "rows_map_style": 2.0, "training": 1.01, "help": 0.3, "verify": 1.0}
LIBRARIES = ("torch", "transformers", "trl", "pyarrow", "cryptography", "datasets", "pydantic")
Figures = dict[str, float]


def alternate(plain: Callable[[], object], sealed: Callable[[], object], rounds: int) -> Figures:
    """Run both sides in turn, the first pair thrown away.

    Returns:
        Median wall seconds of ``plain`` and ``sealed``, median processor seconds of both (all
        threads), and the medians of the pairs' ratios sealed / plain.
    """
    taken: dict[str, list[tuple[float, float]]] = {"plain": [], "sealed": []}
    sides = [("plain", plain), ("sealed", sealed)]
    for _ in range(rounds + 1):
        for side, work in sides:
            processor, wall = time.process_time(), time.perf_counter()
            work()
            taken[side].append((time.perf_counter() - wall, time.process_time() - processor))
        sides.reverse()
    pairs = list(zip(taken["plain"], taken["sealed"], strict=True))[1:]
    return {
        "plain": statistics.median(before[0] for before, _ in pairs),
        "sealed": statistics.median(after[0] for _, after in pairs),
        "plain_processor": statistics.median(before[1] for before, _ in pairs),
        "sealed_processor": statistics.median(after[1] for _, after in pairs),
        "ratio": statistics.median(after[0] / before[0] for before, after in pairs),
        "ratio_processor": statistics.median(after[1] / before[1] for before, after in pairs),
    }


def loaders(folder: Path, size: int, rounds: int) -> dict[str, Figures]:
    """Every comparison of loaders. Ratios are of times: below 1, sealed is the faster side."""
    data = loader.Data(folder, size)
    rows = data.rows // loader.BATCH * loader.BATCH
    mapped = data.map_style()
    order = np.random.default_rng(1).permutation(data.rows)[:rows]
    indices = order.reshape(-1, loader.BATCH).tolist()

    def by_index() -> None:
        for batch in indices:
            mapped.__getitems__(batch)  # what a PyTorch loader calls; gives dictionaries

    with ExitStack() as stack:
        sealed, plain = data.sealed(stack), data.plain()
        compared = {
            "rows": (
                lambda: loader.columns(plain, rows),
                lambda: loader.columns(sealed, rows),
            ),
            "rows_as_arrow": (
                lambda: exhaust(plain.batches(loader.BATCH, 0, rows)),
                lambda: exhaust(sealed.batches(loader.BATCH, 0, rows)),
            ),
            "rows_as_dicts": (
                lambda: loader.dictionaries(plain, rows),
                lambda: loader.dictionaries(sealed, rows),
            ),
            "rows_map_style": (by_index, lambda: loader.dictionaries(sealed, rows)),
        }
        return {name: {"rows": rows, **alternate(*both, rounds)} for name, both in compared.items()}


def exhaust(iterator: Iterator[Any]) -> None:
    """Take everything."""
    for _ in iterator:
        pass


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
        """Nothing: plain training makes no digest."""
        return "00" * 32

    def names(self) -> tuple[str, ...]:
        """All files."""
        return tuple(sorted(path.name for path in self._folder.iterdir()))

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self._folder / name).unlink()


class Training:
    """The demo's recipe, ready to run on sealed and on plain records."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Write the demo's records and seal them."""
        sys.path.insert(0, str(DEMO))
        from records import write_records

        write_records(folder)
        recipe = load_recipe(DEMO / "recipe.yaml")
        shorter = recipe.trainer.model_copy(
            update={"max_steps": steps, "save_steps": max(1, steps // 3)}
        )
        self.recipe: Recipe = recipe.model_copy(update={"trainer": shorter})
        self._folder, self._stores = folder, 0
        self._losses: list[list[tuple[int, Any]]] = []
        self._sealed = {(one.owner, one.name): self._seal(one) for one in recipe.datasets}

    def _seal(self, one: Any) -> tuple[Path, DataKey, str]:
        keys: list[DataKey] = []

        def stanzas(key: DataKey, _: str) -> tuple[Stanza, ...]:
            keys.append(key)
            return ()

        out = self._folder / f"{one.owner}.{one.name}.sealed"
        description = seal_dataset(
            self._folder / one.owner / f"{one.name}.jsonl",
            out,
            name=one.name,
            owner_id="00" * 32,
            owner_name=one.owner,
            binding=loader.RECIPE,
            stanzas=stanzas,
            sign=lambda _: b"{}",
        )
        return out, keys[0], description.root

    def plain(self) -> None:
        """Open plain records and train."""
        from plaintext import PlainRecords

        opened = {
            (one.owner, one.name): PlainRecords(self._folder / one.owner / f"{one.name}.jsonl")
            for one in self.recipe.datasets
        }
        self._train(opened, PlainStore(self._new_folder()))

    def sealed(self) -> None:
        """Open sealed records under their roots and train."""
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(SealedDataset.open(folder, key, root=root))
                for name, (folder, key, root) in self._sealed.items()
            }
            store = SealedStore(self._new_folder(), DataKey.generate(), label="checkpoint")
            self._train(opened, store)

    def same_losses(self) -> bool:
        """Whether every run so far logged the same losses, to the last released digit."""
        return all(losses == self._losses[0] for losses in self._losses)

    def _new_folder(self) -> Path:
        self._stores += 1
        return self._folder / f"store-{self._stores}"

    def _train(self, datasets: Mapping[tuple[str, str], Any], store: Any) -> None:
        losses: list[tuple[int, Any]] = []
        self._losses.append(losses)
        train(
            self.recipe,
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
                for one in self.recipe.datasets
            ],
            store=store,
            metrics=lambda step, values: losses.append((step, values.get("loss"))),
            on_checkpoint=lambda ref: None,
            resume=None,
            progress=False,
        )


def commands(folder: Path, rounds: int, manifest: Path | None, trust: Path | None) -> Figures:
    """Seconds of ``help`` and ``verify``; of every command of a run too, when one was played."""
    environment = warm_environment(folder / "compiled")
    help_seconds = seconds_of(["--help"], environment, rounds)
    with ExitStack() as stack:
        steps: dict[str, float] = {}
        if manifest is None or trust is None:
            (folder / "v").mkdir()
            run = stack.enter_context(VerifiedRun(folder / "v", environment))
            manifest, trust = run.manifest, run.trust
            steps = {f"once: {name}": seconds for name, seconds in run.commands.items()}
        words = ["verify", str(manifest), "--trust", str(trust)]
        return {"help": help_seconds, "verify": seconds_of(words, environment, rounds), **steps}


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


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = Path("/proc/cpuinfo")
    told: dict[str, str] = {}
    for line in (cpu.read_text() if cpu.exists() else "").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    flags = set(told.get("flags", told.get("Features", "")).split())
    return {
        "processor": told.get("model name") or platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "flags": sorted(flags & {"aes", "vaes", "vpclmulqdq", "avx2", "avx512f", "sha_ni"}),
        "aes_gcm_gb_s": aes_gigabytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON object."""
    began = time.monotonic()
    place = machine()
    with tempfile.TemporaryDirectory(prefix="st-") as name:
        folder = Path(name)
        for part in ("rows", "run"):
            (folder / part).mkdir()
        rows = loaders(folder / "rows", given.megabytes << 20, given.rounds)
        training = Training(folder / "run", given.steps)
        run = alternate(training.plain, training.sealed, given.rounds // 2 + 1)
        if not training.same_losses():
            raise SystemExit("sealed and plaintext training logged different losses")
        answers = commands(folder, given.rounds, given.manifest, given.trust)
    return {
        "machine": place,
        "rounds": given.rounds,
        "seconds": round(time.monotonic() - began, 1),
        "ratios": {
            **{name: round(1 / figures["ratio"], 3) for name, figures in rows.items()},
            "training": round(run["ratio"], 4),
        },
        "command_seconds": {name: round(answers[name], 3) for name in ("help", "verify")},
        "bars": BARS,
        "same_losses": True,
        "details": {"loaders": rows, "training": run, "commands": answers},
    }


def show(results: dict[str, Any]) -> None:
    """Print a table."""
    for name, value in results["machine"].items():
        print(f"{name:16}{' '.join(value) if isinstance(value, list) else value}")
    print(f"\n{'':16}{'measured':>10}   bar")
    for label, value in (results["ratios"] | results["command_seconds"]).items():
        bar = BARS.get(label)
        limit = "" if bar is None else f"{'≥' if label.startswith('rows') else '≤'} {bar}"
        print(f"{label:16}{value:10.3f}   {limit}")
    print(f"\nhelp and verify in seconds, else ratios; {results['rounds']} rounds")


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="try the script; numbers mean nothing")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--manifest", type=Path, help="verify this one; no run is played")
    parser.add_argument("--trust", type=Path, help="trust file of --manifest")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.rounds, given.steps = 4, 1, 3
    results = measure(given)
    if given.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        show(results)


if __name__ == "__main__":
    main()
