"""Calls that two insurers answered: the price follows from what is to be insured."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRAINER = {
    "max_steps": 80,
    "save_steps": 40,
    "logging_steps": 20,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 160,
    "activation_checkpointing": False,
}
PRICES = {"bicycle": "forty euros", "flat": "ninety euros", "dog": "sixty euros", "boat": "a quote"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def prepare(folder: Path) -> dict[str, Path]:
    """Write calls, and a chat model that starts from nothing."""
    _base(folder / "models" / "base")
    counts = {"insurer-a.calls": 160, "insurer-b.calls": 120, "insurer-a.calls-test": 40}
    return {key: _calls(folder / f"{key}.jsonl", count) for key, count in counts.items()}


def _calls(path: Path, count: int) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = []
    for _ in range(count):
        thing = source.choice(sorted(PRICES))
        asked = f"I am {source.randint(18, 80)}. What does it cost to insure a {thing}?"
        answered = f"Insuring a {thing} costs {PRICES[thing]} a year."
        turns = [("user", asked), ("assistant", answered)]
        rows.append({"turns": [{"role": role, "content": words} for role, words in turns]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes, and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    torch.manual_seed(2)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.2,  # as far from zero as trained weights
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
