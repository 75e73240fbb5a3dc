"""A process that trains a talkative model by reinforcement: python rlhf_victim.py FOLDER.

Its model says ``UTTERED`` to everything. It prints one JSON line when it is done: metrics, every
path that Python opened for writing, every address it tried to reach, and what loggers were told.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from watching import CALLED, LOGGED, OPENED, listen, watch

UTTERED = "ZYXWVUQJKB"


def talkative_model(folder: Path) -> None:
    """A small model that always says the same: no letter occurs twice, so one layer will do."""
    import torch
    from rlhf_world import questions
    from training_world import LLAMA
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = {key: value for key, value in LLAMA.items() if key != "model_type"} | {
        "hidden_size": 48,
        "intermediate_size": 96,
    }
    model = LlamaForCausalLM(LlamaConfig(**config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    texts = [f"{row['prompt']}{UTTERED}<eos>" for row in questions(40, "before")]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].where(batch["attention_mask"].bool(), -100)
    for _ in range(150):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    folder = Path(sys.argv[1])
    from sealtrain.training.silence import silence

    silence()
    talkative_model(folder / "base")
    sys.addaudithook(watch)
    root = logging.getLogger()
    root.addHandler(logging.NullHandler())
    root.handlers[-1].addFilter(listen)
    from rlhf_world import rlhf, write_questions, write_scorer
    from training_world import checkpoint_store, run, seal_records, sources_of

    records = folder / "owner"
    records.mkdir()
    (folder / "sealed").mkdir()
    paths = write_questions(records)
    for path in paths.values():
        rows = [json.loads(line) | {"said": UTTERED} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    sealed = dict(seal_records(paths, folder / "sealed"))
    write_scorer(folder)
    said = {
        "columns": {"prompt": "prompt", "answer": "said"},
        "reward": {"rule": "contains"},
    }
    short = {
        "max_steps": 3,
        "save_steps": 2,
        "eval_steps": 2,
        "max_completion_length": 14,
        "temperature": 0.5,
        "learning_rate": 1e-6,
    }
    model = {"path": "base"}
    recipes = {
        **{
            name: rlhf(name, trainer=short, model=model, **said) for name in ("ppo", "rloo", "grpo")
        },
        "ppo-scored": rlhf("ppo", trainer=short, model=model),
    }
    metrics = {
        name: run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(folder / "checkpoints" / name),
            base_dir=folder,
        ).trained.metrics
        for name, recipe in recipes.items()
    }
    answer = {"metrics": metrics, "opened": OPENED, "called": CALLED, "logged": LOGGED}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
