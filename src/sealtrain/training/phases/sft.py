"""``sft``: supervised fine-tuning of a causal language model with TRL's ``SFTTrainer``.

Full weights or an adapter; plain text, prompt and completion, or conversations, which the
tokenizer's chat template turns into text. Accuracy on the sealed test split is measured on
prompt-completion data: the share of records whose every completion token, the end token included,
is the model's first choice given the true tokens before it. Greedy decoding reproduces exactly this
share of completions; a forward pass finds it. On text and conversations the phase measures
``eval_loss``, in nats a token, over the tokens that training would learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.tokenizerfacts import needs_end
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.backends.unsloth import as_written, load_model
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import BuiltModel, PhaseResult
from sealtrain.training.data.conversations import (
    check_conversation,
    check_template,
    check_tokenizer,
    check_tools,
    find_marked_template,
)
from sealtrain.training.data.hugging import as_iterable_dataset, once
from sealtrain.training.devices import compute_device
from sealtrain.training.inputs.learnablerows import with_judged_rows, with_learnable_rows
from sealtrain.training.measuring import (
    completion_metrics,
    mean_loss,
    test_records,
    train_and_measure,
)
from sealtrain.training.models.adapters import adapt, adapter_config, virtual_tokens
from sealtrain.training.models.base import build_causal_model, build_tokenizer
from sealtrain.training.privacy.steps import make_private, private_arguments, training_rows
from sealtrain.training.schedule_slice import in_stretch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.sft import SftRecipe
    from sealtrain.training.context import TrainingContext

_TASK = "CAUSAL_LM"
_TRL_NAMES = {
    "text": "text",
    "prompt": "prompt",
    "completion": "completion",
    "messages": "messages",
    "tools": "tools",
}
_SFT_ONLY = (
    "max_length",
    "truncation_mode",
    "packing",
    "packing_strategy",
    "padding_free",
    "pad_to_multiple_of",
    "completion_only_loss",
    "assistant_only_loss",
    "loss_type",
    "eos_token",
    "pad_token",
)


def train(work: TrainingContext[SftRecipe]) -> PhaseResult:
    """Train and evaluate."""
    if work.recipe.backend.name == "axolotl":
        from sealtrain.training.backends import axolotl

        return axolotl.train(work)
    callback = RunCallback(work.context)
    trainer, tokenizer, evaluate = _ready(work, callback)
    model, metrics = train_and_measure(work, trainer, evaluate)
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def measure(work: TrainingContext[SftRecipe]) -> dict[str, float]:
    """Metrics of the built model, in evaluation mode, on the test split."""
    trainer, _, evaluate = _ready(work)
    return evaluate(trainer.model)


def prepare_rows(work: TrainingContext[SftRecipe]) -> Iterator[dict[str, Any]]:
    """Every training row once, as the trainer collates it: ``input_ids``, ``labels`` with -100.

    Args:
        work: Its ``built`` may be any causal model with the recipe's tokenizer: none is trained.
    """
    trainer, *_ = _ready(work)
    once(work.context.stream)
    return iter(trainer.train_dataset)


def build(work: TrainingContext[SftRecipe]) -> BuiltModel:
    """The model before its first step, the recipe's adapter on it; and its tokenizer.

    Raises:
        ModelInvalid: As ``training.models.base.build_model``.
    """
    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir, work.model)
    model = build_causal_model(recipe, work.base_dir, tokenizer, work.model)
    if recipe.peft is None:
        return BuiltModel(model, tokenizer)
    checkpointing = recipe.trainer.activation_checkpointing
    adapted = adapt(model, recipe.peft, _TASK, activation_checkpointing=checkpointing)
    return BuiltModel(adapted, tokenizer)


def _ready(
    work: TrainingContext[SftRecipe], *callbacks: RunCallback
) -> tuple[Any, PreTrainedTokenizerBase, Callable[[Any], dict[str, float]]]:
    """Trainer, tokenizer, and the measurement of a model."""
    from transformers import Trainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class PlainLossTrainer(SFTTrainer):
        """Uses the model's own head: on a CPU TRL's fused head is 2.4 times slower, equal loss."""

        def compute_loss(
            self,
            model: Any,
            inputs: dict[str, Any],
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            inputs["use_cache"] = False  # packed documents stay apart only without a cache
            return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    recipe = work.recipe
    built = work.built
    if built is None or built.tokenizer is None:
        tokenizer = build_tokenizer(recipe, work.base_dir, work.model)
        model, peft_config = _model(work, tokenizer)
    else:
        model, tokenizer, peft_config = built.model, built.tokenizer, None
    if recipe.columns.kind == "messages":
        check_template(tokenizer)
        if recipe.trainer.assistant_only_loss:
            find_marked_template(tokenizer)
    elif needs_end(recipe):
        check_tokenizer(tokenizer, conversations=False)
    names = _rename_columns(recipe.columns)
    tested = bool(work.test_sources) and recipe.columns.kind != "prompt-completion"
    faster = recipe.backend.name == "unsloth"  # has a loss of its own
    # TRL's fused head reads the weight of the head, which a layer that stands in does not show.
    fused = faster or (compute_device() == "cuda" and work.standins is None)
    plain_loss = not fused and recipe.trainer.loss_type == "nll"
    arguments = (
        trainer_arguments(recipe.trainer, work.scratch)
        | {name: getattr(recipe.trainer, name) for name in _SFT_ONLY}
        | {"eval_packing": False}
        | private_arguments(recipe)
        | work.machinery.arguments()
    )
    config = SFTConfig(**arguments)
    chosen = PlainLossTrainer if plain_loss else SFTTrainer
    chosen = with_judged_rows(chosen, recipe) if faster else with_learnable_rows(chosen)
    kind = make_private(chosen, work)
    kind = in_stretch(kind, work.stretch)
    trainer = work.machinery.trainer(kind)(
        model=model,
        args=as_written(config, arguments, recipe.trainer) if faster else config,
        train_dataset=_rows(work, names),
        eval_dataset=as_iterable_dataset(work.test_stream(names)) if tested else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=list(callbacks),
    )

    def evaluate(model: Any) -> dict[str, float]:
        return (
            mean_loss(trainer, trainer.eval_dataset, model)
            if tested
            else _evaluate(work, model, tokenizer)
        )

    return trainer, tokenizer, evaluate


def _rows(work: TrainingContext[SftRecipe], names: dict[str, str]) -> Any:
    if work.feed is not None:
        return as_iterable_dataset(work.feed)
    rows = training_rows(work, names)
    if work.recipe.columns.kind != "messages":
        return rows
    rows = rows.map(_check_messages)
    return rows.filter(_has_answer) if work.recipe.trainer.assistant_only_loss else rows


def _check_messages(record: dict[str, Any]) -> dict[str, Any]:
    check_conversation("messages", record["messages"])
    if "tools" in record:
        check_tools(record["tools"])
    return record


def _has_answer(record: dict[str, Any]) -> bool:
    """Whether the assistant says something, which TRL demands of every record."""
    return any(turn["role"] == "assistant" for turn in record["messages"])


def _model(work: TrainingContext[SftRecipe], tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """Base model, and PEFT's configuration; ``None`` if no adapter is left to add."""
    recipe = work.recipe
    if recipe.backend.name == "unsloth":
        return load_model(recipe, work.base_dir, tokenizer), None
    model = build_causal_model(recipe, work.base_dir, tokenizer, work.model)
    return model, None if recipe.peft is None else adapter_config(recipe.peft, _TASK)


def _rename_columns(columns: Any) -> dict[str, str]:
    """Column of the data → the name TRL looks for."""
    named = {getattr(columns, name, None): name for name in _TRL_NAMES}
    return {column: name for column, name in named.items() if column is not None}


def _evaluate(
    work: TrainingContext[SftRecipe], model: Any, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    columns = work.recipe.columns
    if not work.test_sources or columns.kind != "prompt-completion":
        return {}

    def batches() -> Iterator[tuple[dict[str, Any], Any, list[str]]]:
        for records in test_records(work):
            answers = [str(record[columns.completion]) for record in records]
            ids, mask, labels = _encode(records, columns, tokenizer, model.device)
            yield {"input_ids": ids, "attention_mask": mask}, labels, answers

    return completion_metrics(model, batches(), skip=virtual_tokens(model))


def _encode(
    records: list[dict[str, Any]], columns: Any, tokenizer: PreTrainedTokenizerBase, device: Any
) -> tuple[Any, Any, Any]:
    """Right-padded ids and mask, and labels that are -100 outside the completion; all int64."""
    import torch

    rows, starts = [], []
    for record in records:
        prompt, completion = record[columns.prompt], record[columns.completion]
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise RecordInvalid("a test record has no text in its prompt or completion")
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        whole = tokenizer(prompt + completion, add_special_tokens=False)["input_ids"]
        rows.append([*whole, tokenizer.eos_token_id])
        starts.append(len(before))
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        values = torch.tensor(row, dtype=torch.int64)
        ids[index, : len(row)] = values
        mask[index, : len(row)] = 1
        labels[index, start : len(row)] = values[start:]
    return ids.to(device), mask.to(device), labels.to(device)
