"""What sealing costs each phase of training: wall time, sealed / plaintext, losses compared.

    python benchmarks/phases.py [RECIPE ...] [--json] [--rounds 5] [--seconds 4]

Every ready recipe that trains in one process, with its story from ``examples/every_phase``: the
same records, sealed and held in the clear; checkpoints sealed and written as plain files. Both
sides train in turn in one process, in changing order; a figure is the best of its rounds, after one
that warms both up: what else a machine does only adds to a time. The steps of a story that is over
sooner than SECONDS are multiplied, and those between two checkpoints with them. Every released
metric of every step must be equal on both sides, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sealtrain.recipe.schema import PhaseRecipe, load_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.sealing.tabular.tokens import TokenShards
from twosided import PlainRecords, PlainStore, run, seal

STORIES = Path(__file__).resolve().parents[1] / "examples" / "every_phase"
BAR = 1.01


def measure(name: str, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Seconds of both sides of one recipe, by the clock and of the processor, and their ratios.

    Args:
        name: Recipe without ``.yaml``.
        folder: Where to work; empty.
        rounds: Counted runs of each side.
        seconds: Least time of a counted run, about.
    """
    from run import prepare

    path, data, seal_as = prepare(name, folder)
    recipe = load_recipe(path)
    sealed = {}
    for dataset in recipe.datasets:
        key = f"{dataset.owner}.{dataset.name}"
        options = _options(seal_as.get(key, ""))
        out = folder / f"{key}.sealed"
        sealed[key] = seal(data[key], out, owner=dataset.owner, name=dataset.name, **options).open()
    sides = {
        "plain": {key: PlainRecords(dataset) for key, dataset in sealed.items()},
        "sealed": sealed,
    }
    first = _turn(recipe, path.parent, sides, folder / "warm", backwards=False)
    longer = lengthen(recipe, max(1, math.ceil(seconds / first["sealed"][0])))
    turns = [
        _turn(longer, path.parent, sides, folder / str(turn), backwards=bool(turn % 2))
        for turn in range(rounds)
    ]
    best = {side: [min(turn[side][place] for turn in turns) for place in (0, 1)] for side in sides}
    (wall, processor), (sealed_wall, sealed_processor) = best["plain"], best["sealed"]
    return {
        "plain": wall,
        "sealed": sealed_wall,
        "ratio": sealed_wall / wall,
        "processor_ratio": sealed_processor / processor,
        "steps": longer.trainer.max_steps,
    }


def lengthen(recipe: PhaseRecipe, times: int) -> PhaseRecipe:
    """The recipe with so many times the steps, and the same number of checkpoints."""
    trainer = recipe.trainer
    changed = {"max_steps": trainer.max_steps * times, "save_steps": trainer.save_steps * times}
    return recipe.model_copy(update={"trainer": trainer.model_copy(update=changed)})


def _turn(
    recipe: PhaseRecipe, base: Path, sides: Mapping[str, Any], folder: Path, *, backwards: bool
) -> dict[str, tuple[float, float]]:
    """Train both sides once: seconds of each, by the clock and of the processor."""
    spent = {}
    told: list[Any] = []
    folder.mkdir()
    for side, datasets in sorted(sides.items(), reverse=backwards):
        store: Any = PlainStore(folder / side)
        if side == "sealed":
            store = SealedStore(folder / side, DataKey.generate(), label="checkpoint")
        moments = time.perf_counter(), time.process_time()
        trained, history = run(recipe, base, datasets, store)
        spent[side] = time.perf_counter() - moments[0], time.process_time() - moments[1]
        told.append((history, trained.metrics))
    if told[0] != told[1]:
        raise SystemExit(f"{recipe.name}: sealed and plaintext metrics differ")
    return spent


def trained_in_one_process(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe trains, and not in several ranks."""
    return recipe["phase"] != "evaluate" and recipe.get("backend", {}).get("name") != "fsdp"


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="least time of a run, about")
    given = parser.parse_args()
    results = {}
    if not given.json:
        print(f"{'':20}{'plain':>10}{'sealed':>10}{'ratio':>8}  of processor time")
    for name in given.recipes or playable(trained_in_one_process):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, Path(folder), given.rounds, given.seconds)
        if not given.json:
            one = results[name]
            figures = f"{one['plain']:8.2f} s{one['sealed']:8.2f} s{one['ratio']:8.3f}"
            print(f"{name:20}{figures}{one['processor_ratio']:8.3f}   losses equal", flush=True)
    if given.json:
        print(json.dumps({"bar": BAR, "rounds": given.rounds, "results": results}, indent=2))


if __name__ == "__main__":
    main()
