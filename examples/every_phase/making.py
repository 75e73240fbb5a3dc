"""What the stories make alike: files of records, and small Llamas that read bytes."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Drawn = Callable[[random.Random, int], dict[str, Any]]
PICTURES = dict.fromkeys(
    ("archive-a.pictures", "archive-b.pictures", "archive-b.pictures-test"), "--format images"
)
"""How the archives' pictures are sealed."""
_PROMPTS = ("What is this?\n", "Name what you see.\n")
_ANSWERS = ("temple", "flower")


def lines(folder: Path, shares: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, Path]:
    """Write one JSONL file a dataset.

    Args:
        folder: Where they go.
        shares: ``owner.name`` → its records.
    """
    paths = {key: folder / f"{key}.jsonl" for key in shares}
    for key, rows in shares.items():
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return paths


def drawn(folder: Path, counts: Mapping[str, int], draw: Drawn) -> dict[str, Path]:
    """Write one JSONL file a dataset, of records drawn by its name: the same each time.

    Args:
        folder: Where they go.
        counts: ``owner.name`` → how many records.
        draw: Makes the record of a number.
    """
    shares = {}
    for key, count in counts.items():
        source = random.Random(key)  # noqa: S311 - example records
        shares[key] = [draw(source, number) for number in range(count)]
    return lines(folder, shares)


def tables(
    folder: Path, names: Iterable[str], shares: Mapping[str, Iterable[list[Any]]]
) -> dict[str, Path]:
    """Write one CSV file a dataset.

    Args:
        folder: Where they go.
        names: Of the columns.
        shares: ``owner.name`` → its rows.
    """
    paths = {key: folder / f"{key}.csv" for key in shares}
    header = list(names)
    for key, rows in shares.items():
        with paths[key].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)
    return paths


def pictures(folder: Path, shapes: Sequence[tuple[int, int]] = ((96, 96),)) -> dict[str, Path]:
    """Pieces of two photographs in three folders, each with a question and its answer.

    Args:
        folder: Where they go.
        shapes: Widths and heights of the pieces, in turns.
    """
    counts = {"archive-a.pictures": 150, "archive-b.pictures": 150, "archive-b.pictures-test": 60}
    return {key: _pieces(folder / key, count, shapes) for key, count in counts.items()}


def _pieces(folder: Path, count: int, shapes: Sequence[tuple[int, int]]) -> Path:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    source = random.Random(folder.name)  # noqa: S311 - example records
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    folder.mkdir()
    rows = []
    for number in range(count):
        photograph, answer = photographs[number % 2], _ANSWERS[number % 2]
        wide, high = shapes[number // 2 % len(shapes)]
        left = source.randrange(photograph.width - wide)
        top = source.randrange(photograph.height - high)
        name = f"{number:04}.jpg"
        photograph.crop((left, top, left + wide, top + high)).save(folder / name, quality=90)
        rows.append({"file_name": name, "prompt": source.choice(_PROMPTS), "completion": answer})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metadata.jsonl").write_text(lines, "utf-8")
    return folder


def byte_llama(
    *, width: int = 64, layers: int = 1, longest: int = 128, seed: int = 0, **further: Any
) -> tuple[Any, Any]:
    """A small Llama with random weights, and the tokenizer of bytes.

    Args:
        width: Of the hidden layers.
        layers: How many.
        longest: Tokens it reads.
        seed: Of the weights.
        further: Settings of its config.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=longest,
        **further,
    )
    return LlamaForCausalLM(config), tokenizer


def base_model(folder: Path, *, template: str | None = None, **shape: Any) -> None:
    """Write a model that starts from nothing, as ``byte_llama`` makes it.

    Args:
        folder: That of the story; the model goes where recipes look for the base.
        template: Of chats, for the tokenizer.
        shape: As for ``byte_llama``.
    """
    model, tokenizer = byte_llama(**shape)
    if template is not None:
        tokenizer.chat_template = template
    saved(folder / "models" / "base", model, tokenizer)


def saved(place: Path, model: Any, tokenizer: Any) -> None:
    """Write a model folder."""
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)


def taught(
    model: Any,
    tokenizer: Any,
    say: Callable[[random.Random], str],
    *,
    seed: int,
    steps: int,
    rows: int,
    rate: float,
) -> None:
    """Have a model learn to talk, in the clear, before the story begins.

    Args:
        model: Learns in place.
        tokenizer: Its own.
        say: Makes one text.
        seed: Of the texts.
        steps: How often it learns.
        rows: Texts a step.
        rate: Of learning.
    """
    import torch

    source = random.Random(seed)  # noqa: S311 - example records
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        texts = [say(source) for _ in range(rows)]
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        model(ids, attention_mask=mask, labels=ids.where(mask.bool(), -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
