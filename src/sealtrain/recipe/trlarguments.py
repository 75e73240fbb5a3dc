"""The arguments of TRL's scripts (``trl sft``, ``trl dpo``) in a file, as a recipe.

Every key ends as one of an Axolotl file does (``recipe.axolotl``): translated, left out because it
changes no weight, or refused with the word to write. Most arguments have the same name in a
recipe, whose trainers are TRL's. Where TRL's defaults differ from a recipe's, the recipe has TRL's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from sealtrain.recipe.axolotl import Imported, Wanted, list_datasets, write_translation
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.phases.dpo import DpoArguments
from sealtrain.recipe.phases.sft import SftArguments

TrlTrainer = Literal["sft", "dpo"]

_FIELDS: Final = {"sft": SftArguments.model_fields, "dpo": DpoArguments.model_fields}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sft": {"learning_rate": 2e-5, "optim": "adamw_torch_fused"},
    "dpo": {"learning_rate": 1e-6, "optim": "adamw_torch_fused"},
}
"""What TRL does without these arguments, where a recipe's own defaults differ."""
_COMPILED: Final = frozenset({"torch_compile", "torch_compile_backend"})
_EPOCHS: Final = 3.0
_ADAPTER: Final = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
}
_OF_LORA: Final = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
_NO_WEIGHT: Final = (
    (r"dataset_(name|config|train_split|test_split|streaming|num_proc)|datasets",
     "owners seal their datasets"),
    (r"report_to|run_name|project|logging_(dir|strategy|first_step)|log_\w+|trackio_\w+|disable_tqdm"
     r"|include_num_input_tokens_seen", "a run reports released metrics only"),
    (r"push_to_hub|hub_\w+", "a guest reaches no hub"),
    (r"output_dir|overwrite_output_dir|save_(strategy|only_model|on_each_node|safetensors)",
     "the run chooses where and when it writes"),
    (r"eval_strategy|do_(train|eval)|eval_packing|eval_on_start",
     "test data are measured at the end, and every eval_steps"),
    (r"attn_implementation|tf32|torch_compile_mode|use_liger_kernel|liger_kernel_config|use_cache",
     "another way to compute the same numbers, up to rounding"),
    (r"gradient_checkpointing_kwargs|activation_\w+|ddp_\w+|dataloader_\w+|skip_memory_metrics"
     r"|torch_empty_cache_steps|remove_unused_columns|ignore_bias_buffers",
     "changes speed or memory only"),
    (r"fsdp|fsdp_config|deepspeed",
     "how processes share the work: backend of the recipe says it"),
    (r"model_revision|lora_task_type", "the lock has the digests of the base that lies there"),
)  # fmt: skip
_WHY: Final = {
    "chat_template_path": "is no file of a template beside this one; put it there, or into the "
    "tokenizer of the model's folder, and say --own-files",
    "load_in_8bit": "a frozen base is held in four bits, or whole, if you say --whole-base",
    "trust_remote_code": "code of the model's folder is never run; say --own-files where "
    "transformers itself has this architecture",
    "model_init_kwargs": "put it into config.json of the model's folder, and say --own-files",
}
_HARMLESS_FALSE: Final = (
    "auto_find_batch_size", "bf16_full_eval", "fp16_full_eval", "full_determinism", "load_in_8bit",
    "trust_remote_code", "use_cpu",
)  # fmt: skip
_OF_FILES: Final = ("chat_template_path", "model_init_kwargs", "trust_remote_code")


def is_of_trl(config: Mapping[str, Any]) -> bool:
    """Whether a file holds arguments of TRL's scripts rather than Axolotl's keys."""
    return "model_name_or_path" in config and "base_model" not in config


def import_trl(config: Mapping[str, Any], wanted: Wanted, trainer: TrlTrainer) -> Imported:
    """Translate a file of arguments.

    Args:
        config: The YAML, as read.
        wanted: What it does not say.
        trainer: The script that the arguments are of.

    Raises:
        RecipeInvalid: Names every argument that cannot be translated and changes the result.
    """
    todo = {key: value for key, value in config.items() if value is not None}
    translated: dict[str, str] = {}
    left_out: dict[str, str] = {}
    refused: dict[str, str] = {}
    for key in sorted(set(wanted.without) & todo.keys()):
        del todo[key]
        left_out[key] = "left out on demand: training may differ"

    def take(key: str, place: str, default: Any = None) -> Any:
        if key not in todo:
            return default
        translated[key] = place
        return todo.pop(key)

    named = take("model_name_or_path", "model.path")
    path = wanted.base or named
    if not isinstance(path, str) or (wanted.base is None and not path.startswith(".")):
        refused["model_name_or_path"] = "no folder beside the recipe; --base-model PATH names one"
        path = "model"
    dtype = take("dtype", "model.dtype", take("torch_dtype", "model.dtype", "float32"))
    model = {"path": path.removeprefix("./").rstrip("/"), "dtype": dtype}
    if todo.get("attn_implementation") in ("eager", "sdpa"):
        model["attn_implementation"] = take("attn_implementation", "model.attn_implementation")
    if wanted.template is not None and "chat_template_path" in todo:
        take("chat_template_path", "model.chat_template")
        model["chat_template"] = wanted.template.split("\n")
    arguments = dict(_DEFAULTS[trainer])
    columns = _columns(todo, translated, refused, trainer)
    checkpointing = take("gradient_checkpointing", "trainer.activation_checkpointing", default=True)
    arguments["activation_checkpointing"] = checkpointing is not False
    if not todo.get("fp16"):
        arguments["bf16"] = take("bf16", "trainer.bf16", default=True)
    counted = wanted.steps is not None or wanted.records is not None
    counted = counted or todo.get("max_steps", -1) != -1
    place = "trainer.max_steps" if counted else "trainer.num_train_epochs"
    epochs = take("num_train_epochs", place, _EPOCHS)
    warmup = take("warmup_ratio", "trainer.warmup_steps")
    if warmup is not None:
        arguments["warmup_steps"] = warmup
    if todo.get("max_steps") == -1:
        take("max_steps", "trainer.max_steps")
    if todo.get("load_in_4bit"):
        for key in sorted(_COMPILED & todo.keys()):
            del todo[key]
            left_out[key] = "no model was compiled beside a base in four bits here"
    for key in sorted((todo.keys() & _FIELDS[trainer].keys()) - {"use_liger_kernel"}):
        arguments[key] = take(key, f"trainer.{key}")
    _steps(arguments, epochs, wanted, refused)
    peft = _adapter(take, dtype, refused)
    if trainer == "dpo" and peft is not None and arguments.get("disable_dropout") is not False:
        del peft["lora_dropout"]
        if translated.pop("lora_dropout", None) is not None:
            left_out["lora_dropout"] = "TRL switches dropout off where preferences are learned"
    for key in list(todo):
        if key in _OF_FILES and wanted.own_files:
            take(key, "model's files")
        elif todo[key] is False and key in _HARMLESS_FALSE:
            left_out[key] = "off, as in a recipe"
            del todo[key]
        elif key == "load_in_8bit" and wanted.whole_base:
            left_out[key] = "the frozen base is held whole, which takes more memory"
            del todo[key]
        elif why := next((why for names, why in _NO_WEIGHT if re.fullmatch(names, key)), None):
            left_out[key] = why
            del todo[key]
        else:
            refused[key] = _WHY.get(key, f"{str(todo[key])[:60]!r} is not known here")
    if refused:
        raise RecipeInvalid(
            "the arguments of TRL ask for what a recipe cannot say",
            check="trl",
            got="; ".join(f"{key}: {why}" for key, why in sorted(refused.items())),
            expected="arguments that have a counterpart, or change no weight",
            hint="change these arguments, or leave them out knowingly with --without NAME",
        )
    return Imported(
        recipe=write_translation(
            wanted,
            phase=trainer,
            model=model,
            datasets=[*list_datasets(wanted.train, "train"), *list_datasets(wanted.test, "test")],
            columns=columns,
            trainer=arguments,
            peft=peft,
        ),
        translated=translated,
        left_out=left_out,
        notes=("the order of records is sealtrain's own, by trainer.seed",),
    )


def _columns(
    todo: dict[str, Any], translated: dict[str, str], refused: dict[str, str], trainer: TrlTrainer
) -> dict[str, str]:
    """Columns that the arguments speak of: TRL itself looks at the data."""
    if trainer == "dpo":
        return {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    if todo.get("assistant_only_loss") is True:
        return {"messages": "messages"}
    if todo.get("completion_only_loss") is not None:
        return {"prompt": "prompt", "completion": "completion"}
    if "dataset_text_field" in todo:
        translated["dataset_text_field"] = "columns.text"
        return {"text": str(todo.pop("dataset_text_field"))}
    refused["dataset_text_field"] = (
        "missing; write it for texts, assistant_only_loss: true for messages, or "
        "completion_only_loss for prompts and completions"
    )
    return {}


def _steps(arguments: dict[str, Any], epochs: Any, wanted: Wanted, refused: dict[str, str]) -> None:
    if wanted.steps is not None:
        arguments["max_steps"] = wanted.steps
    if "max_steps" in arguments:
        return
    sizes = [
        epochs,
        arguments.get("per_device_train_batch_size", 8),
        arguments.get("gradient_accumulation_steps", 1),
    ]
    if arguments.get("packing"):
        refused["num_train_epochs"] = (
            "packed rows are not known before training; write max_steps, or say --steps N"
        )
    elif not all(isinstance(size, int | float) and 0 < size < 1e9 for size in sizes):
        refused["num_train_epochs"] = "epochs and sizes of batches are numbers above 0"
    elif wanted.records is None:
        arguments["num_train_epochs"] = epochs
    else:
        steps = math.ceil(wanted.records / (sizes[1] * sizes[2]))  # TRL begins an epoch anew
        arguments["max_steps"] = max(1, math.ceil(sizes[0] * steps))


def _adapter(take: Any, dtype: Any, refused: dict[str, str]) -> dict[str, Any] | None:
    wanted = take("use_peft", "peft.method")
    given = {place: take(key, f"peft.{place}") for key, place in _ADAPTER.items()}
    in_four_bits = take("load_in_4bit", "peft.quantization")
    kind = take("bnb_4bit_quant_type", "peft.quantization", "nf4")
    nested = take("use_bnb_nested_quant", "peft.quantization", default=False)
    if wanted is not True:
        if in_four_bits:
            refused["load_in_4bit"] = "a base in four bits needs use_peft: true"
        return None
    peft: dict[str, Any] = {"method": "lora", **_OF_LORA}
    peft |= {place: value for place, value in given.items() if value is not None}
    modules = peft.get("target_modules")
    if isinstance(modules, str) and modules != "all-linear":
        modules = peft["target_modules"] = [modules]
    if modules == ["all-linear"]:
        peft["target_modules"] = "all-linear"
    if modules is None:
        refused["lora_target_modules"] = "missing; name the modules, or write all-linear"
    if in_four_bits:
        peft["quantization"] = {
            "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": nested,
            "bnb_4bit_compute_dtype": dtype,
        }
    return peft
