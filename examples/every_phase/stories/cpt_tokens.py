"""Token shards as pre-training has them: one with llm.c's header, two without."""

from __future__ import annotations

import array
import struct
from pathlib import Path

from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

TRAINER = {
    "max_steps": 40,
    "save_steps": 20,
    "logging_steps": 10,
    "block_size": 128,
    "per_device_train_batch_size": 2,
    "learning_rate": 0.003,
    "lr_scheduler_kwargs": {"num_decay_steps": 10},
    "warmup_steps": 5,
    "bf16": False,
}
SEAL_AS = {
    "publisher-a.shards": "--format tokens --row-tokens 128",
    "publisher-b.shards": "--format tokens --row-tokens 128 --dtype uint16",
    "publisher-b.shards-test": "--format tokens --row-tokens 128 --dtype uint16",
}
MAGIC = 20240520


def prepare(folder: Path) -> dict[str, Path]:
    """Write three shards of the byte tokenizer's numbers."""
    texts = {
        "publisher-a.shards": load_breast_cancer().DESCR,
        "publisher-b.shards": load_diabetes().DESCR,
        "publisher-b.shards-test": load_wine().DESCR,
    }
    paths = {}
    for key, text in texts.items():
        tokens = _tokens(text)
        header = struct.pack("<256i", MAGIC, 1, len(tokens), *[0] * 253)
        paths[key] = folder / f"{key}.bin"
        paths[key].write_bytes((header if key == "publisher-a.shards" else b"") + tokens.tobytes())
    return paths


def _tokens(text: str) -> array.array[int]:
    """Paragraphs as numbers of the byte tokenizer, the end token after each."""
    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    paragraphs = [word for word in text.split("\n\n") if word.strip()]
    numbers = [
        number
        for ids in tokenizer(paragraphs)["input_ids"]
        for number in (*ids, tokenizer.eos_token_id)
    ]
    return array.array("H", numbers)
