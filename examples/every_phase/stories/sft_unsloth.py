"""Letters of two insurers: the desk that answers a letter follows from what it asks."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 96,
    "activation_checkpointing": False,
}
DESKS = {
    "claims": ["my car was hit", "the cellar is under water", "a stone broke the window"],
    "contracts": ["I moved house", "please cancel my policy", "my name has changed"],
    "money": ["you charged me twice", "the premium is too high", "where is my refund"],
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write letters, and a model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"insurer-a.letters": 240, "insurer-b.letters": 160, "insurer-a.letters-test": 60}
    return {key: _letters(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _letters(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for _ in range(count):
        desk = source.choice(sorted(DESKS))
        number = source.randint(1000, 9999)
        letter = f"Policy {number}: {source.choice(DESKS[desk])}. Desk:"
        rows.append({"letter": letter, "desk": f" {desk}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    torch.manual_seed(1)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.2,  # as far from zero as trained weights
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
