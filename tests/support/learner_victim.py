"""A process that trains, to be watched, killed or resumed: learner_victim.py FOLDER STORY [slow].

It prints one JSON line when it is done: digests of weights, metrics or a loss history by the story,
every path that Python opened for writing, every address it tried to reach, and what loggers were
told. ``slow`` waits after each checkpoint, so that a test can kill in time.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from remains import CALLED, LOGGED, OPENED, listen, watch

UTTERED = "ZYXWVUQJKB"
"""What the talkative model says to everything: no letter occurs twice, so one layer will do."""
Answer = dict[str, Any]


def language(folder: Path) -> Answer:
    """Pre-trains, trains encoders and adapts."""
    from language_world import ADAPTERS, cpt, embed, write_base
    from training_world import sft, write_records

    write_base(folder / "base")
    short = {"max_steps": 3, "save_steps": 2}
    recipes = {
        "cpt": cpt(trainer=short | {"eval_steps": 2}),
        "embed": embed(trainer=short | {"eval_steps": 2}),
        "embed-cached": embed(trainer=short | {"mini_batch_size": 2}),
        "sft-qlora": sft(
            model={"path": "base"}, peft=ADAPTERS["qlora"] | {"merge": True}, trainer=short
        ),
        "sft-packed": sft(
            model={"path": "base"},
            columns={"messages": "messages"},
            trainer=short | {"packing": True, "assistant_only_loss": True, "max_length": 256},
        ),
    }
    return {"weights": {name: ran.weights for name, ran in played(folder, recipes, write_records)}}


def preferences(folder: Path) -> Answer:
    """Trains every way of learning from preferences."""
    from preference_world import kto, merging_tokenizer, preferring, write_preferences
    from training_world import LORA

    merging_tokenizer(folder / "tokenizer")
    short = {"max_steps": 3, "save_steps": 2}
    merging = preferring("dpo").to_dict()["model"] | {"tokenizer": {"path": "tokenizer"}}
    recipes = {
        "dpo": preferring("dpo", trainer=short | {"eval_steps": 2}),
        "dpo-merging": preferring("dpo", trainer=short, model=merging),
        "kto-lora": kto(trainer=short, peft=LORA),
        "orpo": preferring("dpo", trainer=short | {"loss_type": "orpo"}),
        "reward": preferring("reward", trainer=short),
    }
    ran = played(folder, recipes, write_preferences)
    return {"weights": {name: item.weights for name, item in ran}}


def answers(folder: Path) -> Answer:
    """Trains a talkative model by reinforcement."""
    from preference_world import rlhf, write_questions, write_scorer

    def write_said(owner: Path) -> dict[str, Path]:
        paths = write_questions(owner)
        for path in paths.values():
            rows = [json.loads(line) | {"said": UTTERED} for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return paths

    write_scorer(folder)
    said = {"columns": {"prompt": "prompt", "answer": "said"}, "reward": {"rule": "contains"}}
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
    ran = played(folder, recipes, write_said)
    return {"metrics": {name: item.trained.metrics for name, item in ran}}


def talkative_model(folder: Path) -> None:
    """A small model that always says ``UTTERED``, taught before anything is watched."""
    import torch
    from preference_world import questions
    from training_world import LLAMA
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer
    from sealtrain.training.silence import silence

    silence()
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
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")


def whole(folder: Path) -> Answer:
    """Trains one recipe, from its newest checkpoint where there is one."""
    from training_world import checkpoint_store, reopen_records, run, sft, sources_of, write_records

    from sealtrain.training.checkpoints.checkpoint import newest

    recipe = sft(trainer={"max_steps": 12})
    done = (folder / "owner").exists()
    sealed = reopen_records(folder / "sealed") if done else sealed_in(folder, write_records)
    store = checkpoint_store(folder / "checkpoints")
    pause = 0.5 if "slow" in sys.argv else 0.0
    ran = run(
        recipe,
        sources_of(recipe, sealed),
        store,
        resume=newest(store, None),
        on_checkpoint=lambda ref: time.sleep(pause),
    )
    return {"weights": ran.weights, "history": ran.history}


def sealed_in(folder: Path, write: Callable[[Path], dict[str, Path]]) -> dict[str, Any]:
    from training_world import seal_records

    for name in ("owner", "sealed"):
        (folder / name).mkdir()
    return seal_records(write(folder / "owner"), folder / "sealed")


def played(
    folder: Path, recipes: Mapping[str, Any], write: Callable[[Path], dict[str, Path]]
) -> list[tuple[str, Any]]:
    """What training each recipe gave."""
    from training_world import checkpoint_store, run, sources_of

    sealed = sealed_in(folder, write)
    return [
        (
            name,
            run(
                recipe,
                sources_of(recipe, sealed),
                checkpoint_store(folder / "checkpoints" / name),
                base_dir=folder,
            ),
        )
        for name, recipe in recipes.items()
    ]


STORIES = {"language": language, "preferences": preferences, "answers": answers, "whole": whole}


def main() -> None:
    folder, story = Path(sys.argv[1]), sys.argv[2]
    if story == "answers":
        talkative_model(folder)
    sys.addaudithook(watch)
    root = logging.getLogger()
    root.addHandler(logging.NullHandler())
    root.handlers[-1].addFilter(listen)
    answer = STORIES[story](folder)
    print(json.dumps(answer | {"opened": OPENED, "called": CALLED, "logged": LOGGED}))


if __name__ == "__main__":
    main()
