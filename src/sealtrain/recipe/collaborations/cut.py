"""Settings of a recipe for a model that is cut in two halves (spec/recipe.md §2.14)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from sealtrain.recipe.collaboration import PartiesSettings, misfit_of_text_adapter


class Cut(PartiesSettings):
    """Clients run the frozen front of the model, the server's guest trains the back."""

    phases: ClassVar[tuple[str, ...]] = ("classify", "sft")
    party_role: ClassVar[str | None] = "client"
    keys_from_brokers: ClassVar[bool] = False
    summary: ClassVar[str] = (
        "Clients ran the front half of the model, one guest trained the back half."
    )
    decrypted: ClassVar[str] = (
        "Records stayed with their owners; the measured code saw activations made of them."
    )
    limits: ClassVar[tuple[str, ...]] = ("activations-reveal", "clients-word")

    kind: Literal["cut"]
    layers: int = Field(ge=0, le=1000, description="Transformer layers of the front half.")
    spf_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the back's frozen weights that trains besides the adapter: those "
        "with the largest gradients.",
    )
    wire: Literal["bfloat16", "int8"] = Field(
        default="bfloat16", description="Numbers that activations are sent as."
    )

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        return misfit_of_text_adapter(recipe, "collaboration cut")
