"""Dialogues of two banks, of which only the clerk's part is learned, several to a row."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 256,
    "bf16": False,
}
FEES = {"card": "free", "transfer": "one euro", "statement": "two euros", "loan": "one per cent"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: "
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}\n{% endgeneration %}"
    "{% else %}{{ message['content'] }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write dialogues, and a chat model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"bank-a.dialogues": 160, "bank-b.dialogues": 120}
    return {key: _dialogues(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _dialogues(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for _ in range(count):
        service = source.choice(sorted(FEES))
        asked = f"Customer {source.randint(100, 999)} asks what a {service} costs."
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": f"It is {FEES[service]}."},
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

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
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
