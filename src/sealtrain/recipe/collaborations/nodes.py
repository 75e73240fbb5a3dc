"""Settings of a recipe that several nodes train (spec/recipe.md §2.14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from sealtrain.recipe.collaboration import CollaborationSettings
from sealtrain.recipe.fields import RecipePath

MAX_NODES = 256
MAX_PROCESSES = 4096
"""Ranks of all nodes: each is connected to each other."""
_SECONDS_A_WEEK = 604_800
_SPREAD = ("trl", "fsdp", "deepspeed")
"""Backends that train over the wire."""


REFUSED: Final[Mapping[str, str]] = {
    "phase: evaluate": "nothing is trained; the ranks of one guest share the records out",
    "backend: unsloth or axolotl": "these libraries train in one process",
    "backend.resume_ranks": "a node's number of ranks is part of what its ticket and the meeting "
    "agree on; the run goes on with the same numbers",
    "scripts": "a script makes its process group by itself, and the connections between nodes are "
    "the keepers'",
    "privacy.dp: sgd or metrics": "one guest draws the noise and keeps its account",
    "audit.canaries": "each node would draw others, from a secret of its own",
    "datasets.series": "each node would ask for a series by itself, and could read another length",
    "schedule": "it starts one guest",
    "release_policy.model.handed_on": "one guest gives the model's key to the recipe that follows",
    "trainer.packing and trainer.padding_free": "a step would not take the same records for every "
    "division; several ranks of one guest refuse them too",
    "trainer.torch_compile and trainer.use_liger_kernel": "each node would build code of its own; "
    "not tried",
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
            return f"collaboration nodes has no resume_ranks: {REFUSED['backend.resume_ranks']}"
        if getattr(getattr(recipe, "audit", None), "canaries", 0):
            return f"collaboration nodes has no audit.canaries: {REFUSED['audit.canaries']}"
        return None
