"""``classify``: classifiers of text, images or columns of numbers, with Transformers and PEFT.

On the sealed test split: accuracy, macro F1, area under the ROC curve, calibration error, Brier
score and loss (``training.scores``). A share of it may set a temperature for the probabilities
first; that share is not measured, and ``calibration.json`` carries the temperature with the model.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.missing import list_learned
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import BuiltModel, PhaseResult
from sealtrain.training.data.images import preparation_file, preparation_of
from sealtrain.training.inputs.classifier import (
    feature_scale,
    image_encoder,
    list_filled_features,
    list_marked_features,
    stand_in_values,
    tabular_encoder,
    text_encoder,
)
from sealtrain.training.inputs.learnable import has_texts
from sealtrain.training.measuring import classifier_answers, train_and_measure
from sealtrain.training.models.adapters import adapt
from sealtrain.training.models.base import build_model, build_tokenizer, check_vocabulary
from sealtrain.training.privacy.steps import make_private, private_arguments, training_rows
from sealtrain.training.schedule_slice import in_stretch
from sealtrain.training.scores import fit_temperature, measure, softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.classify import ClassifyRecipe
    from sealtrain.training.context import TrainingContext

_AUTO_CLASSES = {
    "text": "AutoModelForSequenceClassification",
    "tabular": "AutoModelForSequenceClassification",
    "image": "AutoModelForImageClassification",
}

Encoded = dict[str, Any]


def train(work: TrainingContext[ClassifyRecipe]) -> PhaseResult:
    """Train and evaluate."""
    from transformers import Trainer, TrainingArguments

    recipe = work.recipe
    model, tokenizer = work.built or build(work)
    encode = _encoder(work, tokenizer)
    names = {name: name for name in recipe.columns.names}
    rows = training_rows(work, names, numbered=recipe.augmentation is not None)
    if recipe.columns.kind == "text":
        rows = rows.filter(partial(has_texts, names=(recipe.columns.text,)))
    callback = RunCallback(work.context)
    trainer = work.machinery.trainer(in_stretch(make_private(Trainer, work), work.stretch))(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch)
            | {"include_num_input_tokens_seen": "no", "remove_unused_columns": False}
            | private_arguments(recipe)
            | work.machinery.arguments()
        ),
        train_dataset=rows,
        data_collator=encode,
        callbacks=[callback],
    )
    model, metrics = train_and_measure(
        work,
        trainer,
        lambda model: _evaluate(work, model, encode),
        goes_on=bool(list_learned(recipe)),
    )
    metrics = metrics | _read_learned(recipe, model)
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def _read_learned(recipe: Any, model: Any) -> dict[str, float]:
    """What the model learned to stand for missing values, by the metric that tells it."""
    told = list_learned(recipe)
    if not told:
        return {}
    names = [recipe.columns.features[place] for place in model.config.filled]
    return {told[name]: float(model.stand_in[at]) for at, name in enumerate(names) if name in told}


def build(work: TrainingContext[ClassifyRecipe]) -> BuiltModel:
    """The model before its first step, the recipe's adapter on it; and its tokenizer.

    Raises:
        ModelInvalid: As ``training.models.base.build_model``.
    """
    recipe = work.recipe
    kind = recipe.columns.kind
    tokenizer = build_tokenizer(recipe, work.base_dir, work.model) if kind == "text" else None
    model: Any = build_model(
        recipe, work.base_dir, _AUTO_CLASSES[kind], work.model, **_config(work, tokenizer)
    )
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    if recipe.peft is not None:
        model = _add_adapter(recipe, model)
    # The model of the run before keeps its scale.
    if recipe.columns.kind == "tabular" and work.model is None:
        mean, deviation = feature_scale(work, recipe.columns.features)
        model.standardise(mean, deviation)
        if model.config.filled:
            model.fill(stand_in_values(work, recipe.columns.features, mean))
    return BuiltModel(model, tokenizer)


def answers(
    work: TrainingContext[ClassifyRecipe], model: Any, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[int], list[Any]]:
    """Label of every test record, and logits float32 (batch, labels) of every batch.

    Args:
        work: Has the records.
        model: In evaluation mode.
        tokenizer: The tokenizer from ``build``.
    """
    return classifier_answers(work, model, _encoder(work, tokenizer))


def _config(
    work: TrainingContext[ClassifyRecipe], tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, Any]:
    recipe = work.recipe
    settings: dict[str, Any] = {
        "num_labels": recipe.num_labels,
        # Models set it at their first loss; a run resumed after its last step computes no loss.
        "problem_type": "single_label_classification",
    }
    if recipe.labels is not None:
        settings["id2label"] = dict(enumerate(recipe.labels))
        settings["label2id"] = {name: index for index, name in enumerate(recipe.labels)}
    if tokenizer is not None:
        settings["pad_token_id"] = tokenizer.pad_token_id
    elif recipe.columns.kind == "tabular":
        import sealtrain.training.models.tabular  # noqa: F401  # registers the architecture

        settings["num_features"] = len(recipe.columns.features)
        if filled := list_filled_features(recipe):
            settings["filled"] = filled
        if marked := list_marked_features(recipe):
            settings["marked"] = marked
    elif recipe.model.kind == "folder":
        # A pretrained head has the labels it was trained for; a new one takes its place.
        settings["ignore_mismatched_sizes"] = True
    return settings


def _add_adapter(recipe: Any, model: Any) -> Any:
    wanted = recipe.peft
    task: str | None = "SEQ_CLS"
    if recipe.columns.kind == "image":
        _freeze_statistics(model)
        task = None  # PEFT's classifiers read input_ids
        if wanted.modules_to_save is None:
            wanted = wanted.model_copy(update={"modules_to_save": ("classifier",)})
    return adapt(
        model, wanted, task, activation_checkpointing=recipe.trainer.activation_checkpointing
    )


def _freeze_statistics(model: Any) -> None:
    """Keep batch normalisation as it was trained: an adapter does not hold its averages."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
            module.register_forward_pre_hook(_evaluating)  # trainers switch every module


def _evaluating(module: Any, _inputs: Any) -> None:
    module.eval()


def _encoder(
    work: TrainingContext[ClassifyRecipe], tokenizer: PreTrainedTokenizerBase | None
) -> Callable[[list[Encoded]], Encoded]:
    recipe = work.recipe
    if tokenizer is not None:
        return text_encoder(recipe, tokenizer)
    if recipe.columns.kind == "tabular":
        return tabular_encoder(recipe)
    preparation = preparation_of(recipe, work.base_dir)
    work.beside |= preparation_file(preparation)
    return image_encoder(recipe, preparation)


def _evaluate(
    work: TrainingContext[ClassifyRecipe], model: Any, encode: Callable[[list[Encoded]], Encoded]
) -> dict[str, float]:
    import numpy as np

    truth, logits = classifier_answers(work, model, encode)
    if not truth:
        return {}
    return _measure(work, np.asarray(truth), np.concatenate(logits))


def _measure(work: TrainingContext[ClassifyRecipe], truth: Any, logits: Any) -> dict[str, float]:
    """Metrics of labels int (records,) and logits float32 (records, labels)."""
    import numpy as np

    share = work.recipe.calibration_share
    number = np.arange(len(truth))
    fitting = np.floor((number + 1) * share) > np.floor(number * share)
    if not fitting.any() or fitting.all():
        return measure(truth, softmax(logits))
    temperature = fit_temperature(truth[fitting], logits[fitting])
    work.beside["calibration.json"] = json.dumps({"temperature": temperature}).encode()
    metrics = measure(truth[~fitting], softmax(logits[~fitting], temperature))
    return metrics | {"temperature": temperature}
