"""A bank's assistant guesses which desk can help; the banks' own reward model knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from making import drawn, saved

TRAINER = {
    "max_steps": 40,
    "save_steps": 20,
    "logging_steps": 10,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "per_device_eval_batch_size": 32,
    "max_completion_length": 10,
    "learning_rate": 0.005,
    "init_kl_coef": 0.1,
    "warmup_steps": 4,
}
DESKS = {
    " Desk A.": ["my card is gone", "a card was stolen", "my card is blocked"],
    " Desk B.": ["I want a loan", "what is my rate", "I owe too much"],
}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write questions, a model that knows the desks only, and one that knows which can help."""
    _base(folder / "models" / "base")
    _reward(folder / "models" / "reward")
    counts = {"bank-a.questions": 240, "bank-b.questions": 240, "bank-a.questions-test": 64}
    return drawn(folder, counts, lambda source, _number: {"question": _question(source)[0]})


def _question(source: random.Random) -> tuple[str, str]:
    desk = source.choice(list(DESKS))
    return f"{source.choice(DESKS[desk])}, {source.randint(1, 9)} days now?", desk


def _base(folder: Path) -> None:
    """A small Llama that reads bytes and names a desk at random."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SHAPE))

    def loss(ids: Any, mask: Any, _right: Any) -> Any:
        return model(ids, attention_mask=mask, labels=ids.where(mask.bool(), -100)).loss

    _train(model, tokenizer, loss, 80)
    saved(folder, model, tokenizer)


def _reward(folder: Path) -> None:
    """A small classifier that scores the right desk 2 and the wrong one -2."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(1)
    shape = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=0, **SHAPE)
    model = LlamaForSequenceClassification(shape)

    def loss(ids: Any, mask: Any, right: Any) -> Any:
        scores = model(ids, attention_mask=mask).logits[:, 0]
        return ((scores - (4 * right - 2)) ** 2).mean()

    _train(model, tokenizer, loss, 200)
    saved(folder, model, tokenizer)


def _train(model: Any, tokenizer: Any, loss: Callable[[Any, Any, Any], Any], steps: int) -> None:
    import torch

    source = random.Random(2)  # noqa: S311 - example records
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        texts, right = [], []
        for _ in range(32):
            question, desk = _question(source)
            said = source.choice(list(DESKS))
            texts.append(f"{question}{said}<eos>")
            right.append(float(said == desk))
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        loss(batch["input_ids"], batch["attention_mask"], torch.tensor(right)).backward()
        optimizer.step()
        optimizer.zero_grad()
