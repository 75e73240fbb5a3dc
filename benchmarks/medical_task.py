"""What every way of ``medical.py`` starts from: one budget, records of parties, a recipe."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from medical_baseline import STRENGTHS
from medical_front import KeptFront
from medical_sets import Rows
from medical_split import (
    ALPHA,
    VALIDATION_MOST,
    VALIDATION_SHARE,
    Partition,
    Records,
    shares,
)
from sealtrain.recipe.schema import parse_recipe
from sealtrain.training.data.sources import Source
from sealtrain_together.federated.learner import Learner, pool_counts
from twosided import PlainRecords, seal

Told = dict[str, Any]

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates that each way chooses from, on validation records."""
LAYERS = 5
"""Of the encoder's six below every adapter, and at the parties where the model is cut."""
LORA = {
    "method": "lora",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "target_modules": ["query", "key", "value", "dense"],
    "layers_to_transform": [5],
}
PREFIX = {"method": "prefix_tuning", "num_virtual_tokens": 16}
SERVER_RATES, SERVER_TAU = (3e-3, 1e-2, 3e-2, 1e-1), 1e-3
"""Of FedAdam's optimizer at the server; its rate is chosen together with that of the parties."""


FEWEST = 3
"""Parties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The budget of one collection, and of a number of parties.

    Attributes:
        length: Tokens that are read of a text.
        rounds: Merges of a federated way.
        local_steps: Optimizer steps of a party between two merges, of ``FEWEST`` parties.
        batch: Records of a step.
        train: Most training records; all when ``None``.
        test: Most test records; all when ``None``.
    """

    length: int
    rounds: int
    local_steps: int
    batch: int = 8
    train: int | None = None
    test: int | None = None

    def shared_by(self, parties: int) -> Settings:
        """The same for so many parties, who take the steps of a round among them, rounded up."""
        return replace(self, local_steps=-(-FEWEST * self.local_steps // parties))

    @property
    def steps(self) -> int:
        """Steps that one party takes, one after another."""
        return self.rounds * self.local_steps

    def records(self, parties: int) -> int:
        """Records seen by so many parties in all their steps."""
        return parties * self.steps * self.batch

    def pooled_steps(self, parties: int) -> int:
        """Steps after which one trainer has seen as many records as so many parties."""
        return parties * self.steps


SETTINGS = {
    "pubmedqa_pair": Settings(length=256, rounds=6, local_steps=8),
    "pubmedqa_long": Settings(length=128, rounds=10, local_steps=12),
    "mts_dialog": Settings(length=128, rounds=10, local_steps=12),
    "medquad": Settings(length=128, rounds=10, local_steps=12),
}
OTHERS = Settings(length=128, rounds=10, local_steps=12)
"""Of collections of one's own."""


def settings_of(collection: str, parties: int = FEWEST) -> Settings:
    """By the collection's name and the number of parties."""
    return SETTINGS.get(collection, OTHERS).shared_by(parties)


METHOD = 2
"""Goes up when the code changes what a cell is: its recipe, its measuring, how records are read."""


def digest_of(settings: Settings, way: Told) -> str:
    """Of the settings that decide a cell besides its name and records: SHA-256, 64 hex digits.

    Args:
        settings: Of its collection and number of parties.
        way: What describes its way.
    """
    decided: Told = {
        "method": METHOD,
        "way": way,
        "validation": [VALIDATION_SHARE, VALIDATION_MOST],
    }
    if way["kind"] == "words":
        decided |= {"train": settings.train, "test": settings.test, "strengths": STRENGTHS}
    else:
        decided |= {
            "settings": asdict(settings),
            "layers": LAYERS,
            "lora": LORA,
            "prefix": PREFIX,
            "alpha": ALPHA,
        }
        if way["rule"] == "fedadam":
            decided["tau"] = SERVER_TAU
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a learner has to know of the rounds."""

    rounds: int
    local_steps: int
    aggregation: str


@dataclass
class Task:
    """What a way is given.

    Attributes:
        settings: The budget of the collection and of so many parties.
        records: Of the collection.
        partition: How training records are dealt out.
        parties: To how many.
        rate: Learning rate.
        server: Learning rate of the merge, where that has one.
        seed: Of the division and of training.
        package: Folder that holds the encoder as ``model``.
        folder: Empty, for sealed files.
        front: Shared by all cells of the collection.
    """

    settings: Settings
    records: Records
    partition: Partition
    parties: int
    rate: float
    server: float | None
    seed: int
    package: Path
    folder: Path
    front: KeptFront
    _sealed: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of the parties."""
        return [f"clinic-{number:02d}" for number in range(1, self.parties + 1)]

    @cached_property
    def rows(self) -> dict[str, Rows]:
        """By party; and those of ``validation`` and ``test``, shortest first.

        Records of a batch are padded to its longest, so sorted ones cost less; counts over all of
        them do not depend on the order.
        """
        parts = shares(self.records.train, self.partition, self.parties, self.seed)
        measured = {"validation": self.records.validation, "test": self.records.test}
        return dict(zip(self.names, parts, strict=True)) | {
            name: sorted(rows, key=lambda row: len(row["text"])) for name, rows in measured.items()
        }

    def sources(self, *names: str, plain: bool = False) -> list[Source]:
        """Datasets by name: of role train of parties, else of role test."""
        return [
            Source(
                role="train" if name in self.names else "test",
                owner=name,
                name="records",
                weight=1.0,  # of each record, so none comes up twice as often as another
                dataset=PlainRecords(self._dataset(name)) if plain else self._dataset(name),
            )
            for name in names
        ]

    @property
    def sealed_bytes(self) -> int:
        """Of all parties' sealed records."""
        for name in self.names:
            self._dataset(name)
        paths = (path for name in self.names for path in self._path(name).rglob("*"))
        return sum(path.stat().st_size for path in paths if path.is_file())

    def recipe(self, peft: Told, steps: int, **changed: Any) -> Any:
        """A recipe for ``steps`` steps of which the first few warm up, at one learning rate after.

        So a training of few steps is the beginning of one of many, and one run tells both.
        """
        trainer = {
            "max_steps": steps,
            "per_device_train_batch_size": self.settings.batch,
            "per_device_eval_batch_size": 32,
            "learning_rate": self.rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": self.settings.local_steps,
            "logging_steps": self.settings.local_steps,
            "save_steps": steps,
            "max_length": self.settings.length,
            "seed": self.seed,
        }
        return parse_recipe(
            {
                "version": 1,
                "name": "medical",
                "phase": "classify",
                "model": {"path": "model"},
                "datasets": [
                    {"owner": name, "name": "records", "role": "train"} for name in self.names
                ],
                "columns": {"text": "text", "label": "label"},
                "labels": self.records.labels,
                "trainer": trainer,
                "peft": peft,
                "privacy": {"dp": "none"},
                "release_policy": {
                    "metrics": ["loss"],
                    "round_to": 4,
                    "every_n_steps": self.settings.local_steps,
                    "model": {"recipients": self.names[:1]},
                },
                "hardware": {
                    "platforms": ["simulator"],
                    "tier": "processor",
                    "image": None,
                    "key_provider": "none",
                    "key_provider_id": None,
                },
            }
            | changed
        )

    def learner(self, recipe: Any, plan: Plan, *names: str, plain: bool = False, **how: Any) -> Any:
        """A guest with the datasets of ``names``."""
        sources = self.sources(*names, plain=plain)
        party = names[0] if names else "lead"
        return Learner(recipe, self.package, sources, party=party, terms=plan, **how)

    def _dataset(self, name: str) -> Any:
        if name not in self._sealed:
            path = self.folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows[name]), "utf-8")
            sealed = seal(path, self._path(name), owner=name, name="records")
            self._sealed[name] = sealed.open()
        return self._sealed[name]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.sealed"


class Judge:
    """Chooses an adapter on validation records, and measures the chosen one on test records.

    Args:
        task: Whose records.
        recipe: Of the way.
        rule: Its aggregation.
        standins: Layers that the model was trained with.
    """

    def __init__(self, task: Task, recipe: Any, rule: str, standins: Any) -> None:
        plan = Plan(1, task.settings.steps, rule)
        self._validating, self._testing = (
            task.learner(recipe, plan, name, standins=standins) for name in ("validation", "test")
        )

    def chosen_within(
        self, states: Sequence[tuple[int, bytes]], limits: Sequence[int]
    ) -> list[Told]:
        """For each limit, metrics of the state that is best on validation, of equals the first.

        Args:
            states: Each with the steps after which it was reached, in their order.
            limits: Steps; only states that were reached within them are chosen from.
        """
        scores = [
            pool_counts([self._validating.evaluate(state)])["accuracy"] for _, state in states
        ]
        tested: dict[int, Told] = {}
        chosen = []
        for limit in limits:
            within = [number for number, (steps, _) in enumerate(states) if steps <= limit]
            best = max(within, key=lambda number: (scores[number], -number))
            steps, state = states[best]
            if best not in tested:
                metrics = pool_counts([self._testing.evaluate(state)])
                tested[best] = {name: metrics[name] for name in ("accuracy", "f1")}
            chosen.append(tested[best] | {"validation": scores[best], "stopped": steps})
        return chosen


class Clock:
    """Seconds since it was made, by the wall and of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def told(self) -> Told:
        """Both."""
        return {
            "seconds": round(time.perf_counter() - self._wall, 1),
            "cpu": round(time.process_time() - self._cpu, 1),
        }


def digest_of_states(states: Sequence[tuple[int, bytes]]) -> str:
    """SHA-256 of adapters one after another, 64 hex digits."""
    return hashlib.sha256(b"".join(state for _, state in states)).hexdigest()
