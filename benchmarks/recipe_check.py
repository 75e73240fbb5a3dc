"""What ``sealtrain recipe check`` costs beside reading the same JSON lines with ``pyarrow``.

    python benchmarks/recipe_check.py [--json] [--mib 128] [--rounds 3]

Processor time of whole processes, children included, in turns. ``read_json`` is a Python process
that imports ``pyarrow.json`` and reads the file. ``check`` is the command with its first record
shown. ``few`` is the same command on the first 2 MiB of the file: it starts, loads libraries and
the tokenizer, counts the first records and shows one. ``reading`` is what ``check`` takes beyond
``few`` over what ``read_json`` takes beyond its import: what each further gigabyte costs. ``whole``
is ``check`` over ``read_json``, and ``clock`` the same by a clock: both use every core, and a
machine that does other work beside them says nothing of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measured_on import machine

GOAL = 1.2
FEW = 2 << 20
RECIPE = """\
version: 1
name: check
phase: sft
model:
  config: {model_type: llama, vocab_size: 512, hidden_size: 16, intermediate_size: 16,
           num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 4096}
  init_seed: 1
  tokenizer: {kind: bytes}
datasets: [{owner: clinic, name: records, role: train}]
columns: {prompt: prompt, completion: completion}
trainer: {max_steps: 1, per_device_train_batch_size: 1, learning_rate: 0.001, max_length: 4096,
          seed: 1, logging_steps: 1}
privacy: {dp: none}
release_policy: {metrics: [loss], round_to: 4, every_n_steps: 1, logs: none,
                 model: {recipients: [clinic]}}
hardware: {platforms: [simulator], tier: processor, image: null, key_provider: none,
           key_provider_id: null}
"""
IMPORT = "import pyarrow.json"
READ = "import sys, pyarrow.json; pyarrow.json.read_json(sys.argv[1])"


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--mib", type=int, default=128)
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.yaml").write_text(RECIPE)
        for kind, records in (("long texts", long_texts), ("many fields", many_fields)):
            rows[kind] = compare(folder, records, given.mib << 20, given.rounds)
    if given.json:
        print(json.dumps({"machine": machine(), "mib": given.mib, "goal": GOAL, "ratios": rows}))
        return
    print(f"{'':14}" + "".join(f"{title:>12}" for title in next(iter(rows.values()))))
    for kind, row in rows.items():
        print(f"{kind:14}" + "".join(f"{value:12.2f}" for value in row.values()))


def compare(
    folder: Path, records: Callable[[], Iterator[dict[str, Any]]], size: int, rounds: int
) -> dict[str, float]:
    """Seconds of a processor, and their ratios: medians of rounds that alternate."""
    data, few = folder / "data.jsonl", folder / "few.jsonl"
    write(data, records(), size)
    with data.open("rb") as file:
        start = file.read(FEW)
    few.write_bytes(start[: start.rindex(b"\n") + 1])
    check = [sys.executable, "-m", "sealtrain", "recipe", "check", "recipe.yaml", "--records"]
    commands = {
        "import": [sys.executable, "-c", IMPORT],
        "read_json": [sys.executable, "-c", READ, str(data)],
        "few": [*check, f"clinic.records={few}"],
        "check": [*check, f"clinic.records={data}"],
    }
    taken: dict[str, list[tuple[float, float]]] = {title: [] for title in commands}
    for _ in range(rounds + 1):
        for title, command in commands.items():
            taken[title].append(seconds_of(command, folder))
    middle, clock = (
        {title: statistics.median(pair[at] for pair in pairs[1:]) for title, pairs in taken.items()}
        for at in (0, 1)
    )
    read = middle["read_json"] - middle["import"]
    return {title: round(value, 2) for title, value in middle.items()} | {
        "reading": round((middle["check"] - middle["few"]) / read, 2),
        "whole": round(middle["check"] / middle["read_json"], 2),
        "clock": round(clock["check"] / clock["read_json"], 2),
    }


def seconds_of(command: list[str], folder: Path) -> tuple[float, float]:
    """Of a process that ends well: user and system time, and how long it took by a clock."""
    before = os.times()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    return user + system, after.elapsed - before.elapsed


def write(path: Path, records: Iterator[dict[str, Any]], size: int) -> None:
    """JSON lines of at least ``size`` bytes."""
    written = 0
    with path.open("w") as file:
        while written < size:
            written += file.write(json.dumps(next(records)) + "\n")


def long_texts() -> Iterator[dict[str, Any]]:
    """Prompts and completions of 200 to 2000 characters."""
    rng = random.Random(1)  # noqa: S311  # rows, not secrets
    texts = [_words(rng, rng.randint(30, 300)) for _ in range(2000)]
    while True:
        yield {"prompt": rng.choice(texts), "completion": rng.choice(texts)}


def many_fields() -> Iterator[dict[str, Any]]:
    """Short texts beside numbers that the recipe does not read."""
    rng = random.Random(1)  # noqa: S311
    texts = [_words(rng, 5) for _ in range(2000)]
    number = 0
    while True:
        number += 1
        yield {
            "prompt": rng.choice(texts),
            "completion": rng.choice(texts),
            "age": number % 90,
            "score": number * 0.37,
            "ward": f"w{number % 7}",
        }


def _words(rng: random.Random, count: int) -> str:
    return " ".join(
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10)))
        for _ in range(count)
    )


if __name__ == "__main__":
    main()
