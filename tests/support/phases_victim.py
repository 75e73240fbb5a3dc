"""Trains ready recipes one after the other, as a run does: phases_victim.py FOLDER RECIPE...

For each recipe it lays out the story's data, seals it, and trains for two steps: hushed, confined
and writing sealed checkpoints. Before and after training it asks for a file that is not there,
so that a trace of system calls can be cut there. Prints one JSON line a recipe.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from every_phase import program

ROOT = Path(__file__).resolve().parents[2]
FEW = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, "warmup_steps": 0}
CHOOSING = (
    "eval_steps",
    "load_best_model_at_end",
    "early_stopping_patience",
    "metric_for_best_model",
)
MOST_NEEDLES = 40
OPENED: list[str] = []
REACHED: list[str] = []
# What owners brought, of every recipe played: several bring the same records.
INPUTS: list[Path] = []
_REACHING = ("socket.bind", "socket.connect", "socket.sendto", "socket.getaddrinfo")


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what is tried, before anything refuses it."""
    if event in _REACHING:
        REACHED.append(
            f"{event} {arguments[-1] if event != 'socket.getaddrinfo' else arguments[0]}"
        )
    written = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if written and isinstance(arguments[0], (str, bytes)):
        OPENED.append(os.fsdecode(arguments[0]))


def mark(word: str) -> None:
    """A line in the trace of system calls."""
    with suppress(OSError):
        Path(f"/nowhere/{word}").read_bytes()


def sealed_as(words: str) -> dict[str, Any]:
    """Options of ``sealtrain seal`` as ``seal_dataset`` takes them."""
    from sealtrain.sealing.tabular.tokens import TokenShards

    pairs = shlex.split(words)
    given = {
        key.removeprefix("--").replace("-", "_"): value
        for key, value in zip(pairs[::2], pairs[1::2], strict=True)
    }
    shards = {
        name: int(value) if value.isdigit() else value
        for name, value in given.items()
        if name in ("dtype", "row_tokens")
    }
    options = {name: value for name, value in given.items() if name not in shards}
    options |= {"form": options.pop("format")} if "format" in options else {}
    return options | ({"token_shards": TokenShards(**shards)} if shards else {})


def needles(datasets: dict[str, Any], inputs: dict[str, Path]) -> list[bytes]:
    """Stretches of the plaintext, as owners wrote it and as training holds it."""
    pieces: list[bytes] = []
    for path in inputs.values():
        files = (
            [path]
            if path.is_file()
            else sorted(each_path for each_path in path.rglob("*") if each_path.is_file())
        )
        pieces += [file.read_bytes() for file in files[:3]]
    for dataset in datasets.values():
        if dataset.schema is None:
            continue
        for column in dataset.batch(0).columns:
            pieces += [buffer.to_pybytes() for buffer in column.buffers() if buffer is not None]
    found = []
    for piece in pieces:
        for place in range(0, max(len(piece) - 32, 1), max(len(piece) // 8, 1)):
            window = piece[place : place + 32]
            if len(window) == 32 and len(set(window)) >= 10:
                found.append(window)
    return found[:: max(len(found) // MOST_NEEDLES, 1)]


def holds(path: Path, secrets: list[bytes]) -> bool:
    data = path.read_bytes()
    return any(secret in data for secret in secrets)


def play(name: str, folder: Path) -> dict[str, Any]:
    from sealing_world import sealed_folder
    from training_world import RUN_ID, checkpoint_store, sources_of

    from sealtrain.base.yamltext import parse_yaml
    from sealtrain.guest.sandbox.border import Ways, enclose
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.recipe.errors import RecipeInvalid
    from sealtrain.recipe.schema import parse_recipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

    folder.mkdir()
    path, inputs, options = program("run").prepare(name, folder)
    INPUTS.extend(inputs.values())
    document = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    if "max_steps" in document.get("trainer", {}):  # an evaluation has none
        document["trainer"] |= FEW
        for gone in CHOOSING:
            document["trainer"].pop(gone, None)
    recipe = parse_recipe(document)
    sealed = {
        key: sealed_folder(
            inputs[key], folder / f"{key}.sealed", salt=key, **sealed_as(options.get(key, ""))
        ).open()
        for key in inputs
    }
    secrets = needles(sealed, inputs)
    out = folder / "run"
    out.mkdir()
    store = checkpoint_store(out / "checkpoints")
    history: list[Any] = []
    tally = OutputTally()
    OPENED.clear()
    REACHED.clear()
    with (
        enclose(tally, alone=False) as room,
        room.confine(Ways(urls=["http://127.0.0.1:1"], folders=[out])),
    ):
        mark(f"begin-{name}")
        train(
            recipe,
            run_id=RUN_ID,
            inputs=Inputs(
                base_dir=path.parent,
                sources=sources_of(recipe, sealed),
                model=next(
                    (
                        sealed[f"{dataset.owner}.{dataset.name}"]
                        for dataset in recipe.datasets
                        if dataset.role == "model"
                    ),
                    None,
                ),
                secret=DataKey(bytes(range(32))),
            ),
            checkpoints=Checkpoints(
                store=store,
            ),
            reporting=Reporting(
                on_metrics=lambda step, values: history.append((step, values)),
            ),
        )
        mark(f"end-{name}")
    holding = sorted(
        str(path.relative_to(folder.parent))
        for path in folder.parent.rglob("*")
        if path.is_file()
        and not any(path.is_relative_to(given) for given in INPUTS)
        and holds(path, secrets)
    )
    return {
        "opened": list(OPENED),
        "reached": list(REACHED),
        "holding": holding,
        "needles": len(secrets),
        "seen": sum(holds(path, secrets) for path in inputs.values() if path.is_file()),
        "checkpoints": sorted(store.names()),
        "refused": {key: many for key, many in tally.counts.items() if key.endswith("refused")},
        "metrics": sorted({key for _, values in history for key in values}),
        "policy": list(recipe.release_policy.metrics),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    tempfile.gettempdir()
    sys.addaudithook(watch)
    for name in sys.argv[2:]:
        try:
            answer = play(name, folder / name)
        except Exception as error:  # one recipe must not hide the others
            import traceback

            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        print(json.dumps({"recipe": name, **answer}), flush=True)


if __name__ == "__main__":
    main()
