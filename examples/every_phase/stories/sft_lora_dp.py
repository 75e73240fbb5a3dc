"""Questions to two banks and the counter each is sent to; a small chat model that reads bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 30,
    "save_steps": 15,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.02,
    "max_length": 96,
}
COUNTERS = {
    "cards": ["my card is gone", "the card was swallowed", "a payment was declined"],
    "loans": ["we want to buy a house", "the rate of my loan", "a loan for a car"],
    "transfers": ["money sent abroad", "a standing order", "a transfer came back"],
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write one JSONL file a dataset, and the base model."""
    _base(folder / "models" / "base")
    counts = {"bank-a.questions": 400, "bank-b.questions": 400, "bank-a.questions-test": 40}
    return {key: _questions(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _questions(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for _ in range(count):
        counter = source.choice(sorted(COUNTERS))
        said = f"{source.choice(COUNTERS[counter])}, {source.randint(10, 99)} euros: "
        rows.append({"prompt": said, "completion": counter})
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
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
