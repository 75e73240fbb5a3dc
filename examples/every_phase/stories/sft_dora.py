"""Dialogues of two banks, of which only the clerk's part is learned, several to a row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 256,
    "bf16": False,
}
FEES = {"card": "free", "transfer": "one euro", "statement": "two euros", "loan": "one per cent"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: "
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}\n{% endgeneration %}"
    "{% else %}{{ message['content'] }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write dialogues, and a chat model that starts from nothing."""
    base_model(folder, layers=2, longest=256, template=TEMPLATE, tie_word_embeddings=True)
    counts = {"bank-a.dialogues": 160, "bank-b.dialogues": 120}
    return drawn(folder, counts, _dialogue)


def _dialogue(source: random.Random, _number: int) -> dict[str, Any]:
    service = source.choice(sorted(FEES))
    asked = f"Customer {source.randint(100, 999)} asks what a {service} costs."
    return {
        "messages": [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": f"It is {FEES[service]}."},
        ]
    }
