"""``vlm``: a language model that reads images, with Transformers and PEFT.

A vision tower sees, a projector translates, a language model answers (LLaVA), or a connector in the
projector's place (Idefics3). The recipe says which of these train. On the sealed test split:
``eval_loss`` and, for prompts with completions, ``accuracy``: the share of records whose every
completion token, the end token included, is the model's first choice given the true tokens before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.training import quiet
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.callback import SealedRun
from sealtrain.training.images import preparation_file, preparation_of
from sealtrain.training.imagetext import (
    ImageTextEncoder,
    image_layout,
    name_image_token,
    train_parts,
)
from sealtrain.training.loaders.hugging import as_iterable_dataset
from sealtrain.training.loaders.stream import read_all
from sealtrain.training.models import (
    adopt_tokens,
    build_model,
    build_tokenizer,
    check_vocabulary,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.training.workplace import Workplace

quiet.silence()

__all__ = ["train"]


def train(work: Workplace) -> tuple[Any, PreTrainedTokenizerBase, dict[str, float], SealedRun]:
    """Train and evaluate.

    Args:
        work: Recipe, streams, store and callbacks of the run.

    Returns:
        Trained model (a PEFT model with LoRA), tokenizer, final metrics, the callback that ran.
    """
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class WithoutCache(Trainer):
        """A cache of keys and values is for answering; training would fill it for nothing."""

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
    work.beside |= preparation_file(preparation)
    encode = ImageTextEncoder(
        recipe, tokenizer, image_layout(model, tokenizer, preparation), preparation
    )
    model = train_parts(recipe, model)
    stream = work.training_stream({name: name for name in recipe.columns.names})
    stream.numbered = recipe.augmentation is not None
    callback = SealedRun(work.context)
    trainer = WithoutCache(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch) | {"remove_unused_columns": False}
        ),
        train_dataset=as_iterable_dataset(stream),
        processing_class=tokenizer,
        data_collator=encode,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    work.evaluation = lambda model: _evaluate(work, model, encode)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model, tokenizer, _evaluate(work, model, encode), callback


def _evaluate(work: Workplace, model: Any, encode: ImageTextEncoder) -> dict[str, float]:
    import torch

    columns = work.recipe.columns
    right = total = 0
    loss_sum = 0.0
    answers: Counter[str] = Counter()
    training = model.training
    model.eval()
    with torch.no_grad():
        for records in _chunks(work):
            batch = {name: value.to(model.device) for name, value in encode(records).items()}
            wanted = batch.pop("labels")[:, 1:]
            logits = model(**batch, use_cache=False).logits[:, :-1]
            counted = wanted != -100
            right += int(((logits.argmax(-1) == wanted) | ~counted).all(dim=1).sum())
            total += len(records)
            losses = torch.nn.functional.cross_entropy(
                logits.float().transpose(1, 2), wanted, ignore_index=-100, reduction="none"
            )
            loss_sum += float((losses.sum(1) / counted.sum(1).clamp(min=1)).sum())
            if columns.kind == "prompt-completion":
                answers.update(str(record[columns.completion]).strip() for record in records)
    model.train(training)
    if not total:
        return {}
    metrics = {"eval_loss": loss_sum / total}
    if answers:
        metrics["accuracy"] = right / total
        metrics["majority"] = answers.most_common(1)[0][1] / total
    return metrics


def _chunks(work: Workplace) -> Iterator[list[dict[str, Any]]]:
    size = work.recipe.trainer.per_device_eval_batch_size
    for batch in read_all(work.test_sources, work.recipe.columns.names):
        for at in range(0, batch.num_rows, size):
            yield batch.slice(at, size).to_pylist()
