"""``evaluate``: a clean room. A measured model reads sealed records; only aggregates leave.

With ``privacy: {dp: counts}`` every metric is computed from one histogram with noise; without it
metrics leave only over enough records of every label (``training.privacy.counts``). The guest seals
the metrics to the recipients as ``metrics.json`` and puts them into the manifest; the model does
not leave. Several ranks share the records, and the first one counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.context import PhaseResult
from sealtrain.training.devices import compute_device
from sealtrain.training.distributed.ranks import place
from sealtrain.training.inputs.classifier import tabular_encoder, text_encoder
from sealtrain.training.measuring import classifier_answers
from sealtrain.training.models.base import build_model, build_tokenizer, check_vocabulary
from sealtrain.training.privacy.counts import add_noise, histogram, metrics_of, over_floor
from sealtrain.training.scores import softmax

if TYPE_CHECKING:
    from sealtrain.recipe.phases.evaluate import EvaluateRecipe
    from sealtrain.training.context import TrainingContext


@dataclass(slots=True, kw_only=True)
class Evaluated:
    """The counts of an evaluation, in place of a callback's: the phase trains nothing."""

    rows: int
    steps: int = 0
    tokens: int | None = None
    last: dict[str, float] = field(default_factory=dict)
    tokens_sha256: str | None = None


def train(work: TrainingContext[EvaluateRecipe]) -> PhaseResult:
    """Evaluate.

    Raises:
        ModelInvalid: The model has other labels than the recipe, or in another order.
        PrivacyBroken: The test records are too few for a metric to leave.
        UsageError: The recipe asks for noise, and the run has no secret to draw it from.
    """
    import numpy as np

    recipe = work.recipe
    truth, logits = _answers(work)
    if not place().leads:
        return PhaseResult(counts=Evaluated(rows=len(truth)))
    counts = histogram(np.asarray(truth, dtype=np.int64), softmax(np.concatenate(logits)))
    if recipe.privacy.dp == "counts":
        if work.noise is None:
            raise UsageError("noise needs the secret of the run", hint="give train() its secret")
        counts = add_noise(counts, recipe.privacy.target_epsilon, work.noise.derive("evaluate"))
    else:
        counts = over_floor(counts, recipe.min_records)
    metrics = metrics_of(counts)
    released = work.context.gate.filter(metrics)
    work.beside["metrics.json"] = json.dumps(released, sort_keys=True).encode()
    return PhaseResult(metrics=metrics, counts=Evaluated(rows=len(truth)))


def _answers(work: TrainingContext[EvaluateRecipe]) -> tuple[list[int], list[Any]]:
    """Label of every record, and logits float32 (batch, labels) of every batch."""
    recipe = work.recipe
    tabular = recipe.columns.kind == "tabular"
    if tabular:
        import sealtrain.training.models.tabular  # noqa: F401  # registers the architecture
    kind = "AutoModelForSequenceClassification"
    model: Any = build_model(recipe, work.base_dir, kind, work.model)
    _refuse_other_labels(recipe, model)
    if tabular:
        encode = tabular_encoder(recipe)
    else:
        tokenizer = build_tokenizer(recipe, work.base_dir, work.model)
        check_vocabulary(model, tokenizer)
        encode = text_encoder(recipe, tokenizer)
    model.to(compute_device()).eval()
    return classifier_answers(work, model, encode, together=True)


def _refuse_other_labels(recipe: Any, model: Any) -> None:
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    unnamed = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    wanted = recipe.labels is None or unnamed or list(recipe.labels) == names
    if len(names) != recipe.num_labels or not wanted:
        raise ModelInvalid(
            "the model has other labels than the recipe, or in another order",
            check="labels",
            got=f"{len(names)} labels",
            expected=f"{recipe.num_labels}",
            hint="list the labels in the order of the model's training",
        )
