"""The library that trains, and the number of its processes: ``backend`` of a recipe.

Each backend has a class, chosen by ``name``; settings have the names of the library. An engineer's
own loop is not a backend: the recipe names it in ``scripts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from sealtrain.base.models import StrictModel
from sealtrain.recipe.tuners import Axolotl, Unsloth, unfit_for_tuner

__all__ = [
    "DEFAULT",
    "Axolotl",
    "Backend",
    "DeepSpeed",
    "Fsdp",
    "Trl",
    "Unsloth",
    "is_default",
    "needs_group",
    "unfit",
]


class _AnyBackend(StrictModel):
    """What every backend has.

    Attributes:
        extra: Extra of sealtrain that installs it besides ``train``; the lock pins it too.
        packages: Requirements besides extras; the lock pins them too.
    """

    extra: ClassVar[str | None] = None
    packages: ClassVar[tuple[str, ...]] = ()

    ranks: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes of one guest that train together, each on its part of a batch.",
    )


class Trl(_AnyBackend):
    """TRL's and Transformers' trainers; several ranks keep whole copies of the model (DDP)."""

    name: Literal["trl"]


class Fsdp(_AnyBackend):
    """The same trainers over ``torch.distributed.fsdp.fully_shard``: ranks share the model out."""

    name: Literal["fsdp"]
    reshard_after_forward: bool = Field(
        default=True, description="Gather weights again for the backward pass: less memory."
    )


class DeepSpeed(_AnyBackend):
    """The same trainers over DeepSpeed's ZeRO."""

    extra: ClassVar[str | None] = "deepspeed"

    name: Literal["deepspeed"]
    zero_stage: Literal[0, 1, 2, 3] = Field(
        description="What ranks share out: nothing, optimizer, gradients too, weights too."
    )
    offload: Literal["none", "cpu"] = Field(
        default="none", description="Where what is shared out lies between its uses."
    )


Backend = Annotated[Trl | Fsdp | DeepSpeed | Unsloth | Axolotl, Field(discriminator="name")]
"""Any backend a recipe can name."""

DEFAULT: Final = Trl(name="trl")
"""The default backend. A lock leaves it out, so that equal recipes have equal locks."""

_PHASES: Final = ("cpt", "sft")


def is_default(backend: Any) -> bool:
    """Whether the recipe means the same without this backend."""
    return bool(backend == DEFAULT)


def needs_group(backend: Any) -> bool:
    """Whether the backend needs a group of ``torch.distributed``, even for a single process."""
    return backend.ranks > 1 or isinstance(backend, (Fsdp, DeepSpeed))


def unfit(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot be trained by its backend; ``None`` if it can."""
    backend, trainer, peft = recipe.backend, recipe.trainer, recipe.peft
    if is_default(backend):
        return None
    if isinstance(backend, (Unsloth, Axolotl)):
        return unfit_for_tuner(recipe)
    what = f"backend {backend.name}" if backend.name != "trl" else "backend.ranks above 1"
    if recipe.phase not in _PHASES:
        return f"{what} is for phases {' and '.join(_PHASES)}"
    if recipe.scripts:
        return f"{what} does not reach into a script of your own"
    if recipe.privacy.dp != "none":
        return f"{what} is not known to keep privacy dp: {recipe.privacy.dp}"
    unfit_settings: Mapping[str, bool] = {
        "trainer.packing": getattr(trainer, "packing", False),
        "trainer.padding_free": getattr(trainer, "padding_free", False),
        "trainer.load_best_model_at_end": trainer.load_best_model_at_end,
        "peft.quantization": peft is not None and peft.quantization is not None,
        f"peft.method {getattr(peft, 'method', '')}": peft is not None and not peft.changes_weights,
    }
    named = [name for name, wanted in unfit_settings.items() if wanted]
    if named:
        return f"{what} does not go together with {named[0]}"
    if backend.name == "deepspeed":
        return _unfit_for_deepspeed(recipe)
    if backend.name == "fsdp" and peft is not None and recipe.model.dtype != "float32":
        return "backend fsdp shares out weights of one kind: adapters need model.dtype float32"
    return None


def _unfit_for_deepspeed(recipe: Any) -> str | None:
    backend = recipe.backend
    if backend.offload != "none" and backend.zero_stage == 0:
        return "backend deepspeed offloads what is shared out: zero_stage 1 to 3"
    if recipe.trainer.bf16 or recipe.model.dtype != "float32":
        return "backend deepspeed trains float32: trainer.bf16: false and model.dtype float32"
    return None
