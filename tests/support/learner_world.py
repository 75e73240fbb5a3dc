"""Tiny federations in one process: recipes, terms of rounds, parties that hide patients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from language_world import BERT
from sealing_world import sealed_folder
from training_world import LORA, OWNERS, SECRET, classify, records, sft

from sealtrain.recipe.collaborations.patients import PatientPrivacy
from sealtrain.training.data.sources import Source
from sealtrain.training.privacy.noise import NoiseSource
from sealtrain_together.federated.learner import Learner
from sealtrain_together.federated.private import PatientBound, PatientRounds

ATTENTION = {"method": "lora", "r": 2, "lora_dropout": 0.1, "target_modules": ["query", "value"]}
PREFIX = {"method": "prefix_tuning", "num_virtual_tokens": 4}


@dataclass(frozen=True)
class Terms:
    """What a learner has to know of the rounds."""

    rounds: int = 2
    local_steps: int = 3
    aggregation: str = "fedavg"


@dataclass(frozen=True)
class Near(Terms):
    """Terms of parties that stay near the merged adapter."""

    proximal_mu: float = 0.0


def classifier(*, dropout: float = 0.1, **changed: Any) -> Any:
    """A classifier of text: BERT in small with LoRA on its attention."""
    parts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    config = BERT | dict.fromkeys(parts, dropout)
    return classify(
        model={"config": config, "init_seed": 3, "tokenizer": {"kind": "bytes"}},
        columns={"text": "text", "label": "finding"},
        trainer={"max_steps": 6, "max_length": 48, "learning_rate": 0.01},
        **{"peft": ATTENTION} | changed,
    )


def language(**changed: Any) -> Any:
    """Prompts and completions: Llama in small with LoRA on its attention."""
    return sft(**{"peft": LORA, "trainer": {"max_steps": 6}} | changed)


NORM = 0.5
PRIVACY = PatientPrivacy(
    patient="patient",
    records_a_patient=4,
    patients_a_round=50,
    target_epsilon=8.0,
    delta=1e-4,
    max_patient_norm=NORM,
    noise_multiplier=1.0,
    accountant="rdp",
)
NOISE = NoiseSource(SECRET)


def source(folder: Path, rows: list[dict[str, Any]], name: str = "records") -> Source:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    sealed = sealed_folder(path, folder / f"{name}.sealed", salt=name).open()
    return Source(role="train", owner=OWNERS[0], name="records", weight=1.0, dataset=sealed)


def rows_of(patients: dict[str, int]) -> list[dict[str, Any]]:
    """Records of patients, in turn."""
    whose = [name for name, count in patients.items() for _ in range(count)]
    return [
        row | {"patient": name}
        for row, name in zip(records(len(whose), "private"), whose, strict=True)
    ]


def party(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    most: int = 4,
    name: str = "records",
    dropout: float = 0.0,
    **how: Any,
) -> tuple[Learner, PatientRounds]:
    recipe = classifier(dropout=dropout, peft=ATTENTION | {"lora_dropout": dropout})
    opened = source(folder, rows, name)
    learner = Learner(recipe, Path(), [opened], party=OWNERS[0], terms=Terms(aggregation="ffa"))
    bound = PatientBound(
        patient=how.pop("patient", "patient"),
        records_a_patient=how.pop("records_a_patient", most),
        max_norm=how.pop("max_norm", NORM),
    )
    asked = {"promised": bound, "noise": NOISE} | how
    return learner, PatientRounds(learner, recipe, [opened], **asked)


def norm(state: dict[str, torch.Tensor]) -> float:
    return float(sum(item.double().square().sum() for item in state.values()) ** 0.5)
