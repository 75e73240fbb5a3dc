"""Complaints and how urgent they are: a model that answers at random learns to name the hour."""

from __future__ import annotations

import random
from pathlib import Path

from making import byte_llama, drawn, saved, taught

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
    model, tokenizer = byte_llama()
    taught(model, tokenizer, _reply, seed=2, steps=80, rows=32, rate=0.003)
    saved(folder / "models" / "base", model, tokenizer)
    counts = {
        "clinic-a.complaints": 200,
        "clinic-b.complaints": 160,
        "clinic-b.complaints-test": 64,
    }
    return drawn(folder, counts, _record)


def _complaint(source: random.Random) -> tuple[str, str]:
    urgency = source.choice(list(URGENCIES))
    return f"{source.choice(URGENCIES[urgency])}, day {source.randint(1, 9)}.", urgency


def _record(source: random.Random, _number: int) -> dict[str, str]:
    return dict(zip(("complaint", "urgency"), _complaint(source), strict=True))


def _reply(source: random.Random) -> str:
    """Either hour, whatever the complaint."""
    hour = source.choice(list(URGENCIES))
    return f"{_complaint(source)[0]} Come {hour}.<eos>"
