"""A small collection of notes, and tasks of the medical benchmark on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from language_world import minilm

from medical_front import KeptFront
from medical_sets import Rows
from medical_split import Records, divided
from medical_task import LAYERS, Settings, Task

KINDS = {"fever": "infection", "fracture": "injury", "tumour": "cancer"}
SETTINGS = Settings(length=16, rounds=2, local_steps=2, batch=4)


def notes(count: int, *, first: int = 0, seed: int = 1) -> Rows:
    """Rows of patients who have two notes each."""
    draw = random.Random(seed)  # noqa: S311 - texts, not a secret
    rows = []
    for number in range(count):
        word = draw.choice(sorted(KINDS))
        text = f"note {draw.randrange(1000)}: {word} since {draw.randrange(9)} days"
        rows.append({"text": text, "label": KINDS[word], "patient": f"p{first + number // 2}"})
    return rows


def collection(test_seed: int = 2) -> tuple[Rows, Rows]:
    return notes(80), notes(12, first=1000, seed=test_seed)


@dataclass(frozen=True)
class Medical:
    """Makes tasks that share the encoder's lower layers."""

    folder: Path
    front: KeptFront

    def task(self, name: str, records: Records | None = None, **changed: Any) -> Task:
        place = self.folder / name
        place.mkdir()
        fields: dict[str, Any] = {
            "settings": SETTINGS,
            "records": records or divided(collection),
            "partition": "iid",
            "parties": 3,
            "rate": 1e-2,
            "server": None,
            "seed": 1,
            "package": minilm().parent,
            "folder": place,
            "front": self.front,
        }
        return Task(**fields | changed)


@cache
def _front() -> KeptFront:
    return KeptFront(encoder(), LAYERS)


def encoder() -> Any:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    build: Callable[..., Any] = AutoModelForSequenceClassification.from_pretrained
    return build(minilm())


def medical(folder: Path) -> Medical:
    return Medical(folder, _front())
