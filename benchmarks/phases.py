"""What sealing costs each phase of training: wall time, sealed / plaintext, losses compared.

    python benchmarks/phases.py [RECIPE ...] [--json] [--rounds 3]

Every ready recipe with its story from ``examples/every_phase``: the same records, sealed and held
in the clear; checkpoints sealed and written as plain files. Both sides train in turn in one
process; a figure is the median of its rounds, after one that warms both up. Every released metric
of every step must be equal on both sides, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sealtrain.recipe.schema import load_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.sealing.tabular.tokens import TokenShards
from twosided import PlainRecords, PlainStore, run, seal

STORIES = Path(__file__).resolve().parents[1] / "examples" / "every_phase"
BAR = 1.01


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds of both sides of one recipe, and their ratio.

    Args:
        name: Recipe without ``.yaml``.
        folder: Where to work; empty.
        rounds: Counted runs of each side.
    """
    from run import prepare

    path, data, seal_as = prepare(name, folder)
    recipe = load_recipe(path)
    sealed = {}
    for one in recipe.datasets:
        key = f"{one.owner}.{one.name}"
        options = _options(seal_as.get(key, ""))
        out = folder / f"{key}.sealed"
        sealed[key] = seal(data[key], out, owner=one.owner, name=one.name, **options).open()
    sides = {"plain": {key: PlainRecords(one) for key, one in sealed.items()}, "sealed": sealed}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    histories: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for side, datasets in sides.items():
            place = folder / f"{side}-{turn}"
            store = (
                PlainStore(place)
                if side == "plain"
                else SealedStore(place, DataKey.generate(), label="checkpoint")
            )
            began = time.perf_counter()
            trained, histories[side] = run(recipe, path.parent, datasets, store)
            seconds[side].append(time.perf_counter() - began)
            histories[side].append(("end", trained.metrics))
        if histories["plain"] != histories["sealed"]:
            raise SystemExit(f"{name}: sealed and plaintext metrics differ")
    before, after = (statistics.median(seconds[side][1:]) for side in ("plain", "sealed"))
    return {"plain": before, "sealed": after, "ratio": after / before, "metrics": trained.metrics}


def _options(text: str) -> dict[str, Any]:
    """Options of ``sealtrain seal`` as ``seal_dataset`` takes them."""
    words = iter(text.split())
    given = {word: next(words) for word in words}
    options: dict[str, Any] = {}
    if "--format" in given:
        options["form"] = given["--format"]
    if "--dtype" in given or "--row-tokens" in given:
        rows = int(given.get("--row-tokens", TokenShards.row_tokens))
        options["token_shards"] = TokenShards(dtype=given.get("--dtype"), row_tokens=rows)
    return options


def main() -> None:
    """Measure every recipe asked for."""
    sys.path.insert(0, str(STORIES))
    from run import playable

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results = {}
    for name in given.recipes or playable():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, Path(folder), given.rounds)
        if not given.json:
            one = results[name]
            figures = f"{one['plain']:8.2f} s{one['sealed']:8.2f} s{one['ratio']:8.3f}"
            print(f"{name:20}{figures}   losses equal", flush=True)
    if given.json:
        print(json.dumps({"bar": BAR, "rounds": given.rounds, "results": results}, indent=2))


if __name__ == "__main__":
    main()
