"""``vlm``: a language model that reads images, with Transformers and PEFT.

A vision tower sees, a projector translates, a language model answers (LLaVA, Llama 3.2 Vision); in
the projector's place may be a connector (Idefics3) or a merger of patches (Qwen-VL). The recipe
says which of these train. On the sealed test split:
``eval_loss`` and, for prompts with completions, ``accuracy``: the share of records whose every
completion token, the end token included, is the model's first choice given the true tokens before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.hugging import as_iterable_dataset
from sealtrain.training.data.images import preparation_of
from sealtrain.training.measuring import completion_metrics, test_records, train_and_measure
from sealtrain.training.models.base import (
    adopt_tokens,
    build_model,
    build_tokenizer,
    check_vocabulary,
)
from sealtrain.training.models.imageforms import image_layout
from sealtrain.training.models.imagetext import ImageTextEncoder, name_image_token, train_parts

if TYPE_CHECKING:
    from sealtrain.recipe.phases.vlm import VlmRecipe
    from sealtrain.training.context import TrainingContext


def train(work: TrainingContext[VlmRecipe]) -> PhaseResult:
    """Train and evaluate."""
    from transformers import Trainer, TrainingArguments

    class WithoutCache(Trainer):
        """Switches off the cache of keys and values, which training would fill for nothing."""

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **rest: Any) -> Any:
            return super().compute_loss(model, {**inputs, "use_cache": False}, *args, **rest)

    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir)
    model: Any = build_model(recipe, work.base_dir, "AutoModelForImageTextToText")
    fresh = recipe.model.kind == "config"
    name_image_token(model, tokenizer, fresh=fresh)
    check_vocabulary(model, tokenizer)
    if fresh:
        adopt_tokens(model, tokenizer)
    preparation = preparation_of(recipe, work.base_dir)
    layout = image_layout(model, tokenizer, preparation)
    work.beside |= layout.files()
    encode = ImageTextEncoder(recipe, tokenizer, layout, preparation.max_pixels)
    model = train_parts(recipe, model)
    stream = work.training_stream({name: name for name in recipe.columns.names})
    stream.numbered = recipe.augmentation is not None
    callback = RunCallback(work.context)
    trainer = work.machinery.trainer(WithoutCache)(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch)
            | {"remove_unused_columns": False}
            | work.machinery.arguments()
        ),
        train_dataset=as_iterable_dataset(stream),
        processing_class=tokenizer,
        data_collator=encode,
        callbacks=[callback],
    )
    model, metrics = train_and_measure(work, trainer, lambda model: _evaluate(work, model, encode))
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def _evaluate(
    work: TrainingContext[VlmRecipe], model: Any, encode: ImageTextEncoder
) -> dict[str, float]:
    columns = work.recipe.columns

    def batches() -> Iterator[tuple[dict[str, Any], Any, list[str]]]:
        for records in test_records(work):
            batch = {name: value.to(model.device) for name, value in encode(records).items()}
            answers = (
                [str(record[columns.completion]) for record in records]
                if columns.kind == "prompt-completion"
                else []
            )
            yield batch, batch.pop("labels"), answers

    return completion_metrics(model, batches())
