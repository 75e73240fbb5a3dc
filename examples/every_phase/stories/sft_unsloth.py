"""Letters of two insurers: the desk that answers a letter follows from what it asks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import base_model, drawn

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 96,
    "activation_checkpointing": False,
}
SHAPE = {
    "layers": 2,
    "longest": 256,
    "initializer_range": 0.2,  # as far from zero as trained weights
    "pad_token_id": 0,
}
DESKS = {
    "claims": ["my car was hit", "the cellar is under water", "a stone broke the window"],
    "contracts": ["I moved house", "please cancel my policy", "my name has changed"],
    "money": ["you charged me twice", "the premium is too high", "where is my refund"],
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write letters, and a model that starts from nothing."""
    base_model(folder, seed=1, **SHAPE)
    counts = {"insurer-a.letters": 240, "insurer-b.letters": 160, "insurer-a.letters-test": 60}
    return drawn(folder, counts, _letter)


def _letter(source: random.Random, _number: int) -> dict[str, Any]:
    desk = source.choice(sorted(DESKS))
    number = source.randint(1000, 9999)
    letter = f"Policy {number}: {source.choice(DESKS[desk])}. Desk:"
    return {"letter": letter, "desk": f" {desk}"}
