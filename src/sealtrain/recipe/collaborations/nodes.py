"""Settings of a recipe that several nodes train (spec/recipe.md §2.14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator

from sealtrain.recipe.backends import worlds_of
from sealtrain.recipe.collaboration import CollaborationSettings
from sealtrain.recipe.fields import RecipePath, describe_keyword

MAX_NODES = 256
MAX_PROCESSES = 4096
"""Ranks of all nodes: each is connected to each other."""
_SECONDS_A_WEEK = 604_800
_SPREAD = ("trl", "fsdp", "deepspeed")
"""Backends that train over the wire."""


REFUSED: Final[Mapping[str, str]] = {
    "phase: evaluate": "nothing is trained; the ranks of one guest share the records out",
    "backend: unsloth or axolotl": "these libraries train in one process",
    "privacy.dp: sgd or metrics": "one guest draws the noise and keeps its account",
    "datasets.series": "each node would ask for a series by itself, and could read another length",
    "schedule": "it starts one guest",
    "release_policy.model.handed_on": "one guest gives the model's key to the recipe that follows",
    "trainer.packing and trainer.padding_free": "a step would not take the same records for every "
    "division; several ranks of one guest refuse them too",
    "trainer.torch_compile": "the compiler follows a step into the code of the wire, and fails",
    "trainer.use_liger_kernel": "it needs an accelerator, and is not tried",
}
"""What nodes refuse of what one guest takes, and why. docs/guides/nodes.md has the same table."""


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

    resume_nodes: Annotated[
        tuple[Annotated[int, Field(ge=2, le=MAX_NODES)], ...],
        describe_keyword("uniqueItems", True),
    ] = Field(
        default=(),
        max_length=8,
        exclude_if=lambda numbers: not numbers,
        description="Other numbers of nodes that may continue a run; a step keeps its records.",
    )

    @field_validator("resume_nodes")
    @classmethod
    def _ascending(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if list(numbers) != sorted(set(numbers)):
            raise ValueError("resume_nodes names each number once, in ascending order")
        return numbers

    @property
    def guests(self) -> int:
        """As the settings say."""
        return self.nodes

    @property
    def resume_guests(self) -> tuple[int, ...]:
        """As the settings say."""
        return self.resume_nodes

    def with_guests(self, guests: int) -> Self:
        """As ``CollaborationSettings.with_guests``."""
        return self.model_copy(update={"nodes": guests})

    def ports(self, ranks: int) -> int:
        """One to join at, and one for each rank."""
        return 1 + ranks

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        if recipe.backend.name not in _SPREAD:
            allowed = ", ".join(_SPREAD)
            return f"collaboration nodes trains with backend {allowed}, not {recipe.backend.name}"
        if self.nodes in self.resume_nodes:
            return f"collaboration.resume_nodes names other numbers than nodes, not {self.nodes}"
        if max(worlds_of(recipe)) > MAX_PROCESSES:
            return f"collaboration nodes trains in at most {MAX_PROCESSES} ranks of all nodes"
        return None
