"""What every way of ``medical.py`` starts from: settings, records of three parties, a recipe."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medical_sets import Rows
from sealtrain.recipe.schema import parse_recipe
from sealtrain.training.data.sources import Source
from sealtrain_collab.federated.learner import Learner, pooled
from twosided import PlainRecords, seal

PARTIES = ("clinic-a", "clinic-b", "clinic-c")
SHARES = (0.5, 0.3, 0.2)
LORA = {
    "method": "lora",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "target_modules": ["query", "value"],
}
PREFIX = {"method": "prefix_tuning", "num_virtual_tokens": 16}

Told = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one collection; a cell that was measured with others is measured again.

    Attributes:
        length: Tokens that are read of a text.
        rounds: Merges.
        local_steps: Steps of a party between them.
        batch: Records of a step.
        learning_rate: Highest, of LoRA.
        train: Most training records, chosen once.
        test: Most test records, chosen once.
    """

    length: int
    rounds: int
    local_steps: int
    learning_rate: float
    train: int
    test: int
    batch: int = 8

    @property
    def steps(self) -> int:
        """Of one party over all rounds."""
        return self.rounds * self.local_steps


SETTINGS = {
    "pubmedqa_pqal": Settings(
        length=64, rounds=3, local_steps=8, learning_rate=5e-4, train=500, test=500
    ),
    "mts_dialog": Settings(
        length=64, rounds=5, local_steps=30, learning_rate=3e-3, train=1301, test=400
    ),
    "medquad": Settings(
        length=32, rounds=10, local_steps=10, learning_rate=3e-3, train=3000, test=1000
    ),
}
OTHERS = Settings(length=64, rounds=5, local_steps=10, learning_rate=2e-3, train=2000, test=500)
"""Of collections of one's own."""


def settings_of(collection: str) -> Settings:
    """By the collection's name."""
    return SETTINGS.get(collection, OTHERS)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a learner has to know of the rounds."""

    rounds: int
    local_steps: int
    aggregation: str


def chosen(read: Callable[[], tuple[Rows, Rows]], settings: Settings) -> tuple[Rows, Rows]:
    """The training and test rows of every way and seed."""
    once = random.Random(0)  # noqa: S311 - which records, not a secret
    train, test = (
        once.sample(rows, min(most, len(rows)))
        for rows, most in zip(read(), (settings.train, settings.test), strict=True)
    )
    return train, test


class Data:
    """Training records divided among three parties and sealed, and the test records.

    Args:
        read: Gives training and test rows.
        settings: How many of them.
        seed: Of the division; which records are used does not depend on it.
        folder: For sealed files.
    """

    def __init__(
        self, read: Callable[[], tuple[Rows, Rows]], settings: Settings, seed: int, folder: Path
    ) -> None:
        train, test = chosen(read, settings)
        self.labels = sorted({row["label"] for row in (*train, *test)})
        self.shares = _divided(train, seed)
        self.rows = {**dict(zip(PARTIES, self.shares, strict=True)), "test": test}
        self.sealed = {name: _sealed(rows, name, folder) for name, rows in self.rows.items()}
        self.bytes = sum(
            path.stat().st_size
            for name in PARTIES
            for path in (folder / f"{name}.sealed").rglob("*")
            if path.is_file()
        )

    def sources(self, *names: str, plain: bool = False) -> list[Source]:
        """Datasets of parties, and of role test that of ``test``."""
        return [
            Source(
                role="test" if name == "test" else "train",
                owner=name,
                name="records",
                weight=1.0 if name == "test" else float(len(self.rows[name])),
                dataset=PlainRecords(self.sealed[name]) if plain else self.sealed[name],
            )
            for name in names
        ]


@dataclass(frozen=True, slots=True)
class Task:
    """What a way is given."""

    settings: Settings
    data: Data
    seed: int
    package: Path

    def recipe(self, peft: Told, steps: int, *, rate: float = 1.0, **changed: Any) -> Any:
        """A recipe for ``steps`` steps whose learning rate is ``rate`` times that of LoRA."""
        return parse_recipe(
            {
                "version": 1,
                "name": "medical",
                "phase": "classify",
                "model": {"path": "model"},
                "datasets": [
                    *({"owner": one, "name": "records", "role": "train"} for one in PARTIES),
                    {"owner": "test", "name": "records", "role": "test"},
                ],
                "columns": {"text": "text", "label": "label"},
                "labels": self.data.labels,
                "trainer": {
                    "max_steps": steps,
                    "per_device_train_batch_size": self.settings.batch,
                    "per_device_eval_batch_size": 32,
                    "learning_rate": self.settings.learning_rate * rate,
                    "lr_scheduler_type": "linear",
                    "warmup_steps": 0.1,
                    "max_length": self.settings.length,
                    "seed": self.seed,
                },
                "peft": peft,
                "privacy": {"dp": "none"},
                "release_policy": {
                    "metrics": ["accuracy", "f1"],
                    "round_to": 4,
                    "model": {"recipients": [PARTIES[0]]},
                },
                "hardware": {
                    "platforms": ["simulator"],
                    "image": None,
                    "key_provider": "none",
                    "key_provider_id": None,
                },
            }
            | changed
        )

    def learner(self, recipe: Any, plan: Plan, *names: str, **how: Any) -> Learner:
        """A guest with the data of ``names``."""
        plain = how.pop("plain", False)
        sources = self.data.sources(*names, plain=plain)
        party = names[0] if names else "lead"
        return Learner(recipe, self.package, sources, party=party, terms=plan, **how)


class Clock:
    """Seconds since it was made, by the wall and of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def told(self) -> Told:
        """Both."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu": time.process_time() - self._cpu,
        }


def measured(learner: Learner, state: bytes) -> Told:
    """Accuracy and macro F1 of an adapter on the learner's test records."""
    metrics = pooled([learner.evaluate(state)])
    return {name: metrics[name] for name in ("accuracy", "f1")}


def _divided(rows: Rows, seed: int) -> list[Rows]:
    """Rows by party: half, three tenths and a fifth of the patients."""
    patients = sorted({row["patient"] for row in rows})
    random.Random(seed).shuffle(patients)  # noqa: S311 - who has which records, not a secret
    ends = [round(len(patients) * sum(SHARES[: number + 1])) for number in range(len(SHARES))]
    party = {
        patient: sum(index >= end for end in ends[:-1]) for index, patient in enumerate(patients)
    }
    return [[row for row in rows if party[row["patient"]] == one] for one in range(len(SHARES))]


def _sealed(rows: Rows, name: str, folder: Path) -> Any:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return seal(path, folder / f"{name}.sealed", owner=name, name="records").open()
