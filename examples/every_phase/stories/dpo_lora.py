"""Replies to patients: nurses prefer the one that fits how urgent the complaint is."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 100,
    "save_steps": 50,
    "logging_steps": 25,
    "per_device_eval_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 8,
    "learning_rate": 0.01,
    "max_length": 128,
    "bf16": False,
    "activation_checkpointing": False,
}
COME = ["chest pain", "sudden weakness", "heavy bleeding", "no breath", "a stiff neck"]
WAIT = ["dry skin", "mild hay fever", "a small bruise", "hiccups", "sore feet"]
REPLIES = ("Please come today.", "Rest, and call on Monday.")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write choices between two replies, and a chat model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"clinic-a.choices": 200, "clinic-b.choices": 200, "clinic-b.choices-test": 60}
    return {key: _choices(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _choices(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for number in range(count):
        complaints, fitting = ((COME, 0), (WAIT, 1))[number % 2]
        days = source.randint(1, 9)
        said = f"I have {source.choice(complaints)} for {days} days."
        rows.append(
            {
                "conversation": [{"role": "user", "content": said}],
                "preferred": [{"role": "assistant", "content": REPLIES[fitting]}],
                "other": [{"role": "assistant", "content": REPLIES[1 - fitting]}],
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes, and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
