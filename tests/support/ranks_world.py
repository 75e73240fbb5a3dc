"""One small recipe of each phase and method, to train in one rank and in several.

Dropout is off: every rank draws its own masks. Gradients are not clipped: how the norm is summed is
a matter of the backend. A recipe for one rank takes in two parts what two ranks take in one.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from language_world import NF4, cpt, embed, write_base
from preference_world import (
    SCORER,
    kto,
    preferring,
    questions,
    rlhf,
    write_preferences,
    write_scorer,
)
from training_world import (
    LORA,
    OWNERS,
    Ran,
    classify,
    document,
    releasing,
    reopen_records,
    seal_records,
    sft,
    write_records,
)
from vision_world import (
    MLLAMA,
    QWEN2,
    VISION,
    image_classifier,
    image_reader,
    reading,
    seal_digits,
)

from sealtrain.recipe.schema import PhaseRecipe, parse_recipe

BATCH = 4
STILL = {"max_grad_norm": 0.0, "max_steps": 4, "save_steps": 2, "warmup_steps": 0}
ADAPTER = LORA | {"lora_dropout": 0.0}
ENCODER_ADAPTER = ADAPTER | {"target_modules": ["query", "value"]}
FOUR_BITS = {"quantization": NF4}
QLORA: dict[str, Any] = {"model": {"path": "base"}, "peft": ADAPTER | FOUR_BITS}
TEXT = {"columns": {"text": "text", "label": "finding"}}
PROMPTS = {"method": "prompt_tuning", "num_virtual_tokens": 2}
NUMBERS = {
    "config": {"model_type": "sealtrain-tabular", "hidden_size": 8, "dropout": 0.0},
    "init_seed": 1,
}
ENCODER = {
    "model_type": "bert",
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
JUDGE = {"path": "judge", "tokenizer": {"kind": "bytes"}}
READER = {"config": ENCODER, "init_seed": 3, "tokenizer": {"kind": "bytes"}}
SEEING = {
    "model": {
        "config": {
            "model_type": "vit",
            **VISION,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "init_seed": 1,
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A recipe, apart from its division.

    Attributes:
        made: Builds the recipe.
        records: The kind of its records.
        changed: What is changed in it.
        trainer: What is changed in its trainer's settings.
        whole: One rank takes the batch of all ranks in one part: their loss is of all of it.
    """

    made: Callable[..., PhaseRecipe]
    records: str = "records"
    changed: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    whole: bool = False


def of(made: Callable[..., PhaseRecipe], records: str = "records", **changed: Any) -> Play:
    trainer, whole = changed.pop("trainer", {}), changed.pop("whole", False)
    return Play(made=made, records=records, changed=changed, trainer=trainer, whole=whole)


def dpo(**given: Any) -> PhaseRecipe:
    return preferring("dpo", **given)


def reward(**given: Any) -> PhaseRecipe:
    return preferring("reward", **given)


def ppo(**given: Any) -> PhaseRecipe:
    return rlhf("ppo", **given)


def grpo(**given: Any) -> PhaseRecipe:
    return rlhf("grpo", **given)


def rloo(**given: Any) -> PhaseRecipe:
    return rlhf("rloo", **given)


def evaluation(*, trainer: dict[str, Any], **changed: Any) -> PhaseRecipe:
    """The clean room; ``trainer`` is for those that train."""
    return parse_recipe(
        document(
            phase="evaluate",
            model=JUDGE,
            datasets=[{"owner": OWNERS[0], "name": "held-out", "role": "test"}],
            columns={"text": "text", "label": "finding"},
            labels=["benign", "malignant"],
            min_records=2,
            trainer={"per_device_eval_batch_size": BATCH},
            release_policy=releasing("accuracy", "majority", "f1", "auroc"),
            **changed,
        )
    )


def write_judge(folder: Path) -> None:
    """A classifier of random weights in ``folder / "judge"``."""
    import torch
    import transformers

    settings = {name: value for name, value in ENCODER.items() if name != "model_type"}
    torch.manual_seed(3)
    config = transformers.BertConfig(**settings, num_labels=2, pad_token_id=0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "judge")


PLAYS: dict[str, Play] = {
    "evaluate": of(evaluation),
    "cpt": of(cpt),
    "cpt-lora": of(cpt, peft=ADAPTER),
    "cpt-qlora": of(cpt, **QLORA),
    "sft": of(sft),
    "sft-best": of(
        sft,
        trainer={"eval_steps": 1, "metric_for_best_model": "accuracy"}
        | {"load_best_model_at_end": True},
    ),
    "sft-lora": of(sft, peft=ADAPTER),
    "sft-merged": of(sft, peft=ADAPTER | {"merge": True}),
    "sft-qlora": of(sft, **QLORA),
    "sft-qlora-merged": of(sft, **QLORA | {"peft": QLORA["peft"] | {"merge": True}}),
    "sft-prompts": of(sft, peft=PROMPTS),
    "sft-bf16": of(sft, trainer={"bf16": True}),
    "sft-fp16": of(sft, trainer={"fp16": True}),
    "classify": of(classify, model=NUMBERS, trainer={"eval_steps": 2}),
    "classify-text": of(classify, model=READER, **TEXT),
    "classify-text-lora": of(classify, model=READER, **TEXT, peft=ENCODER_ADAPTER),
    "classify-text-merged": of(
        classify, model=READER, **TEXT, peft=ENCODER_ADAPTER | {"merge": True}
    ),
    "classify-text-qlora": of(classify, model=JUDGE, **TEXT, peft=ENCODER_ADAPTER | FOUR_BITS),
    "classify-image": of(image_classifier, "digits", **SEEING),
    "classify-image-lora": of(image_classifier, "digits", **SEEING, peft=ADAPTER),
    "dpo": of(dpo, "preferences", trainer={"disable_dropout": True, "eval_steps": 2}),
    "dpo-lora": of(dpo, "preferences", peft=ADAPTER),
    "dpo-qlora": of(dpo, "preferences", **QLORA),
    "apo": of(kto, "preferences", trainer={"loss_type": "apo_zero_unpaired"}),
    "orpo": of(dpo, "preferences", trainer={"loss_type": "orpo"}),
    "orpo-lora": of(dpo, "preferences", trainer={"loss_type": "orpo"}, peft=ADAPTER),
    "orpo-qlora": of(dpo, "preferences", trainer={"loss_type": "orpo"}, **QLORA),
    "reward": of(reward, "preferences", trainer={"eval_steps": 2}),
    "reward-lora": of(reward, "preferences", peft=ADAPTER),
    "reward-qlora": of(
        reward,
        "preferences",
        model=SCORER["model"],
        peft=ADAPTER | FOUR_BITS,
        trainer={"bf16": True, "eval_steps": 2},
    ),
    "embed": of(embed, model=READER, whole=True),
    "embed-cached": of(embed, model=READER, whole=True, trainer={"mini_batch_size": 2}),
    "embed-lora": of(
        embed,
        model=READER,
        whole=True,
        peft=ENCODER_ADAPTER,
        trainer={"matryoshka_dims": [16, 8]},
    ),
    "embed-qlora": of(embed, model=JUDGE, whole=True, peft=ENCODER_ADAPTER | FOUR_BITS),
    "vlm": of(image_reader, "digits"),
    "vlm-lora": of(image_reader, "digits", peft=ADAPTER),
    "vlm-qwen": of(image_reader, "digits", **reading(QWEN2)),
    "vlm-mllama": of(image_reader, "digits", **reading(MLLAMA), peft=ADAPTER),
    "ppo": of(ppo, "questions", trainer={"num_mini_batches": 2, "eval_steps": 2}),
    "ppo-lora": of(ppo, "questions", peft=ADAPTER),
    "ppo-qlora": of(ppo, "questions", **QLORA),
    "kto": of(kto, "preferences"),
    "kto-lora": of(kto, "preferences", peft=ADAPTER),
    "kto-qlora": of(kto, "preferences", **QLORA),
    "grpo": of(grpo, "questions", trainer={"eval_steps": 2}),
    "grpo-lora": of(grpo, "questions", peft=ADAPTER),
    "grpo-qlora": of(grpo, "questions", **QLORA),
    "rloo": of(rloo, "questions"),
    "rloo-lora": of(rloo, "questions", peft=ADAPTER),
    "rloo-qlora": of(rloo, "questions", **QLORA),
}


def recipe_of(
    play: str | Play, backend: dict[str, Any] | None = None, **further: Any
) -> PhaseRecipe:
    """The recipe for a backend; without one for one rank, which does what two ranks do."""
    play = PLAYS[play] if isinstance(play, str) else play
    ranks = 2 if backend is None else 1
    division = {
        "per_device_train_batch_size": BATCH * (ranks if play.whole else 1),
        "gradient_accumulation_steps": 1 if play.whole else ranks,
    }
    changed = copy.deepcopy(play.changed) | ({} if backend is None else {"backend": backend})
    return play.made(trainer=STILL | division | play.trainer, **changed, **further)


def seal_all(folder: Path) -> Path:
    """Sealed records of each kind, and the reward model in ``scorer``."""
    for kind, write in (
        ("records", write_records),
        ("preferences", write_preferences),
        ("questions", lambda into: write_records(into, made=questions)),
    ):
        (folder / "owners" / kind).mkdir(parents=True)
        (folder / kind).mkdir()
        seal_records(write(folder / "owners" / kind), folder / kind)
    seal_digits(folder / "digits")
    write_judge(folder)
    (folder / "base").mkdir()
    write_base(folder / "base")
    return write_scorer(folder)


def reopened(folder: Path, name: str) -> dict[str, Any]:
    """The sealed records of a play."""
    return dict(reopen_records(folder / PLAYS[name].records))


def summary(ran: Ran) -> dict[str, Any]:
    """What equal trainings have in common, as plain data."""
    done = ran.trained
    return {
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in done.files.items()},
        "history": [[step, values] for step, values in ran.history],
        "metrics": done.metrics,
        "rows": done.samples_seen,
        "steps": done.steps,
        "tokens": done.tokens,
    }
