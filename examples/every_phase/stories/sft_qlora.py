"""178 real wines as questions: a base in four bits learns which grower a wine is from."""

from __future__ import annotations

import json
from pathlib import Path

from sklearn.datasets import load_wine

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 128,
    "bf16": False,
    "activation_checkpointing": False,
}
MEASURES = (0, 6, 9, 12)


def prepare(folder: Path) -> dict[str, Path]:
    """Write questions with answers, and a model that starts from nothing."""
    _base(folder / "models" / "base")
    wines = load_wine()
    rows = []
    for values, target in zip(wines.data, wines.target, strict=True):
        measured = ", ".join(f"{wines.feature_names[at]} {values[at]:.3g}" for at in MEASURES)
        rows.append({"question": f"{measured}. Grower?", "answer": f" {'ABC'[target]}"})
    shares = {
        "hospital-a.questions": rows[0::3],
        "hospital-b.questions": rows[1::3],
        "hospital-b.questions-test": rows[2::3],
    }
    paths = {key: folder / f"{key}.jsonl" for key in shares}
    for key, share in shares.items():
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in share), "utf-8")
    return paths


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
