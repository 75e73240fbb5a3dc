"""What scikit-learn says about its records: a model of bytes reads on in real English."""

from __future__ import annotations

from pathlib import Path

from making import base_model, lines
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
    base_model(folder, layers=2, longest=256, tie_word_embeddings=True)
    loaders = (load_breast_cancer, load_diabetes, load_digits, load_iris, load_linnerud, load_wine)
    paragraphs = [
        {"text": " ".join(paragraph.split())}
        for loader in loaders
        for paragraph in loader().DESCR.split("\n\n")
        if paragraph.strip()
    ]
    shares = {
        "institute-a.reports": paragraphs[0::3],
        "institute-b.reports": paragraphs[1::3],
        "institute-b.reports-test": paragraphs[2::3],
    }
    return lines(folder, shares)
