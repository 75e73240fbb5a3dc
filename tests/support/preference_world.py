"""Tiny recipes and records of preferences and questions, for ``dpo``, ``reward``, ``rlhf``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training_world import CANARY, LLAMA, TRAINER, document, releasing, write_records

from sealtrain.recipe.schema import PhaseRecipe, parse_recipe

PAIRS = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
LABELLED = {"prompt": "prompt", "completion": "completion", "label": "label"}
SHORT = {"max_steps": 6, "max_length": 64, "disable_dropout": False}
METRICS = ["loss", "eval_loss", "reward_accuracy", "reward_margin", "rewards_margins"]


def preferring(phase: str, *, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A recipe of ``phase`` on two hospitals' pairs, full weights, with changes."""
    usual: dict[str, Any] = {
        "phase": phase,
        "columns": PAIRS,
        "trainer": TRAINER | SHORT | (trainer or {}),
        "release_policy": releasing(*METRICS),
    }
    return parse_recipe(document(**usual | changed))


def kto(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """The same on single answers with a label."""
    settings = {"loss_type": "kto"} | (trainer or {})
    return preferring("dpo", trainer=settings, columns=LABELLED, **changed)


def asked(count: int, label: str) -> Iterator[tuple[random.Random, str, int, int]]:
    """Which of two sizes is larger: the label's chance, the question and the sizes."""
    source = random.Random(label)  # noqa: S311 - test records
    for number in range(count):
        first, second = source.sample(range(10), 2)
        question = f"{CANARY} {number}{' long' * (number % 5)}: {first} or {second}?"
        yield source, question, first, second


def preferences(count: int, label: str) -> list[dict[str, Any]]:
    """Which of two sizes is larger, said right and wrong. Each record holds the canary."""
    rows = []
    for source, question, first, second in asked(count, label):
        right, wrong = (" first", " second") if first > second else (" second", " first")
        desirable = source.random() < 0.5
        rows.append(
            {
                "prompt": question,
                "chosen": right,
                "rejected": wrong,
                "completion": right if desirable else wrong,
                "label": desirable,
                "whole_chosen": question + right,
                "whole_rejected": question + wrong,
                "asked": [{"role": "user", "content": question}],
                "right": [{"role": "assistant", "content": right}],
                "wrong": [{"role": "assistant", "content": wrong}],
            }
        )
    return rows


def write_preferences(folder: Path, count: int = 40) -> dict[str, Path]:
    return write_records(folder, count, made=preferences)


def merging_tokenizer(folder: Path) -> None:
    """Save a tokenizer that joins the end of a question with the begin of its answer.

    TRL then warns, and quotes the question.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\u0120"  # how byte-level tokenizers write a space
    words = ["<pad>", "<eos>", *alphabet[:254], f"?{space}", f"?{space}f", f"?{space}s"]
    vocabulary = {word: index for index, word in enumerate(words)}
    merges = [("?", space), (f"?{space}", "f"), (f"?{space}", "s")]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",  # names of tokens, not secrets
        eos_token="<eos>",
    ).save_pretrained(folder)


GROUPS = {"num_generations": 2, "max_completion_length": 6}
TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": "ppo", "num_ppo_epochs": 2, "max_completion_length": 6},
    "rloo": {"algorithm": "rloo", **GROUPS},
    "grpo": {"algorithm": "grpo", "beta": 0.04, **GROUPS},
}
LEARNED = ["loss", "reward", "kl", "entropy", "kl_coef", "eval_reward", "eval_reward_before"]
LEARNED += ["eval_kl", "eval_length", "grad_norm", "value_loss", "policy_kl"]
SCORER = {"model": {"path": "scorer", "tokenizer": {"kind": "bytes"}}}


def rlhf(algorithm: str, *, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A recipe on two hospitals' prompts with a reward model in ``scorer``, with changes."""
    usual: dict[str, Any] = {
        "phase": "rlhf",
        "columns": {"prompt": "prompt"},
        "trainer": TRAINER | TRAINERS[algorithm] | (trainer or {}),
        "reward": SCORER,
        "release_policy": releasing(*LEARNED),
    }
    return parse_recipe(document(**usual | changed))


def questions(count: int, label: str) -> list[dict[str, Any]]:
    """Which of two sizes is larger, and the answer. Each record holds the canary."""
    return [
        {
            "prompt": question,
            "answer": "first" if first > second else "second",
            "asked": [{"role": "user", "content": question}],
            "size": first,
        }
        for _, question, first, second in asked(count, label)
    ]


def write_questions(folder: Path) -> dict[str, Path]:
    return write_records(folder, made=questions)


def write_scorer(
    folder: Path, kind: str = "LlamaForSequenceClassification", labels: int = 1
) -> Path:
    """A model of random weights in ``folder / "scorer"``."""
    import torch
    import transformers

    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    torch.manual_seed(3)
    model = getattr(transformers, kind)(
        transformers.LlamaConfig(**config, num_labels=labels, pad_token_id=0)
    )
    model.save_pretrained(folder / "scorer")
    return folder
