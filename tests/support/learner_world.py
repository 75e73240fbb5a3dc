"""Tiny federations in one process: recipes with adapters, and terms of rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from language_world import BERT
from training_world import LORA, classify, sft

ATTENTION = {"method": "lora", "r": 2, "lora_dropout": 0.1, "target_modules": ["query", "value"]}
PREFIX = {"method": "prefix_tuning", "num_virtual_tokens": 4}


@dataclass(frozen=True)
class Terms:
    """What a learner has to know of the rounds."""

    rounds: int = 2
    local_steps: int = 3
    aggregation: str = "fedavg"


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
