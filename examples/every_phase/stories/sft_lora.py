"""Dialogues of two banks: which counter a customer needs follows from what he says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

TRAINER = {
    "max_steps": 80,
    "save_steps": 40,
    "logging_steps": 20,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 160,
    "activation_checkpointing": False,
}
COUNTERS = {
    "cards": ["my card is gone", "the card was swallowed", "a payment was declined"],
    "loans": ["we want to buy a house", "the rate of my loan", "a loan for a car"],
    "transfers": ["money sent abroad", "a standing order", "a transfer came back"],
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write dialogues, and a chat model that starts from nothing."""
    base_model(folder, layers=2, longest=256, seed=1, template=TEMPLATE, pad_token_id=0)
    counts = {"bank-a.dialogues": 160, "bank-b.dialogues": 120, "bank-a.dialogues-test": 40}
    return drawn(folder, counts, _dialogue)


def _dialogue(source: random.Random, _number: int) -> dict[str, Any]:
    counter = source.choice(sorted(COUNTERS))
    said = f"{source.choice(COUNTERS[counter])}, {source.randint(10, 99)} euros"
    return {
        "messages": [
            {"role": "user", "content": said},
            {"role": "assistant", "content": f"Please go to {counter}."},
        ]
    }
