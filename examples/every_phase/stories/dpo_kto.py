"""Answers of a bank's assistant that customers marked: helpful when they name the right desk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

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
    base_model(folder, tie_word_embeddings=True)
    counts = {"bank-a.ratings": 240, "bank-b.ratings": 240, "bank-a.ratings-test": 80}
    return drawn(folder, counts, _rating)


def _rating(source: random.Random, number: int) -> dict[str, Any]:
    right, wrong = list(DESKS) if number % 2 else reversed(DESKS)
    helpful = source.random() < 0.5
    question = f"{source.choice(DESKS[right])}, {source.randint(1, 9)} days now?"
    answer = right if helpful else wrong
    return {"question": question, "answer": answer, "helpful": helpful}
