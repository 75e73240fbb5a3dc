"""Dialogues of two banks: which counter a customer needs follows from what he says."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 80,
    "save_steps": 40,
    "logging_steps": 20,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 160,
    "activation_checkpointing": False,
}
COUNTERS = {
    "cards": ["my card is gone", "the card was swallowed", "a payment was declined"],
    "loans": ["we want to buy a house", "the rate of my loan", "a loan for a car"],
    "transfers": ["money sent abroad", "a standing order", "a transfer came back"],
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write dialogues, and a chat model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"bank-a.dialogues": 160, "bank-b.dialogues": 120, "bank-a.dialogues-test": 40}
    return {key: _dialogues(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _dialogues(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for _ in range(count):
        counter = source.choice(sorted(COUNTERS))
        said = f"{source.choice(COUNTERS[counter])}, {source.randint(10, 99)} euros"
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": said},
                    {"role": "assistant", "content": f"Please go to {counter}."},
                ]
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes, and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    torch.manual_seed(1)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
