"""Letters whose urgency follows from the words in them, and an encoder that starts from nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from making import drawn

TRAINER = {
    "max_steps": 120,
    "save_steps": 60,
    "logging_steps": 20,
    "max_length": 48,
    "learning_rate": 0.01,
}
SIGNS = {
    "urgent": ["crushing chest pain", "sudden weakness", "heavy bleeding", "cannot breathe"],
    "soon": ["weight loss", "new lump", "worsening cough", "blurred vision"],
    "routine": ["stable diabetes", "dry skin", "mild hay fever", "old scar"],
}
OPENINGS = ["Dear colleague,", "Thank you for seeing", "I refer", "Please review"]


def prepare(folder: Path) -> dict[str, Path]:
    """Write letters and the encoder."""
    _encoder(folder / "models" / "encoder")
    counts = {"hospital-a.letters": 240, "hospital-b.letters": 240, "hospital-b.letters-test": 90}
    return drawn(folder, counts, _letter)


def _letter(source: random.Random, number: int) -> dict[str, Any]:
    urgency = list(SIGNS)[number % len(SIGNS)]
    sign = source.choice(SIGNS[urgency])
    age = source.randint(20, 90)
    letter = f"{source.choice(OPENINGS)} a {age} year old patient with {sign}."
    return {"letter": letter, "urgency": urgency}


def _encoder(folder: Path) -> None:
    """A two-layer BERT with random weights; its words are those of the letters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    text = " ".join([*OPENINGS, *(sign for signs in SIGNS.values() for sign in signs)]).lower()
    words = sorted({word.strip(",.") for word in text.split()} | {"a", "year", "old", "patient"})
    vocabulary = {word: index for index, word in enumerate([*special, *words, "with", ",", "."])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)
    torch.manual_seed(0)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            num_labels=3,
        )
    ).save_pretrained(folder)
