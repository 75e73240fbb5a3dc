"""Settings of the engine that trains, and where each of them cannot work.

They change how a step is computed and not what is learned: optimizers of other libraries, compiled
models, kernels in place of a model's layers. What was never tried in a kind of run is refused there
by name. Each of them stays out of a lock at its default, and so do the packages that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

BITSANDBYTES_OPTIMIZERS: Final = ("adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit")
"""Optimizers of bitsandbytes: states of eight bits, or states that an accelerator's memory pages.

The extra ``quantize`` brings them, as it brings bases in four bits.
"""
TORCHAO_OPTIMIZERS: Final = ("adamw_torch_8bit", "adamw_torch_4bit")
"""Optimizers of torchao: states of eight and of four bits. The extra ``torchao`` brings them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """What a setting was tried with.

    Attributes:
        phases: That it trains.
        scripts: A script of the engineer's own may still train.
        quantized: A base in four bits may lie beside it.
        nodes: Several nodes may train with it: what it keeps is the same on every rank.
    """

    phases: tuple[str, ...]
    scripts: bool = False
    quantized: bool = True
    nodes: bool = False


_TRAINING: Final = ("classify", "cpt", "dpo", "embed", "reward", "rlhf", "sft", "vlm")
ENGINES: Final = {
    "optim": EngineSetting(phases=_TRAINING, scripts=True, nodes=True),
    "torch_compile": EngineSetting(
        phases=("classify", "cpt", "dpo", "reward", "sft"), quantized=False
    ),
    "use_liger_kernel": EngineSetting(phases=("cpt", "sft"), quantized=False),
}
"""By the name of the setting."""


def extras_of(recipe: Any) -> Iterator[str]:
    """Extras of sealtrain that bring what the engine settings of a ``Recipe`` use."""
    trainer = recipe.trainer
    in_four_bits = recipe.peft is not None and recipe.peft.quantization is not None
    if in_four_bits or trainer.optim in BITSANDBYTES_OPTIMIZERS:
        yield "quantize"
    if trainer.optim in TORCHAO_OPTIMIZERS:
        yield "torchao"
    if trainer.use_liger_kernel:
        yield "liger"


def builds_code(recipe: Any) -> bool:
    """Whether a ``Recipe`` has a compiler build code as it trains, on any machine."""
    trainer = recipe.trainer
    return bool(trainer.torch_compile) and trainer.torch_compile_backend in (None, "inductor")


def unfit_for_engine(recipe: Any) -> str | None:
    """Why an engine setting cannot train a ``Recipe``; ``None`` if all of them can."""
    trainer = recipe.trainer
    wanted = {
        f"trainer.optim {trainer.optim}": ENGINES["optim"]
        if trainer.optim in BITSANDBYTES_OPTIMIZERS + TORCHAO_OPTIMIZERS
        else None,
        "trainer.torch_compile": ENGINES["torch_compile"] if trainer.torch_compile else None,
        "trainer.use_liger_kernel": ENGINES["use_liger_kernel"]
        if trainer.use_liger_kernel
        else None,
    }
    for setting, engine in wanted.items():
        problem = None if engine is None else next(_list_faults(recipe, engine), None)
        if problem is not None:
            return f"{setting} {problem}"
    return None


def _list_faults(recipe: Any, engine: EngineSetting) -> Iterator[str]:
    how = recipe.collaboration
    if how is not None and not (engine.nodes and how.takes_backend):
        yield f"is not for collaboration {how.kind}: it was not tried there"
    if recipe.privacy.dp == "sgd":
        yield "is not known to keep privacy dp: sgd"
    if recipe.phase not in engine.phases:
        yield f"is not for phase {recipe.phase}; it was tried with {', '.join(engine.phases)}"
    if getattr(recipe.trainer, "loss_type", None) == "kto" and not engine.scripts:
        yield "was not tried with loss_type kto, whose batches differ in shape"
    if recipe.columns.kind == "tabular" and not engine.scripts:
        yield "is for models of Transformers, not for columns of numbers"
    if recipe.backend.name != "trl":
        yield f"is not for backend {recipe.backend.name}; backend trl takes it"
    if recipe.scripts and not engine.scripts:
        yield "does not reach into a script of your own"
    quantized = recipe.peft is not None and recipe.peft.quantization is not None
    if quantized and not engine.quantized:
        yield "was not tried beside a base in four bits: leave it or peft.quantization out"
