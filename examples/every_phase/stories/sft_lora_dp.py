"""Questions to two banks and the counter each is sent to; a small chat model that reads bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

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
    base_model(folder, width=48, layers=2, seed=1, pad_token_id=0)
    counts = {"bank-a.questions": 400, "bank-b.questions": 400, "bank-a.questions-test": 40}
    return drawn(folder, counts, _question)


def _question(source: random.Random, _number: int) -> dict[str, Any]:
    counter = source.choice(sorted(COUNTERS))
    said = f"{source.choice(COUNTERS[counter])}, {source.randint(10, 99)} euros: "
    return {"prompt": said, "completion": counter}
