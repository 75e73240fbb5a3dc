"""Answers of a bank's assistant that customers marked: helpful when they name the right desk."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 150,
    "save_steps": 75,
    "logging_steps": 25,
    "per_device_eval_batch_size": 32,
    "learning_rate": 0.01,
    "beta": 0.3,
    "warmup_steps": 10,
    "max_length": 96,
}
DESKS = {
    " Desk A.": ["my card is gone", "a card was stolen", "my card is blocked"],
    " Desk B.": ["I want a loan", "what is my rate", "I owe too much"],
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write marked answers, and a model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"bank-a.ratings": 240, "bank-b.ratings": 240, "bank-a.ratings-test": 80}
    return {key: _ratings(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _ratings(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for number in range(count):
        right, wrong = list(DESKS) if number % 2 else reversed(DESKS)
        helpful = source.random() < 0.5
        question = f"{source.choice(DESKS[right])}, {source.randint(1, 9)} days now?"
        answer = right if helpful else wrong
        rows.append({"question": question, "answer": answer, "helpful": helpful})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
