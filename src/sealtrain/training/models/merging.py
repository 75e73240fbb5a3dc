"""Merge an adapter into the weights it was trained beside, in full precision and in memory.

Merging into a base in four bits would round the sum a second time, which costs more than the
adapter gained. So the guest discards a quantised base, reads its full-precision weights again and
merges the adapter into those.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.filenames import DATA_SUFFIXES, may_carry_code
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.basefiles import files_in, merge_files
from sealtrain.training.errors import TrainingDiverged
from sealtrain.training.finite import require_finite_weights
from sealtrain.training.model_files import SPARSE_FILE, weight_files
from sealtrain.training.models.base_read_anew import merge_with_base
from sealtrain.training.models.merge_by_module import (
    MergeByModule,
    merge_not_finite,
    merges_by_module,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_AUTO_CLASSES: Final = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "FEATURE_EXTRACTION": "AutoModel",
}


def merges_while_read(model: Any, base: Path | None, dtype: str) -> bool:
    """Whether the merge of a model that ranks share out needs no rank with the whole.

    Args:
        model: The trained PEFT model; its adapter changes weights.
        base: As ``merge_adapter``.
        dtype: As ``merge_adapter``.
    """
    if not _is_read_anew(model, base):
        return merges_by_module(model)
    return base is not None and merge_with_base(model, base, dtype) is not None


def merge_while_read(outline: Any, base: Path | None, dtype: str) -> MergeByModule:
    """The merge, where ``merges_while_read``. Arguments as there, of the model's outline."""
    if not _is_read_anew(outline, base) or base is None:
        return MergeByModule(outline)
    merge = merge_with_base(outline, base, dtype)
    if merge is None:
        raise AssertionError("the base was looked at before")
    return merge


def _is_read_anew(model: Any, base: Path | None) -> bool:
    return base is not None and bool(getattr(model.get_base_model(), "is_quantized", False))


def merge_adapter(model: Any, base: Path | None, dtype: str) -> PreTrainedModel:
    """A PEFT model's base with the adapter merged in.

    Args:
        model: The trained PEFT model; it is used up.
        base: Folder of the base, read again where training held it in four bits.
        dtype: ``float32`` or ``bfloat16``, the type of the weights that are read again.

    Raises:
        UsageError: The adapter is a learned prompt.
        TrainingDiverged: A weight of the adapter or the base is not a finite number.
    """
    _refuse_prompts(model.active_peft_config)
    trained = model.get_base_model()
    if base is None or not _is_read_anew(model, base):
        return _merge_adapter(model)
    import torch
    from peft import get_peft_model_state_dict

    config = deepcopy(trained.config)
    vars(config).pop("quantization_config", None)
    fresh = type(trained).from_pretrained(
        base,
        config=config,
        local_files_only=True,
        use_safetensors=True,
        dtype=getattr(torch, dtype),
    )
    fresh.generation_config = deepcopy(trained.generation_config)
    return _put_on(fresh, model.active_peft_config, get_peft_model_state_dict(model))


def merge_folder(adapter: Path, base: Path) -> dict[str, bytes]:
    """Merge an opened adapter into its base.

    Args:
        adapter: Folder that ``sealtrain open`` wrote: ``adapter_config.json``,
            ``adapter_model.safetensors``, ``config.json``, tokenizer files; with trained entries
            also ``sparse.safetensors``.
        base: Folder of the base model in full precision.

    Returns:
        Name → content of the merged model's files, as ``from_pretrained`` reads them.

    Raises:
        DataInvalid: A file is missing from a folder, or cannot be read.
        UsageError: The adapter is a learned prompt.
        ModelInvalid: The base is quantised, the adapter belongs to another base, a file beside
            it can carry code, or a weight of either is not a finite number.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of one library by another
        try:
            return _merge_folder(adapter, base)
        except TrainingDiverged as error:
            raise ModelInvalid(
                "the merged model would hold a number that is not finite",
                check="weights",
                got=error.got,
                expected="finite numbers",
                hint="merge another checkpoint's adapter, or into a sound copy of the base",
            ) from None


def _merge_folder(adapter: Path, base: Path) -> dict[str, bytes]:
    for folder, name in ((adapter, "adapter_config.json"), (base, "config.json")):
        if not (folder / name).is_file():
            raise DataInvalid(f"{name} is missing from {folder.name}", hint="check the path")
    from peft import PeftConfig  # seconds, for which a wrong path need not wait
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from sealtrain.training.models.sparse import put_on

    try:
        peft_config = PeftConfig.from_pretrained(str(adapter))
        _refuse_prompts(peft_config)
        weights = load_file(adapter / "adapter_model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataInvalid(
            f"{adapter.name} holds no adapter that can be read", got=type(error).__name__
        ) from None
    beside = _beside(adapter)
    fresh = _load_base(base, adapter, peft_config)
    if (adapter / SPARSE_FILE).is_file():
        try:
            put_on(fresh, load_file(adapter / SPARSE_FILE))
        except SafetensorError as error:
            raise DataInvalid(
                f"the trained entries in {adapter.name} cannot be read",
                got=type(error).__name__,
            ) from None
    whole = _put_on(fresh, peft_config, weights)
    return merge_files(beside, weight_files(whole), files_in(base))


def _beside(adapter: Path) -> dict[str, bytes]:
    """Files beside the adapter's own, of the kinds that ``sealtrain open`` always opens."""
    found = {}
    for path in sorted(adapter.rglob("*")):
        name = path.relative_to(adapter).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file() or may_carry_code(name):
            raise ModelInvalid(
                f"{adapter.name} holds {name}, which is not data of a model",
                check="adapter",
                got=path.suffix or "no suffix",
                expected=", ".join(DATA_SUFFIXES),
                hint="merge a folder that holds only the files of: sealtrain open",
            )
        if not path.name.startswith("adapter_") and path.name != SPARSE_FILE:
            found[name] = path.read_bytes()
    return found


def _load_base(base: Path, adapter: Path, peft_config: Any) -> Any:
    import transformers
    from safetensors import SafetensorError

    task = str(getattr(peft_config.task_type, "value", peft_config.task_type))
    if task not in _AUTO_CLASSES:
        raise ModelInvalid(
            "the adapter is for an unknown task",
            check="adapter",
            got=task,
            expected=", ".join(sorted(_AUTO_CLASSES)),
        )
    beside = adapter if (adapter / "config.json").is_file() else base
    try:
        config = transformers.AutoConfig.from_pretrained(beside, local_files_only=True)
        # A saved model knows its class best; a classifier's base may be of another one.
        named = getattr(transformers, (config.architectures or [""])[0], None)
        auto = getattr(transformers, _AUTO_CLASSES[task])
        loader = auto if named is None or task == "SEQ_CLS" else named
        if getattr(config, "quantization_config", None) is not None:
            raise ModelInvalid(
                "the base is quantised",
                check="model",
                hint="merge into the full-precision weights of this base",
            )
        return loader.from_pretrained(
            base, config=config, local_files_only=True, use_safetensors=True, dtype="auto"
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelInvalid(
            "the base model cannot be read", check="model", got=type(error).__name__
        ) from None


def _put_on(base: Any, peft_config: Any, weights: dict[str, Any]) -> PreTrainedModel:
    """``base`` with the adapter merged in."""
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

    try:
        model = PeftModel(base, deepcopy(peft_config))
        result: Any = set_peft_model_state_dict(model, weights)
    except (ValueError, RuntimeError) as error:
        raise _another_base(type(error).__name__) from None
    if result.unexpected_keys or set(get_peft_model_state_dict(model)) != set(weights):
        raise _another_base("other tensors")
    return _merge_adapter(model)


def _merge_adapter(model: Any) -> PreTrainedModel:
    """The base of a PEFT model with its adapter merged in; PEFT names no tensor that is NaN."""
    require_finite_weights(dict(model.named_parameters()))
    try:
        whole: PreTrainedModel = model.merge_and_unload(safe_merge=True)
    except ValueError:
        raise merge_not_finite() from None
    return whole


def _another_base(got: str) -> ModelInvalid:
    return ModelInvalid(
        "the adapter belongs to another base",
        check="adapter",
        got=got,
        hint="name the base model of the recipe it was trained with",
    )


def _refuse_prompts(peft_config: Any) -> None:
    if peft_config.is_prompt_learning:
        raise UsageError(
            "the adapter is a learned prompt, which cannot be merged into weights",
            got=str(getattr(peft_config.peft_type, "value", peft_config.peft_type)).lower(),
            expected="an adapter that changes weights: lora, ia3",
            hint="load it on its base with PEFT",
        )
