"""A deployment document that the product would refuse to read, as owners could approve it."""

from __future__ import annotations

from dataclasses import dataclass

from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.lock import Lock
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.signing.target import Target


@dataclass(frozen=True, kw_only=True)
class UnreadRecipe:
    """A document that owners approve by its hashes: ``LockedRecipe`` could refuse it."""

    lock: Lock
    compose_bytes: bytes

    @property
    def compose_hash(self) -> str:
        return compose_hash(self.compose_bytes)

    @property
    def app_id(self) -> str:
        return self.compose_hash[:40]

    @property
    def recipe_hash(self) -> str:
        return self.lock.recipe_hash

    @property
    def lock_bytes(self) -> bytes:
        return self.lock.to_bytes()

    @property
    def recipe(self) -> PhaseRecipe:
        return self.lock.recipe

    @property
    def target(self) -> Target:
        return Target(
            app_id=self.app_id, compose_hash=self.compose_hash, recipe_hash=self.recipe_hash
        )
