"""``classify``: risk classifiers on text or on columns of numbers, with Transformers and PEFT.

On the sealed test split: accuracy, macro F1 and, for two labels, the area under the ROC curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.errors import RecordInvalid
from sealtrain.training import quiet
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.callback import SealedRun
from sealtrain.training.loaders.hugging import as_iterable_dataset
from sealtrain.training.loaders.stream import read_all
from sealtrain.training.models import (
    build_model,
    build_tokenizer,
    check_vocabulary,
    lora_config,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PreTrainedTokenizerBase

    from sealtrain.training.workplace import Workplace

quiet.silence()

__all__ = ["train"]

Encoded = dict[str, Any]


def train(
    work: Workplace,
) -> tuple[Any, PreTrainedTokenizerBase | None, dict[str, float], SealedRun]:
    """Train and evaluate.

    Args:
        work: Recipe, streams, store and callbacks of the run.

    Returns:
        Trained model (a PEFT model with LoRA), tokenizer if there is one, final metrics, the
        callback that ran.
    """
    from transformers import PrinterCallback, Trainer, TrainingArguments

    recipe = work.recipe
    tabular = recipe.columns.kind == "tabular"
    tokenizer = None if tabular else build_tokenizer(recipe, work.base_dir)
    model: Any = build_model(
        recipe, work.base_dir, "AutoModelForSequenceClassification", **_config(work, tokenizer)
    )
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    if recipe.peft is not None:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(recipe.peft, "SEQ_CLS"))
    if tabular:
        model.standardise(*_scale(work))
    encode = _tabular_encoder(recipe) if tabular else _text_encoder(recipe, tokenizer)
    positioned = work.training_stream({name: name for name in recipe.columns.names})
    rows = as_iterable_dataset(positioned)
    callback = SealedRun(work.context)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch)
            | {"include_num_input_tokens_seen": "no", "remove_unused_columns": False}
        ),
        train_dataset=rows,
        data_collator=encode,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    work.evaluation = lambda model: _evaluate(work, model, encode)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model, tokenizer, _evaluate(work, model, encode), callback


def _config(work: Workplace, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    recipe = work.recipe
    settings: dict[str, Any] = {"num_labels": recipe.num_labels}
    if recipe.labels is not None:
        settings["id2label"] = dict(enumerate(recipe.labels))
        settings["label2id"] = {name: index for index, name in enumerate(recipe.labels)}
    if tokenizer is None:
        import sealtrain.training.tabular  # noqa: F401  # registers the architecture

        settings["num_features"] = len(recipe.columns.features)
    else:
        settings["pad_token_id"] = tokenizer.pad_token_id
    return settings


def _label_reader(recipe: Any) -> Callable[[Any], int]:
    names: Mapping[Any, int] = {
        name: index for index, name in enumerate(recipe.labels or range(recipe.num_labels))
    }

    def read(value: Any) -> int:
        if value not in names:
            raise RecordInvalid(
                "a record carries a label the recipe does not know",
                check="labels",
                expected=f"one of {len(names)} labels",
                hint="list every label in the recipe",
            )
        return names[value]

    return read


def _text_encoder(
    recipe: Any, tokenizer: PreTrainedTokenizerBase | None
) -> Callable[[list[Encoded]], Encoded]:
    import torch

    read_label = _label_reader(recipe)

    def encode(records: list[Encoded]) -> Encoded:
        """Ids and mask int64 (batch, tokens), labels int64 (batch,)."""
        if tokenizer is None:
            raise RecordInvalid("text needs a tokenizer")
        batch = tokenizer(
            [record[recipe.columns.text] for record in records],
            truncation=True,
            max_length=recipe.trainer.max_length,
            padding=True,
            return_tensors="pt",
        )
        labels = [read_label(record[recipe.columns.label]) for record in records]
        return {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    return encode


def _tabular_encoder(recipe: Any) -> Callable[[list[Encoded]], Encoded]:
    import torch

    read_label = _label_reader(recipe)

    def encode(records: list[Encoded]) -> Encoded:
        """Features float32 (batch, features), labels int64 (batch,)."""
        rows = [[record[name] for name in recipe.columns.features] for record in records]
        if any(not isinstance(value, (int, float)) for row in rows for value in row):
            raise RecordInvalid("a record has a feature that is no number", check="features")
        features = torch.tensor(rows, dtype=torch.float32)
        if not torch.isfinite(features).all():
            raise RecordInvalid("a record has a feature that is not finite", check="features")
        labels = [read_label(record[recipe.columns.label]) for record in records]
        return {
            "features": features,
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    return encode


def _scale(work: Workplace) -> tuple[Any, Any]:
    """Mean and deviation of every feature over the training records, float32 (features,)."""
    import numpy as np
    import torch

    features = work.recipe.columns.features
    count, total, squares = 0, np.zeros(len(features)), np.zeros(len(features))
    origin: Any = None
    for batch in read_all(work.train_sources, features):
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in features]
        try:
            values = np.stack(columns, axis=1).astype(np.float64)
        except (TypeError, ValueError):
            raise RecordInvalid("a feature is no number", check="features") from None
        if origin is None:
            # Sums of squares lose their digits when all values lie far from zero.
            origin = values.mean(axis=0)
        values -= origin
        count += len(values)
        total += values.sum(axis=0)
        squares += (values**2).sum(axis=0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    return (
        torch.tensor(mean + origin, dtype=torch.float32),
        torch.tensor(deviation, dtype=torch.float32),
    )


def _evaluate(
    work: Workplace, model: Any, encode: Callable[[list[Encoded]], Encoded]
) -> dict[str, float]:
    import torch

    truth: list[int] = []
    scores: list[Any] = []
    training = model.training
    model.eval()
    with torch.no_grad():
        for records in _chunks(work):
            batch = encode(records)
            truth += batch.pop("labels").tolist()
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            scores.append(model(**inputs).logits.float().softmax(-1).cpu())
    model.train(training)
    if not truth:
        return {}
    return _measure(truth, torch.cat(scores))


def _measure(truth: list[int], scores: Any) -> dict[str, float]:
    """Metrics of class probabilities, float (records, labels)."""
    from sklearn.metrics import f1_score, roc_auc_score

    guessed = scores.argmax(-1).tolist()
    counts = [truth.count(label) for label in set(truth)]
    metrics = {
        "accuracy": sum(a == b for a, b in zip(truth, guessed, strict=True)) / len(truth),
        "f1": float(f1_score(truth, guessed, average="macro")),
        "majority": max(counts) / len(truth),
    }
    if scores.shape[1] == 2 and len(counts) == 2:
        metrics["auroc"] = float(roc_auc_score(truth, scores[:, 1].tolist()))
    return metrics


def _chunks(work: Workplace) -> Iterator[list[Encoded]]:
    if not work.test_sources:
        return
    size = work.recipe.trainer.per_device_eval_batch_size
    for batch in read_all(work.test_sources, work.recipe.columns.names):
        for at in range(0, batch.num_rows, size):
            yield batch.slice(at, size).to_pylist()
