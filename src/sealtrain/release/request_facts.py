"""What a decision about a release needs of the request that asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sealtrain.consortium.receipts import RunDataset


class AsksOfDataset(Protocol):
    """A dataset that a guest asks for."""

    @property
    def owner_id(self) -> str:
        """Of its owner, 64 hex digits."""

    @property
    def dataset_id(self) -> str:
        """32 hex digits."""

    @property
    def root(self) -> str:
        """64 hex digits."""


class FollowedRun(Protocol):
    """Which run another one follows."""

    @property
    def manifest_digest(self) -> str:
        """Of the run before, 64 hex digits."""

    @property
    def number(self) -> int:
        """Of the later run in its chain."""


class Asks(Protocol):
    """What a decision about a release needs of the request; ``ReleaseRequest`` has it."""

    @property
    def app_id(self) -> str:
        """40 hex digits."""

    @property
    def compose_hash(self) -> str:
        """64 hex digits."""

    @property
    def recipe_hash(self) -> str:
        """64 hex digits."""

    @property
    def run_id(self) -> str:
        """32 hex digits."""

    @property
    def resume(self) -> bool:
        """Whether a run goes on that got keys before."""

    @property
    def datasets(self) -> Sequence[AsksOfDataset]:
        """What this broker is asked for."""

    @property
    def continues(self) -> FollowedRun | None:
        """The run whose model this one begins with; ``None`` for the recipe's own model."""

    @property
    def data(self) -> frozenset[RunDataset]:
        """All data of the run."""
