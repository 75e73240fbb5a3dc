"""Records as the batches a classifier reads: text, columns of numbers, images; and their labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.missing import missing_values, rules_of
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.augmentation import image_changes, text_changes
from sealtrain.training.data.hugging import ROW
from sealtrain.training.data.images import decode, pixels
from sealtrain.training.data.stream import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.images import Preparation
    from sealtrain.recipe.phases.classify import ClassifyRecipe
    from sealtrain.training.context import TrainingContext

Encoded = dict[str, Any]


def text_encoder(
    recipe: Any, tokenizer: PreTrainedTokenizerBase
) -> Callable[[list[Encoded]], Encoded]:
    """Reads ``columns.text``, cut to ``trainer.max_length`` tokens.

    Raises:
        ModelInvalid: The tokenizer has no token that the augmentation needs.
    """
    import torch

    read_label = _label_reader(recipe)
    wanted = getattr(recipe, "augmentation", None)
    vary = None if wanted is None else text_changes(wanted, recipe.trainer.seed, tokenizer)

    def encode(records: list[Encoded]) -> Encoded:
        """Ids and mask int64 (batch, tokens), labels int64 (batch,)."""
        texts = [record[recipe.columns.text] for record in records]
        if any(not isinstance(text, str) for text in texts):
            raise RecordInvalid("a record has no text", check="columns", column=recipe.columns.text)
        rows = tokenizer(texts, truncation=True, max_length=recipe.trainer.max_length)["input_ids"]
        if vary is not None:
            rows = [
                vary(record[ROW], ids) if ROW in record else ids
                for record, ids in zip(records, rows, strict=True)
            ]
        batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        labels = [read_label(record[recipe.columns.label]) for record in records]
        return {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    return encode


def image_encoder(recipe: Any, preparation: Preparation) -> Callable[[list[Encoded]], Encoded]:
    """Reads ``columns.image``."""
    import torch

    read_label = _label_reader(recipe)
    wanted = recipe.augmentation
    changes = None if wanted is None else image_changes(wanted, recipe.trainer.seed)

    def encode(records: list[Encoded]) -> Encoded:
        """Pixels float32 (batch, 3, size, size), labels int64 (batch,)."""
        images = [
            decode(record[recipe.columns.image], preparation.max_pixels) for record in records
        ]
        if changes is not None:
            images = [
                changes(record[ROW])(image) if ROW in record else image
                for record, image in zip(records, images, strict=True)
            ]
        labels = [read_label(record[recipe.columns.label]) for record in records]
        return {
            "pixel_values": pixels(images, preparation),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    return encode


def tabular_encoder(recipe: Any) -> Callable[[list[Encoded]], Encoded]:
    """Reads ``columns.features``."""
    import torch

    read_label = _label_reader(recipe)
    names = recipe.columns.features
    filled = {names[place] for place in list_filled_features(recipe)}

    def encode(records: list[Encoded]) -> Encoded:
        """Features float32 (batch, features), labels int64 (batch,)."""
        rows = [[record[name] for name in names] for record in records]
        if any(not isinstance(value, (int, float)) for row in rows for value in row):
            raise RecordInvalid("a record has a feature that is not a number", check="features")
        features = torch.tensor(rows, dtype=torch.float32)
        missing = torch.isnan(features)
        missing[:, [place for place, name in enumerate(names) if name not in filled]] = False
        if not (torch.isfinite(features) | missing).all():
            raise RecordInvalid("a record has a feature that is not finite", check="features")
        labels = [read_label(record[recipe.columns.label]) for record in records]
        return {
            "features": features,
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    return encode


def list_filled_features(recipe: Any) -> list[int]:
    """Places of the features whose missing values the model fills."""
    missing = missing_values(recipe)
    found = []
    for place, name in enumerate(recipe.columns.features):
        value = missing.get(name)
        if isinstance(value, float) and math.isnan(value):
            found.append(place)
    return found


def list_marked_features(recipe: Any) -> list[int]:
    """Places of those of which a missing value is a category of its own."""
    rules = rules_of(recipe)
    names = enumerate(recipe.columns.features)
    return [place for place, name in names if rules.get(name) == "own-category"]


def feature_scale(
    work: TrainingContext[ClassifyRecipe], features: Sequence[str]
) -> tuple[Any, Any]:
    """Mean and deviation of every feature, float32 (features,).

    Measured on the training records, of a feature with gaps on those that have it. With
    differential privacy, which such a measurement would break, computed from uniform spreads over
    the ranges that the recipe makes public.

    Args:
        work: Has the training records.
        features: Names of the columns.

    Raises:
        RecordInvalid: A feature is no number, or no training record has it.
    """
    import numpy as np
    import torch

    ranges = getattr(work.recipe.privacy, "feature_ranges", None)
    if ranges is not None:
        low, high = torch.tensor([ranges[name] for name in features], dtype=torch.float32).T
        return (low + high) / 2, (high - low) / 12**0.5
    count, total, squares = (
        np.zeros(len(features)),
        np.zeros(len(features)),
        np.zeros(len(features)),
    )
    origin: Any = None
    for values in _features(work, features):
        present = ~np.isnan(values)
        if origin is None:
            # Sums of squares lose their digits when all values lie far from zero.
            there = present.sum(axis=0)
            origin = np.where(present, values, 0.0).sum(axis=0) / np.maximum(there, 1)
        moved = np.where(present, values - origin, 0.0)
        count += present.sum(axis=0)
        total += moved.sum(axis=0)
        squares += (moved**2).sum(axis=0)
    if not count.all():
        raise RecordInvalid(
            "no training record has a value of a feature",
            check="features",
            column=features[int(np.argmin(count))],
            hint="leave the feature out of the recipe, or write missing: {constant: …}",
        )
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    return (
        torch.tensor(mean + origin, dtype=torch.float32),
        torch.tensor(deviation, dtype=torch.float32),
    )


def stand_in_values(
    work: TrainingContext[ClassifyRecipe], features: Sequence[str], mean: Any
) -> Any:
    """What stands for missing values of the features that the model fills, float32.

    Args:
        work: Has the training records.
        features: Names of the columns.
        mean: From ``feature_scale``: it stands where the rule is not the median.
    """
    import numpy as np
    import torch

    rules = rules_of(work.recipe)
    places = list_filled_features(work.recipe)
    names = [features[place] for place in places]
    found = mean[places].clone()
    wanted = [place for place, name in zip(places, names, strict=True) if rules[name] == "median"]
    if wanted:
        held = np.concatenate([values[:, wanted] for values in _features(work, features)])
        for place, middle in zip(wanted, np.nanmedian(held, axis=0), strict=True):
            found[places.index(place)] = torch.tensor(middle, dtype=torch.float32)
    return found


def _features(work: TrainingContext[ClassifyRecipe], features: Sequence[str]) -> Iterator[Any]:
    """Features of the training records, float64 (records, features), a batch at a time."""
    import numpy as np

    for batch in read_all(work.train_sources, features):
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in features]
        try:
            yield np.stack(columns, axis=1).astype(np.float64)
        except (TypeError, ValueError):
            raise RecordInvalid("a feature is not a number", check="features") from None


def _label_reader(recipe: Any) -> Callable[[Any], int]:
    names: Mapping[Any, int] = {
        name: index for index, name in enumerate(recipe.labels or range(recipe.num_labels))
    }

    def read(value: Any) -> int:
        if value not in names:
            raise RecordInvalid(
                "a record has a label that the recipe does not list",
                check="labels",
                column=recipe.columns.label,
                expected=f"one of {len(names)} labels",
                hint="list every label in the recipe",
            )
        return names[value]

    return read
