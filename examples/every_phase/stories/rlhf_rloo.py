"""Complaints and how urgent they are: a model that answers at random learns to name the hour."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 64,
    "max_completion_length": 12,
    "learning_rate": 0.005,
    "warmup_steps": 4,
}
URGENCIES = {
    "now": ["chest pain", "cannot breathe", "fainted twice"],
    "later": ["itchy elbow", "new glasses", "sore toe"],
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write complaints, and a model that knows how to reply but not what."""
    _base(folder / "models" / "base")
    counts = {
        "clinic-a.complaints": 200,
        "clinic-b.complaints": 160,
        "clinic-b.complaints-test": 64,
    }
    return {key: _complaints(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _complaint(source: random.Random) -> tuple[str, str]:
    urgency = source.choice(list(URGENCIES))
    return f"{source.choice(URGENCIES[urgency])}, day {source.randint(1, 9)}.", urgency


def _complaints(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = [
        dict(zip(("complaint", "urgency"), _complaint(source), strict=True)) for _ in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama that reads bytes and replies with either hour."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
        )
    )
    source = random.Random(2)  # noqa: S311 - example records
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(80):
        texts = []
        for _ in range(32):
            hour = source.choice(list(URGENCIES))
            texts.append(f"{_complaint(source)[0]} Come {hour}.<eos>")
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        model(ids, attention_mask=mask, labels=ids.where(mask.bool(), -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
