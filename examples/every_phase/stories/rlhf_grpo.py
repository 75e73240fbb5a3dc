"""569 real biopsies: a model that mostly guesses is rewarded for the right diagnosis."""

from __future__ import annotations

import json
import random
from pathlib import Path

from sklearn.datasets import load_breast_cancer

TRAINER = {
    "max_steps": 40,
    "save_steps": 20,
    "eval_steps": 10,
    "logging_steps": 10,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 64,
    "num_generations": 4,
    "max_completion_length": 11,
    "learning_rate": 0.004,
    "beta": 0.05,
    "warmup_steps": 4,
}
DIAGNOSES = (" malignant", " benign")


def prepare(folder: Path) -> dict[str, Path]:
    """Write the biopsies' largest radius with the diagnosis, and the model that guesses."""
    _base(folder / "models" / "base")
    rows = _biopsies()
    shares = {
        "hospital-a.biopsies": rows[:220],
        "hospital-b.biopsies": rows[220:430],
        "hospital-a.biopsies-test": rows[430:],
    }
    paths = {}
    for key, share in shares.items():
        paths[key] = folder / f"{key}.jsonl"
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in share), "utf-8")
    return paths


def _biopsies() -> list[dict[str, str]]:
    """The radius is a digit between smallest and largest."""
    records = load_breast_cancer()
    radii = records.data[:, list(records.feature_names).index("worst radius")]
    low, high = min(radii), sorted(radii)[-30]
    rows = [
        {
            "findings": f"radius {min(9, int((radius - low) / (high - low) * 10))}:",
            "diagnosis": DIAGNOSES[target],
        }
        for radius, target in zip(radii, records.target, strict=True)
    ]
    random.Random(569).shuffle(rows)  # noqa: S311 - a repeatable split
    return rows


def _base(folder: Path) -> None:
    """A small Llama that reads bytes, and says what two in three would of a radius."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

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
    source = random.Random(1)  # noqa: S311 - example records
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(300):
        texts = []
        for _ in range(16):
            digit = source.randrange(10)
            said = DIAGNOSES[(digit < 5) is (source.random() < 0.7)]
            texts.append(f"radius {digit}:{said}<eos>")
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        model(ids, attention_mask=mask, labels=ids.where(mask.bool(), -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
