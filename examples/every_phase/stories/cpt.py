"""What scikit-learn says about its records: a model of bytes reads on in real English."""

from __future__ import annotations

import json
from pathlib import Path

from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "eval_steps": 30,
    "logging_steps": 15,
    "block_size": 128,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.005,
    "warmup_steps": 5,
    "bf16": False,
    "activation_checkpointing": False,
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write one paragraph a record, and a model that starts from nothing."""
    _base(folder / "models" / "base")
    loaders = (load_breast_cancer, load_diabetes, load_digits, load_iris, load_linnerud, load_wine)
    paragraphs = [
        " ".join(paragraph.split())
        for loader in loaders
        for paragraph in loader().DESCR.split("\n\n")
        if paragraph.strip()
    ]
    shares = {
        "institute-a.reports": paragraphs[0::3],
        "institute-b.reports": paragraphs[1::3],
        "institute-b.reports-test": paragraphs[2::3],
    }
    paths = {key: folder / f"{key}.jsonl" for key in shares}
    for key, share in shares.items():
        paths[key].write_text("".join(json.dumps({"text": one}) + "\n" for one in share), "utf-8")
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
