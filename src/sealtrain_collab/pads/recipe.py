"""Settings of a recipe for products under pads (spec/recipe.md §2.14)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.recipe.collaboration import CollaborationSettings, misfit_of_text_lora
from sealtrain.recipe.fields import RecipePath

__all__ = ["Pads"]

_Layer = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$")]


class Pads(CollaborationSettings):
    """One guest trains; an untrusted accelerator multiplies for it under one-time pads."""

    phases: ClassVar[tuple[str, ...]] = ("classify", "sft")
    summary: ClassVar[str] = (
        "One guest trained; an untrusted accelerator multiplied for it under one-time pads."
    )
    limits: ClassVar[tuple[str, ...]] = ("base-model-public", "outsourced-shapes", "dealer-apart")

    kind: Literal["pads"]
    pads: Literal["own", "pool", "dealer"] = Field(
        description="Who makes them: this guest as it goes, this guest beforehand, another guest."
    )
    checks: Literal[1, 2] = Field(
        default=2,
        description="Secret vectors that each product is checked with; a wrong one passes all of n "
        "with 2^(-31 n).",
    )
    skip: tuple[_Layer, ...] = Field(
        default=(),
        max_length=256,
        description="Layers that the guest computes itself, by name or the end of it.",
    )
    policy: RecipePath | None = Field(
        default=None, description="With pads: dealer, the policy that the dealer's guest must meet."
    )

    @model_validator(mode="after")
    def _dealer_proves_itself(self) -> Self:
        if (self.policy is None) != (self.pads != "dealer"):
            raise ValueError("policy and pads: dealer go together")
        if len(set(self.skip)) != len(self.skip):
            raise ValueError("skip names a layer twice")
        return self

    @property
    def helpers(self) -> tuple[str, ...]:
        """The accelerator, and a dealer where one makes the pads."""
        return ("accelerator", "dealer") if self.pads == "dealer" else ("accelerator",)

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        what = "collaboration pads"
        if unfit := misfit_of_text_lora(recipe, what):
            return unfit
        if recipe.peft.use_dora:
            return f"{what} works without peft.use_dora, which reads the weights of the base"
        return None
