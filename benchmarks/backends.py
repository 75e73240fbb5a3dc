"""Tokens a second of processor time of sft by backend: same sealed records, model and adapter.

    python benchmarks/backends.py unsloth=.venv-unsloth/bin/python axolotl=.venv-axolotl/bin/python

Each backend trains in an interpreter of its own, where tools/backends installed it; ``trl`` in
this one. Two shapes of Llama with random weights: one small enough that overhead shows, one whose
head dominates. The first steps warm up and do not count. Processor time on one thread is counted,
so that other work on the machine does not matter. Losses must agree, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOLERANCE = 2e-3
STEPS, WARM = 9, 3
SHAPES: dict[str, dict[str, int]] = {
    "0.3M": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "15M": {
        "vocab_size": 32_000,
        "hidden_size": 288,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    },
}


def _recipe(backend: str) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "speed",
        "phase": "sft",
        "model": {"path": "base"},
        "datasets": [{"owner": "owner-a", "name": "texts", "role": "train"}],
        "columns": {"text": "text"},
        "backend": {"name": backend},
        "trainer": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-4,
            "max_length": 256,
            "logging_steps": 1,
            "save_steps": STEPS,
        },
        "peft": {"method": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"]},
        "privacy": {"dp": "none"},
        "release_policy": {
            "metrics": ["loss"],
            "round_to": 6,
            "model": {"recipients": ["owner-a"]},
        },
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }


def one(backend: str, folder: Path) -> dict[str, Any]:
    """Train once in this interpreter."""
    from sealtrain.recipe.schema import parse_recipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.store import SealedStore
    from sealtrain.training.data.sources import Source
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train
    from twosided import seal

    records = folder / "texts.jsonl"
    text = "".join(chr(97 + number % 26) for number in range(255))
    records.write_text("".join(json.dumps({"text": text[n % 26 :]}) + "\n" for n in range(400)))
    sealed = seal(records, folder / "texts.sealed", owner="owner-a", name="texts").open()
    seconds: list[float] = []
    losses: list[float] = []

    def told(_step: int, values: dict[str, float | None]) -> None:
        seconds.append(time.process_time())
        losses.append(values["loss"] or 0.0)

    recipe = parse_recipe(_recipe(backend))
    trained = train(
        recipe,
        run_id="ab" * 16,
        inputs=Inputs(
            base_dir=folder,
            sources=[
                Source(role="train", owner="owner-a", name="texts", weight=1.0, dataset=sealed)
            ],
        ),
        checkpoints=Checkpoints(
            store=SealedStore(folder, DataKey.generate(), label="checkpoint"),
        ),
        reporting=Reporting(
            on_metrics=told,
        ),
    )
    counted = (trained.tokens or 0) * (STEPS - WARM) / STEPS
    spent = seconds[STEPS - 1] - seconds[WARM - 1]
    return {"tokens_per_second": counted / spent, "losses": losses}


def _write_base(folder: Path, shape: dict[str, int]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from sealtrain.training.models.base import byte_tokenizer

    logging.disable_progress_bar()
    torch.manual_seed(1)
    tokenizer = byte_tokenizer()
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    settings: dict[str, Any] = {**shape, **ids, "max_position_embeddings": 512}
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure(backend: str, python: str, shape: str) -> dict[str, Any]:
    """Train once in the interpreter ``python``."""
    with tempfile.TemporaryDirectory() as folder:
        _write_base(Path(folder, "base"), SHAPES[shape])  # here: Unsloth is to be loaded first
        words = ["-W", "ignore", __file__, "--one", backend, folder]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [python, *words], check=True, stdout=subprocess.PIPE, text=True, env=alone
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure every backend asked for, and ``trl``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], Path(given.one[1]))))
        return
    pythons = {"trl": sys.executable} | dict(pair.split("=", 1) for pair in given.backends)
    results: dict[str, dict[str, Any]] = {}
    for shape in SHAPES:
        runs = {name: measure(name, python, shape) for name, python in pythons.items()}
        for name, run in runs.items():
            pairs = zip(run["losses"], runs["trl"]["losses"], strict=True)
            if any(abs(mine - other) > TOLERANCE for mine, other in pairs):
                raise SystemExit(f"{name}, {shape}: other losses than trl")
        results[shape] = {name: run["tokens_per_second"] for name, run in runs.items()}
        if not given.json:
            for name, speed in results[shape].items():
                ratio = speed / results[shape]["trl"]
                print(f"{shape:6}{name:10}{speed:10.0f} tokens/s{ratio:8.2f}", flush=True)
    if given.json:
        print(json.dumps({"results": results}, indent=2))


if __name__ == "__main__":
    main()
