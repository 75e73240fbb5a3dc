"""Files to walk with, in place of your own: letters of three clinics as CSV, and a small model.

Usage: ``python examples/first_hour/files.py FOLDER``

The letters are made up by a seed. The model is a Llama of one layer with random weights, in the
files that ``save_pretrained`` writes, so the walk downloads nothing.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CLINICS = ("clinic-a", "clinic-b", "clinic-c")
LETTERS = 64
URGENT = ("chest pain", "sudden weakness", "short of breath")
ROUTINE = ("dry skin", "an old sprain", "a yearly review")
DAYS = 14
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
CONFIG = {
    "vocab_size": 256 + len(SPECIAL),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def letters(seed: int) -> list[tuple[str, str]]:
    """Questions about referral letters, and the answers of a clinic's doctors."""
    dice = random.Random(seed)  # noqa: S311 - made-up letters
    rows = []
    for _ in range(LETTERS):
        urgent = dice.random() < 0.5
        sign = dice.choice(URGENT if urgent else ROUTINE)
        question = f"Age {dice.randint(18, 90)}, {sign} for {dice.randint(1, DAYS)} days."
        rows.append((question, "urgent" if urgent else "routine"))
    return rows


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer that has a token for each byte."""
    alphabet = (*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights that a Llama of this configuration has."""
    width, inner, tokens = (
        CONFIG[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    yield "model.embed_tokens.weight", (tokens, width)
    yield "lm_head.weight", (tokens, width)
    yield "model.norm.weight", (width,)
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for part in "qkvo":
            yield f"{at}.self_attn.{part}_proj.weight", (width, width)
        yield f"{at}.mlp.gate_proj.weight", (inner, width)
        yield f"{at}.mlp.up_proj.weight", (inner, width)
        yield f"{at}.mlp.down_proj.weight", (width, inner)
        yield f"{at}.input_layernorm.weight", (width,)
        yield f"{at}.post_attention_layernorm.weight", (width,)


def save_model(folder: Path) -> None:
    """Save the model and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = np.random.default_rng(0)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else dice.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in shapes()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **CONFIG}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_tokenizer(folder)


def main() -> None:
    """Write each clinic's ``letters.csv`` and ``models/base`` into a folder."""
    folder = Path(sys.argv[1])
    for seed, clinic in enumerate(CLINICS):
        (folder / clinic).mkdir(parents=True, exist_ok=True)
        with (folder / clinic / "letters.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("question", "answer"), *letters(seed)])
    save_model(folder / "models" / "base")
    print("written: clinic-a, clinic-b and clinic-c, each with letters.csv; models/base")


if __name__ == "__main__":
    main()
