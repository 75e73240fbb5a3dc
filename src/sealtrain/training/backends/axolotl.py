"""``sft`` with Axolotl: its model loader, prompt strategies, collator and trainer on sealed data.

1. The recipe becomes Axolotl's configuration, which Axolotl's own schema has to accept.
2. Rows of the sealed stream go one by one through Axolotl's prompt strategy; rows with nothing to
   learn are left out, as in Axolotl's own preparation of data.
3. ``axolotl.train.setup_model_and_trainer`` takes that stream and builds model and trainer.
   ``axolotl.train.train`` is not called: it writes configurations, tokenizer, weights and a model
   card to a folder.
4. The trainer's final settings are compared with the recipe; then it runs with ``RunCallback``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.trainersettings import SETTINGS
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.backends.axolotl_config import axolotl_config
from sealtrain.training.backends.ready import make_ready, muted
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.conversations import check_template
from sealtrain.training.data.hugging import as_iterable_dataset
from sealtrain.training.inputs.learnable import learns
from sealtrain.training.measuring import (
    completion_metrics,
    mean_loss,
    test_records,
    train_and_measure,
)
from sealtrain.training.models.base import build_tokenizer, check_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.sft import PromptCompletionColumns, SftRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.inputs.learnable import Judge, Part, Record

Encode = Callable[[dict[str, Any]], dict[str, Any]]

_TENSORS: Final = ("input_ids", "attention_mask", "labels")
# Set on the finished arguments: these change counts, logs and output, not the training.
_OURS: Final = (
    "include_num_input_tokens_seen",
    "disable_tqdm",
    "log_level",
    "logging_first_step",
    "save_steps",
    "dataloader_pin_memory",
)
_UNCUT: Final = 1 << 26
"""Tokens of a row that nothing cuts."""


def train(work: TrainingContext[SftRecipe]) -> PhaseResult:
    """Train and evaluate. As ``training.phases.sft.train``.

    Raises:
        RecipeInvalid: Axolotl refuses the configuration, or changes it.
        ModelInvalid: Axolotl cannot load the model, or loads another tokenizer.
    """
    from transformers import set_seed

    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir)
    if recipe.columns.kind == "messages":
        check_template(tokenizer)
    names = {getattr(recipe.columns, column): column for column in _columns(recipe.columns.kind)}
    set_seed(recipe.trainer.seed)  # a fresh adapter is random, and Axolotl sets no seed
    with muted():
        config = _validate(recipe, work.base_dir, work.scratch)
        encode = _encoder(config, tokenizer)
        rows = as_iterable_dataset(work.training_stream(names))
        trainer = _trainer(config, rows.map(encode, remove_columns=list(names.values())))
    _check_trainer(trainer, work, tokenizer)
    callback = RunCallback(work.context)
    callback.on_init_end(trainer.args, trainer.state, trainer.control)
    trainer.add_callback(callback)

    def evaluate(model: Any) -> dict[str, float]:
        if not work.test_sources:
            return {}
        if recipe.columns.kind == "prompt-completion":
            batches = _batches(work, recipe.columns, trainer, encode, names)
            return completion_metrics(model, batches)
        tested = as_iterable_dataset(work.test_stream(names))
        encoded = tested.map(encode, remove_columns=list(names.values()))
        return mean_loss(trainer, encoded.filter(_teaches), model)

    model, metrics = train_and_measure(work, trainer, evaluate)
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def row_judge(recipe: Any, base_dir: Path, tokenizer: PreTrainedTokenizerBase) -> Judge:
    """The judge of a recipe's training records, by the strategy and filter that ``train`` uses.

    Args:
        recipe: Of backend axolotl.
        base_dir: Folder that its paths start from.
        tokenizer: The recipe's.

    Raises:
        RecipeInvalid: Axolotl refuses the configuration.
        RecordInvalid: The judge, where Axolotl cannot read a record.
    """
    make_ready(recipe.backend.name)
    if recipe.columns.kind == "messages":
        check_template(tokenizer)
    with tempfile.TemporaryDirectory(prefix="sealtrain-") as scratch, muted():
        config = _validate(recipe, base_dir, Path(scratch))
        encode = _encoder(config, tokenizer)
        # The strategy cuts by itself, so what a record has in all is asked of one that does not.
        whole = _encoder(type(config)({**config, "sequence_len": _UNCUT}), tokenizer)

    def part(record: Record) -> Part:
        row, longest = encode(dict(record)), config.sequence_len
        if not _teaches(row):
            return "empty"
        full = len(row["input_ids"]) == longest
        cut = full and len(whole(dict(record))["input_ids"]) > longest
        return "truncated" if cut else "whole"

    def judge(records: Sequence[Record]) -> list[Part]:
        with muted():
            return [part(record) for record in records]

    return judge


def _columns(kind: str) -> tuple[str, ...]:
    return ("prompt", "completion") if kind == "prompt-completion" else (kind,)


def _validate(recipe: Any, base_dir: Path, scratch: Path) -> Any:
    """The configuration as Axolotl completes it."""
    import torch
    from axolotl.utils.config import normalize_config, validate_config
    from axolotl.utils.dict import DictDefault

    named = recipe.model
    wanted = axolotl_config(
        recipe,
        model=str(base_dir / named.path),
        tokenizer=str(base_dir / named.tokenizer.path),
        output=str(scratch),
    )
    able, environment = _abilities(torch)
    try:
        config = validate_config(DictDefault(wanted), able, environment)
        normalize_config(config)
    except Exception as error:  # pydantic's, and its own
        raise RecipeInvalid(
            "axolotl refuses the recipe",
            check="backend",
            got=type(error).__name__,
            hint="try backend trl",
        ) from error
    return config


def _abilities(torch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts about the machine that Axolotl's validation needs."""
    if torch.cuda.is_available():
        from axolotl.cli.config import gpu_capabilities

        found: tuple[dict[str, Any], dict[str, Any]] = gpu_capabilities()
        return found
    version = str(torch.__version__).partition("+")[0]
    able = {"bf16": True, "fp8": False, "tf32": False, "n_gpu": 1, "compute_capability": None}
    return able, {"torch_version": version}


def _encoder(config: Any, tokenizer: PreTrainedTokenizerBase) -> Encode:
    """One record to ids, mask and labels, by Axolotl's prompt strategy, cut to its length."""
    from axolotl.prompt_strategies import load

    named = config.datasets[0]
    if isinstance(named["type"], str):
        strategy = load(named["type"], tokenizer, config, named)
    else:
        strategy = load("user_defined", tokenizer, config, dict(named["type"]))

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        try:
            if strategy.supports_batched:
                many = strategy.tokenize_prompt({name: [value] for name, value in row.items()})
                found = {name: many[name][0] for name in _TENSORS if name in many}
            else:
                found = strategy.tokenize_prompt(row)
            # Of an empty text a strategy may give no row at all.
            ids = list(found.get("input_ids", ()))[: config.sequence_len]
            labels = list(found.get("labels", ids))[: len(ids)]
        except Exception:  # its message may quote the record
            raise RecordInvalid(
                "axolotl cannot read a record",
                check="records",
                hint="check the types of its columns: sealtrain validate",
            ) from None
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}

    return encode


def _teaches(row: dict[str, Any]) -> bool:
    return learns(row["labels"])


def _trainer(config: Any, rows: Any) -> Any:
    from axolotl.common.datasets import TrainDatasetMeta
    from axolotl.train import setup_model_and_trainer

    taught = TrainDatasetMeta(train_dataset=rows.filter(_teaches), total_num_steps=config.max_steps)
    try:
        return setup_model_and_trainer(config, taught)[0]
    except Exception as error:  # errors of many libraries
        raise ModelInvalid(
            "axolotl cannot set up the training",
            check="backend",
            got=type(error).__name__,
            hint="try backend trl",
        ) from error


def _check_trainer(
    trainer: Any, work: TrainingContext[SftRecipe], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check that the trainer has the recipe's tokenizer and settings."""
    theirs = trainer.processing_class
    if (len(theirs), theirs.pad_token_id) != (len(tokenizer), tokenizer.pad_token_id):
        raise ModelInvalid(
            "axolotl changes the tokenizer",
            check="tokenizer",
            got=f"{len(theirs)} tokens, padding {theirs.pad_token_id}",
            expected=f"{len(tokenizer)} tokens, padding {tokenizer.pad_token_id}",
            hint="save the tokenizer with a padding token",
        )
    check_vocabulary(trainer.accelerator.unwrap_model(trainer.model), tokenizer)
    wanted = trainer_arguments(work.recipe.trainer, work.scratch)
    for name in (name for name, use in SETTINGS.items() if use.there == "kept"):
        got, expected = getattr(trainer.args, name), wanted[name]
        if getattr(got, "value", got) != expected and (got or expected):
            raise RecipeInvalid(
                f"axolotl changes trainer.{name}",
                check="backend",
                got=str(got)[:80],
                expected=str(expected)[:80],
                hint="set a value that it keeps on this machine, or take backend trl",
            )
    for name in _OURS:
        setattr(trainer.args, name, wanted[name])


def _batches(
    work: TrainingContext[SftRecipe],
    columns: PromptCompletionColumns,
    trainer: Any,
    encode: Encode,
    names: dict[str, str],
) -> Iterator[tuple[dict[str, Any], Any, list[str]]]:
    """Batches of the test records, built as the trainer builds its own."""
    for records in test_records(work):
        rows = [{names[name]: record[name] for name in names} for record in records]
        kept = [
            (encoded, str(record[columns.completion]))
            for encoded, record in zip(map(encode, rows), records, strict=True)
            if _teaches(encoded)
        ]
        if not kept:
            continue
        batch = trainer.data_collator([encoded for encoded, _ in kept])
        inputs = {name: batch[name].to(trainer.args.device) for name in _TENSORS}
        yield inputs, inputs.pop("labels"), [words for _, words in kept]
