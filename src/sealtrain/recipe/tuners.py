"""Unsloth and Axolotl as backends: the recipes that they train unchanged.

Both change unsupported settings, sometimes without a line on the terminal: they switch packing off,
and make two warm-up steps of one. The settings that owners approve must be those that run, so this
module refuses a recipe that a backend would change, before it is locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from sealtrain.base.models import StrictModel

__all__ = ["Axolotl", "Unsloth", "unfit_for_tuner"]


class _Tuner(StrictModel):
    """What both have.

    Attributes:
        packages: What the lock pins besides ``train``. They ask for older versions of what
            ``train`` holds, so no extra can install them: tools/backends does.
    """

    packages: ClassVar[tuple[str, ...]]
    extra: ClassVar[str | None] = None

    ranks: Literal[1] = 1


class Unsloth(_Tuner):
    """TRL's trainer over a model that Unsloth loads and speeds up: phase sft, one process."""

    packages: ClassVar[tuple[str, ...]] = ("unsloth==2026.10.9", "unsloth-zoo==2026.10.9")

    name: Literal["unsloth"]


class Axolotl(_Tuner):
    """Axolotl's loader, prompt strategies and trainer: phase sft, one process."""

    packages: ClassVar[tuple[str, ...]] = ("axolotl==0.19.0",)

    name: Literal["axolotl"]


def unfit_for_tuner(recipe: Any) -> str | None:
    """Why Unsloth or Axolotl cannot train a ``Recipe`` as it is written; ``None`` if it can."""
    name = recipe.backend.name
    if recipe.phase != "sft":
        return f"backend {name} trains phase sft only"
    problems = _shared(recipe)
    problem = next(problems, None) or next(_OWN[name](recipe), None)
    return None if problem is None else f"backend {name}: {problem}"


def _shared(recipe: Any) -> Iterator[str]:
    model, peft, trainer = recipe.model, recipe.peft, recipe.trainer
    if recipe.scripts:
        yield "a script brings its own trainer; leave one of them out"
    if model.kind != "folder" or getattr(model.tokenizer, "path", None) is None:
        yield "it loads a folder with weights and a tokenizer: model.path, no {kind: bytes}"
    if recipe.privacy.dp != "none":
        yield "its layers give no gradient for each record; privacy needs backend trl"
    if trainer.packing or trainer.padding_free:
        yield "it packs in ways of its own, or not at all; leave packing and padding_free out"
    if trainer.loss_type != "nll":
        yield "loss_type is nll"
    if peft is not None and (peft.method != "lora" or peft.use_dora):
        yield "peft is null or method lora without use_dora"
    if peft is not None and peft.method == "lora":
        if peft.init_lora_weights not in (True, False, "gaussian"):
            yield "init_lora_weights is true, false or gaussian"
        named = () if peft.target_modules == "all-linear" else peft.target_modules
        if {"embed_tokens", "lm_head"} & set(named):
            yield "it trains embed_tokens and lm_head in full: name them in modules_to_save"


def _unsloth(recipe: Any) -> Iterator[str]:
    wanted = None if recipe.peft is None else recipe.peft.quantization
    if wanted is None:
        return
    if wanted.bnb_4bit_quant_type != "nf4" or not wanted.bnb_4bit_use_double_quant:
        yield "it holds four bits as nf4 with bnb_4bit_use_double_quant: true"
    if wanted.bnb_4bit_compute_dtype != recipe.model.dtype:
        yield "bnb_4bit_compute_dtype is model.dtype"


def _axolotl(recipe: Any) -> Iterator[str]:
    peft, trainer = recipe.peft, recipe.trainer
    if recipe.audit is not None:
        yield "audit needs backend trl"
    if peft is not None and peft.quantization is not None:
        yield "peft.quantization needs backend trl or unsloth"
    if peft is not None and (peft.bias != "none" or peft.init_lora_weights is not True):
        yield "it knows no bias and no init_lora_weights"
    if trainer.bf16 != (recipe.model.dtype == "bfloat16"):
        yield "it trains in the type it loads: bf16: true with dtype: bfloat16, or neither"
    if trainer.max_length is None or trainer.truncation_mode != "keep_start":
        yield "it cuts records after max_length tokens: give max_length, truncation_mode keep_start"
    if trainer.warmup_steps == 1:
        yield "it makes two warmup_steps of one"
    for name in ("label_smoothing_factor", "eos_token", "pad_token"):
        if getattr(trainer, name):
            yield f"it knows no {name}"


_OWN = {"unsloth": _unsloth, "axolotl": _axolotl}
