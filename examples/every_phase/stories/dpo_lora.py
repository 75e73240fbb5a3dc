"""Replies to patients: nurses prefer the one that fits how urgent the complaint is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

TRAINER = {
    "max_steps": 100,
    "save_steps": 50,
    "logging_steps": 25,
    "per_device_eval_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 8,
    "learning_rate": 0.01,
    "max_length": 128,
    "bf16": False,
    "activation_checkpointing": False,
}
COME = ["chest pain", "sudden weakness", "heavy bleeding", "no breath", "a stiff neck"]
WAIT = ["dry skin", "mild hay fever", "a small bruise", "hiccups", "sore feet"]
REPLIES = ("Please come today.", "Rest, and call on Monday.")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write choices between two replies, and a chat model that starts from nothing."""
    base_model(folder, template=TEMPLATE, tie_word_embeddings=True)
    counts = {"clinic-a.choices": 200, "clinic-b.choices": 200, "clinic-b.choices-test": 60}
    return drawn(folder, counts, _choice)


def _choice(source: random.Random, number: int) -> dict[str, Any]:
    complaints, fitting = ((COME, 0), (WAIT, 1))[number % 2]
    days = source.randint(1, 9)
    said = f"I have {source.choice(complaints)} for {days} days."
    return {
        "conversation": [{"role": "user", "content": said}],
        "preferred": [{"role": "assistant", "content": REPLIES[fitting]}],
        "other": [{"role": "assistant", "content": REPLIES[1 - fitting]}],
    }
