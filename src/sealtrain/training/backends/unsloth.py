"""Models that Unsloth loads, for TRL's trainer.

Unsloth replaces parts of the trainer too (a loss that never holds all logits; on an accelerator
kernels of its own). It also corrects settings silently. This module checks both: the resulting
model and arguments are those of the recipe, or the run ends before it reads a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.training.backends.ready import muted
from sealtrain.training.models.base import adopt_tokens, check_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.trainers import TrainerArguments

_LORA = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "use_rslora",
    "init_lora_weights",
    "layers_to_transform",
)


def load_model(recipe: Any, base_dir: Path, tokenizer: PreTrainedTokenizerBase) -> Any:
    """The recipe's base model, with its adapter if it has one.

    Args:
        recipe: Of backend unsloth; ``training.backends.ready`` has loaded the library.
        base_dir: Folder that the recipe's paths start from.
        tokenizer: The recipe's.

    Raises:
        ModelInvalid: Unsloth cannot load it, or loads it differently than the recipe says.
    """
    import torch
    from unsloth import FastLanguageModel

    named, peft = recipe.model, recipe.peft
    in_four_bits = peft is not None and peft.quantization is not None
    try:
        with muted():
            model, _ = FastLanguageModel.from_pretrained(
                model_name=str(base_dir / named.path),
                tokenizer_name=str(base_dir / named.tokenizer.path),
                max_seq_length=recipe.trainer.max_length or _longest(base_dir / named.path),
                dtype=getattr(torch, named.dtype),
                load_in_4bit=in_four_bits,
                full_finetuning=peft is None,
                use_gradient_checkpointing=recipe.trainer.activation_checkpointing,
                use_exact_model_name=True,  # a local folder, never a copy that Unsloth published
                fix_tokenizer=False,
                local_files_only=True,
                trust_remote_code=False,
                random_state=recipe.trainer.seed,
            )
            _check_loaded(model, named.dtype, in_four_bits)
            check_vocabulary(model, tokenizer)
            adopt_tokens(model, tokenizer)
            return model if peft is None else _adapt(model, recipe)
    except ModelInvalid:
        raise
    except Exception as error:  # Unsloth raises errors of many libraries
        raise ModelInvalid(
            "unsloth cannot load the base model",
            check="model",
            got=type(error).__name__,
            hint="try backend trl",
        ) from error


def as_written(arguments: Any, asked: Iterable[str], trainer: TrainerArguments) -> Any:
    """Trainer arguments with the recipe's values, even if the backend changed them.

    Args:
        arguments: ``TrainingArguments`` or a subclass.
        asked: Names of the arguments it was built with.
        trainer: The recipe's.

    Raises:
        RecipeInvalid: The backend changed an argument that cannot be restored.
    """
    for name in sorted(set(asked) & set(type(trainer).model_fields)):
        got, wanted = getattr(arguments, name), getattr(trainer, name)
        if name == "optim":  # read when training begins
            arguments.optim = type(got)(wanted)
        elif getattr(got, "value", got) != wanted:
            raise RecipeInvalid(
                f"the backend changes trainer.{name}",
                check="backend",
                got=str(got)[:80],
                expected=str(wanted)[:80],
                hint="set a value that it keeps on this machine, or take backend trl",
            )
    return arguments


def _adapt(model: Any, recipe: Any) -> Any:
    from unsloth import FastLanguageModel

    peft = recipe.peft
    settings = {name: getattr(peft, name) for name in _LORA}
    every = peft.target_modules == "all-linear"
    targets = "all-linear" if every else list(peft.target_modules)
    adapted = FastLanguageModel.get_peft_model(
        model,
        target_modules=targets,
        modules_to_save=None if peft.modules_to_save is None else list(peft.modules_to_save),
        use_gradient_checkpointing=recipe.trainer.activation_checkpointing,
        random_state=recipe.trainer.seed,
        **settings,
    )
    made = adapted.peft_config["default"]
    changed = [name for name, value in settings.items() if getattr(made, name) != _plain(value)]
    if not every and set(made.target_modules) != set(targets):
        changed.append("target_modules")
    if changed:
        raise ModelInvalid(
            "unsloth built a different adapter than the recipe says",
            check="peft",
            got=f"another {', '.join(changed)}",
            hint="name the modules this model has, or take backend trl",
        )
    return adapted


def _check_loaded(model: Any, dtype: str, in_four_bits: bool) -> None:
    """Check the precision: Unsloth silently falls back when the machine cannot do the recipe's."""
    quantised = getattr(model.config, "quantization_config", None) is not None
    held = str(model.dtype).removeprefix("torch.")
    if quantised != in_four_bits or (not in_four_bits and held != dtype):
        raise ModelInvalid(
            "unsloth holds the base in another precision than the recipe says",
            check="model",
            got="four bits" if quantised else held,
            expected="four bits" if in_four_bits else dtype,
            hint="take backend trl, or a machine that supports this precision",
        )


def _longest(folder: Path) -> int:
    """The most tokens that the model reads, for records that are not cut."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return int(getattr(config, "max_position_embeddings", 2048))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
