"""Adapters: from a recipe's settings to PEFT's, over a base in full precision or in four bits.

The base in four bits is a way to train, never a result: an adapter is merged into the
full-precision weights it was trained beside (``training.models.merging``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sealtrain.recipe.adapters import OURS
from sealtrain.recipe.errors import RecipeInvalid

if TYPE_CHECKING:
    from sealtrain.recipe.adapters import Adapter, Quantization

_CONFIGS: Final = {
    "lora": "LoraConfig",
    "ia3": "IA3Config",
    "prefix_tuning": "PrefixTuningConfig",
    "p_tuning": "PromptEncoderConfig",
    "prompt_tuning": "PromptTuningConfig",
}


_REARRANGES = "support_avx512bf16_for_cpu"
# PEFT trains these whole beside the adapter of a classifier.
_HEADS = ("classifier", "score")


def adapter_config(adapter: Adapter, task_type: str | None) -> Any:
    """PEFT's configuration with the recipe's values.

    Args:
        adapter: The recipe's ``peft``.
        task_type: PEFT's name of the task: ``CAUSAL_LM``, ``SEQ_CLS``, ``FEATURE_EXTRACTION``;
            ``None`` for a model that reads no ids.
    """
    import peft

    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in adapter.model_dump(exclude=set(OURS)).items()
    }
    return getattr(peft, _CONFIGS[adapter.method])(task_type=task_type, **values)


def quantization_config(
    quantization: Quantization, *, classifies: bool = False, shared_out: bool = False
) -> Any:
    """Transformers' configuration for loading a base in four bits.

    Args:
        quantization: The recipe's.
        classifies: The model ends in a head for classes or a score, which is trained and so keeps
            its bits. Transformers finds such a head only where it has no bias.
        shared_out: Ranks share the base out (FSDP-QLoRA): packed bits then lie in numbers of the
            type of all other weights, since a backend splits tensors of one type. The bits are
            the same.

    Raises:
        RecipeInvalid: bitsandbytes is not installed.
    """
    from importlib.util import find_spec

    if find_spec("bitsandbytes") is None:
        raise RecipeInvalid(
            "a base in four bits needs bitsandbytes, which is not installed",
            check="peft.quantization",
            hint="install sealtrain[quantize], or leave quantization out",
        )
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    # Everything but the packed bits is float32: ``prepare_base``.
    further = {"bnb_4bit_quant_storage": "float32"} if shared_out else {}
    kept = {"llm_int8_skip_modules": list(_HEADS)} if classifies else {}
    return make(load_in_4bit=True, **quantization.to_dict(), **further, **kept)


def prepare_base(model: Any) -> Any:
    """Freeze a base in four bits and hold what is not quantised in float32.

    On processors with bfloat16 in AVX-512, bitsandbytes rearranges the weights in place when a
    model is evaluated: later training has no gradient through them, and it refuses sizes that 32
    does not divide. Here a base stays as it is, and computes alike on every processor.
    """
    import peft

    for module in model.modules():
        if hasattr(module, _REARRANGES):
            setattr(module, _REARRANGES, False)
    prepare: Any = peft.prepare_model_for_kbit_training
    return prepare(model, use_gradient_checkpointing=False)  # the trainer switches that on itself


def adapt(
    model: Any, adapter: Adapter, task_type: str | None, *, activation_checkpointing: bool
) -> Any:
    """The model with a fresh adapter, for trainers that take a finished model.

    Args:
        model: From ``training.models.base.build_model``.
        adapter: The recipe's ``peft``.
        task_type: As ``adapter_config``.
        activation_checkpointing: The recipe's setting; with it, inputs must carry gradients.
    """
    from peft import get_peft_model

    adapted = get_peft_model(model, adapter_config(adapter, task_type))
    if activation_checkpointing:
        adapted.enable_input_require_grads()
    return adapted


def virtual_tokens(model: Any) -> int:
    """Positions that an adapter puts before the input's own and that show in the logits."""
    config = getattr(model, "active_peft_config", None)
    if config is None or not config.is_prompt_learning or config.peft_type == "PREFIX_TUNING":
        return 0
    return int(config.num_virtual_tokens)
