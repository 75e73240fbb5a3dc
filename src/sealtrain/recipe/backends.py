"""Which library's machinery trains, and in how many processes: ``backend`` of a recipe.

One class a backend, chosen by ``name``; settings have the names the library gives them. A loop of
one's own is no backend: the recipe names it as ``script``.
"""

from __future__ import annotations

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
"""What trains when a recipe names none. It is left out of a lock: one meaning has one spelling."""

_BUILT: Final = ("trl",)


def is_default(backend: Any) -> bool:
    """Whether a recipe means the same without it."""
    return bool(backend == DEFAULT)


def unfit(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot be trained by its backend; ``None`` if it can."""
    backend = recipe.backend
    if isinstance(backend, (Unsloth, Axolotl)):
        return unfit_for_tuner(recipe)
    if backend.name not in _BUILT:
        return f"backend {backend.name} cannot train yet"
    if backend.ranks != 1:
        return "backend.ranks above 1 cannot train yet"
    return None
