"""Tiny recipes and sealed records of preferences, for tests of ``dpo`` and ``reward``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from training_world import CANARY, TRAINER, document, releasing, write_records

from sealtrain.recipe.schema import Recipe, parse_recipe

PAIRS = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
LABELLED = {"prompt": "prompt", "completion": "completion", "label": "label"}
SHORT = {"max_steps": 6, "max_length": 64, "disable_dropout": False}
METRICS = ["loss", "eval_loss", "reward_accuracy", "reward_margin", "rewards_margins"]


def preferring(phase: str, *, trainer: dict[str, Any] | None = None, **changed: Any) -> Recipe:
    """A recipe of ``phase`` on two hospitals' pairs, full weights, with changes."""
    usual: dict[str, Any] = {
        "phase": phase,
        "columns": PAIRS,
        "trainer": TRAINER | SHORT | (trainer or {}),
        "release_policy": releasing(*METRICS),
    }
    return parse_recipe(document(**usual | changed))


def kto(*, trainer: dict[str, Any] | None = None, **changed: Any) -> Recipe:
    """The same on single answers with a label."""
    settings = {"loss_type": "kto"} | (trainer or {})
    return preferring("dpo", trainer=settings, columns=LABELLED, **changed)


def preferences(count: int, label: str) -> list[dict[str, Any]]:
    """Which of two sizes is larger, said right and wrong. Each record holds the canary."""
    source = random.Random(label)  # noqa: S311 - test records
    rows = []
    for number in range(count):
        first, second = source.sample(range(10), 2)
        right, wrong = (" first", " second") if first > second else (" second", " first")
        desirable = source.random() < 0.5
        question = f"{CANARY} {number}{' long' * (number % 5)}: {first} or {second}?"
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
