"""Preferences in real records: 569 biopsies of scikit-learn's breast cancer data, by two owners.

Four measurements of each, as digits on the scale between the 5th and 95th percentile, and the
diagnosis. Every fourth patient is held out.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from training_world import OWNERS

MEASURES = ("radius", "texture", "concave points", "smoothness")
DIAGNOSES = (" malignant", " benign")


def _patients() -> list[tuple[str, int]]:
    """Measurements in words, and which of the diagnoses is right."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = [list(data.feature_names).index(f"worst {name}") for name in MEASURES]
    low, high = np.quantile(data.data[:, columns], (0.05, 0.95), axis=0)
    digits = np.clip((data.data[:, columns] - low) / (high - low) * 10, 0, 9).astype(int)
    words = [
        ", ".join(f"{name} {digit}" for name, digit in zip(MEASURES, row, strict=True))
        for row in digits
    ]
    patients = [(text, int(target)) for text, target in zip(words, data.target, strict=True)]
    random.Random(569).shuffle(patients)  # noqa: S311 - a repeatable split
    return patients


def opinions(patients: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """The right diagnosis preferred to the wrong one, and one of them judged by itself."""
    source = random.Random(7)  # noqa: S311 - test records
    rows = []
    for text, target in patients:
        right, wrong = DIAGNOSES[target], DIAGNOSES[1 - target]
        label = source.random() < 0.5
        answer = right if label else wrong
        pair = {"prompt": f"{text}:", "chosen": right, "rejected": wrong}
        rows.append(pair | {"completion": answer, "label": label})
    return rows


def rankings(patients: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Of two patients, the one to be seen first: her biopsy is malignant, the other's is not."""
    source = random.Random(7)  # noqa: S311 - test records
    first = [text for text, target in patients if target == 0]
    later = [text for text, target in patients if target == 1]
    return [{"chosen": source.choice(first), "rejected": text} for text in later]


def write_split(make: Any, folder: Path) -> dict[str, Path]:
    """JSONL by ``owner.name`` of what ``make`` says about each owner's patients."""
    patients = _patients()
    known = [patient for index, patient in enumerate(patients) if index % 4]
    split = {
        f"{OWNERS[0]}.records": known[::2],
        f"{OWNERS[1]}.records": known[1::2],
        f"{OWNERS[0]}.held-out": patients[::4],
    }
    paths = {}
    for key, part in split.items():
        paths[key] = folder / f"{key}.jsonl"
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in make(part)), "utf-8")
    return paths


def questions(patients: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """The first measurement, and the diagnosis that is right."""
    return [
        {"prompt": f"{text.split(',')[0]}:", "answer": DIAGNOSES[target]}
        for text, target in patients
    ]


def guessing_model(folder: Path) -> Path:
    """A model in ``folder`` that can write diagnoses, and mostly guesses which it is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )
    source = random.Random(1)  # noqa: S311 - a repeatable model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(300):
        rows = []
        for _ in range(16):
            digit = source.randrange(10)
            right = (digit < 5) is (source.random() < 0.7)
            text = f"{MEASURES[0]} {digit}:{DIAGNOSES[right]}"
            rows.append(tokenizer(f"{text}<eos>")["input_ids"])
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        loss = model(ids, attention_mask=(ids != 0).long(), labels=ids.where(ids != 0, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
