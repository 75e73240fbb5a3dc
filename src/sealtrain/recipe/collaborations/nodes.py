"""Settings of a recipe that several nodes train (spec/recipe.md §2.14)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from sealtrain.recipe.collaboration import CollaborationSettings
from sealtrain.recipe.fields import RecipePath

MAX_NODES = 256
MAX_PROCESSES = 4096
"""Ranks of all nodes: each is connected to each other."""
_SECONDS_A_WEEK = 604_800
_SPREAD = ("trl", "fsdp", "deepspeed")
"""Backends that train over the wire."""


class Nodes(CollaborationSettings):
    """Guests that each hold all data and train their part of every step."""

    phases: ClassVar[tuple[str, ...]] = (
        "classify",
        "cpt",
        "dpo",
        "embed",
        "reward",
        "rlhf",
        "sft",
        "vlm",
    )
    takes_backend: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "Several guests of one deployment trained together, each on its part of every step."
    )
    limits: ClassVar[tuple[str, ...]] = ("nodes-evidence",)

    kind: Literal["nodes"]
    nodes: int = Field(ge=2, le=MAX_NODES, description="Guests that train together.")
    policy: RecipePath = Field(
        description="Appraisal policy that each node demands of the others; the lock holds the "
        "document."
    )
    join_seconds: int = Field(
        default=3600, ge=1, le=_SECONDS_A_WEEK, description="How long nodes wait for each other."
    )

    @property
    def guests(self) -> int:
        """As the settings say."""
        return self.nodes

    def ports(self, ranks: int) -> int:
        """One to join at, and one for each rank."""
        return 1 + ranks

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        if recipe.backend.name not in _SPREAD:
            allowed = ", ".join(_SPREAD)
            return f"collaboration nodes trains with backend {allowed}, not {recipe.backend.name}"
        if self.nodes * recipe.backend.ranks > MAX_PROCESSES:
            return f"collaboration nodes trains in at most {MAX_PROCESSES} ranks of all nodes"
        if getattr(recipe.backend, "resume_ranks", ()):
            return "collaboration nodes continues with the same ranks: leave resume_ranks out"
        return None
