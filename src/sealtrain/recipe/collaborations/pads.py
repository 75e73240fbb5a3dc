"""Settings of a recipe for products under pads (spec/recipe.md §2.14)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.errors import UsageError
from sealtrain.recipe.collaboration import CollaborationSettings, misfit_of_text_adapter
from sealtrain.recipe.fields import RecipePath

_Layer = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$")]
PAD_LIMITS: Final = ("base-model-public", "outsourced-shapes", "dealer-apart")
"""Ids of what a manifest leaves open where products were made under pads (``manifest.limits``)."""


class ProductSettings(StrictModel):
    """How a guest has an untrusted accelerator multiply for it, whatever the guest trains in."""

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

    @model_validator(mode="after")
    def _skips_a_layer_once(self) -> Self:
        if len(set(self.skip)) != len(self.skip):
            raise ValueError("skip names a layer twice")
        return self

    @property
    def accelerator_sees(self) -> str | None:
        """As ``CollaborationSettings``."""
        return (
            "is trusted with nothing: it learns the base model's frozen weights, which become "
            "public, and how many rows each product has; pads hide the rows"
        )

    @property
    def helpers(self) -> tuple[str, ...]:
        """The accelerator, and a dealer where one makes the pads."""
        return ("accelerator", "dealer") if self.pads == "dealer" else ("accelerator",)


class Pads(ProductSettings, CollaborationSettings):
    """One guest trains; an untrusted accelerator multiplies for it under one-time pads."""

    phases: ClassVar[tuple[str, ...]] = ("classify", "sft")
    summary: ClassVar[str] = (
        "One guest trained; an untrusted accelerator multiplied for it under one-time pads."
    )
    limits: ClassVar[tuple[str, ...]] = PAD_LIMITS

    kind: Literal["pads"]
    policy: RecipePath | None = Field(
        default=None, description="With pads: dealer, the policy that the dealer's guest must meet."
    )

    @model_validator(mode="after")
    def _dealer_proves_itself(self) -> Self:
        if (self.policy is None) != (self.pads != "dealer"):
            raise ValueError("policy and pads: dealer go together")
        return self

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        what = "collaboration pads"
        if unfit := misfit_of_text_adapter(recipe, what, ("lora", "prefix_tuning")):
            return unfit
        return misfit_of_products(recipe, what)


def product_settings(recipe: Any) -> ProductSettings:
    """How a ``Recipe`` has products made under pads: its kind, or a setting of another kind.

    Raises:
        UsageError: Its guests make all products themselves.
    """
    how = recipe.collaboration
    found = how if isinstance(how, ProductSettings) else getattr(how, "products", None)
    if not isinstance(found, ProductSettings):
        raise UsageError(
            "the recipe has no products made under pads",
            check="collaboration",
            got="none" if how is None else how.kind,
            expected="collaboration: {kind: pads, …}, or products of kind federated",
        )
    return found


def misfit_of_products(recipe: Any, what: str) -> str | None:
    """Why the adapter of a ``Recipe`` cannot train under pads; ``None`` if it can.

    Args:
        recipe: To train.
        what: Has products made under pads, for the message.
    """
    if getattr(recipe.peft, "use_dora", False):
        return f"{what} works without peft.use_dora, which reads the weights of the base"
    return None
