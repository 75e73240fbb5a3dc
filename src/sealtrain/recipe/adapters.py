"""Adapters of ``peft``, under the names PEFT gives their settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.base.models import StrictModel

__all__ = ["Adapter", "Lora"]

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,200}$")]


class Lora(StrictModel):
    """``peft.LoraConfig``."""

    method: Literal["lora"]
    r: int = Field(default=8, ge=1, le=4096)
    lora_alpha: int = Field(default=16, ge=1, le=65_536)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | Annotated[tuple[ModuleName, ...], Field(min_length=1)]
    modules_to_save: tuple[ModuleName, ...] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | Literal["gaussian", "pissa", "olora"] = True
    layers_to_transform: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] | None = None


Adapter = Lora
"""Any adapter a recipe can name."""
