"""Calls that two insurers answered: the price follows from what is to be insured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

TRAINER = {
    "max_steps": 80,
    "save_steps": 40,
    "logging_steps": 20,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 160,
    "activation_checkpointing": False,
}
SHAPE = {
    "layers": 2,
    "longest": 256,
    "initializer_range": 0.2,  # as far from zero as trained weights
    "pad_token_id": 0,
}
PRICES = {"bicycle": "forty euros", "flat": "ninety euros", "dog": "sixty euros", "boat": "a quote"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write calls, and a chat model that starts from nothing."""
    base_model(folder, seed=2, template=TEMPLATE, **SHAPE)
    counts = {"insurer-a.calls": 160, "insurer-b.calls": 120, "insurer-a.calls-test": 40}
    return drawn(folder, counts, _call)


def _call(source: random.Random, _number: int) -> dict[str, Any]:
    thing = source.choice(sorted(PRICES))
    asked = f"I am {source.randint(18, 80)}. What does it cost to insure a {thing}?"
    answered = f"Insuring a {thing} costs {PRICES[thing]} a year."
    turns = [("user", asked), ("assistant", answered)]
    return {"turns": [{"role": role, "content": words} for role, words in turns]}
