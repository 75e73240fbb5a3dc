"""What a backend has to offer, and which one a recipe gets.

The trainer, its callback and the phases stay the same for all of them. A backend differs in how
the model is laid over ranks, so in how a checkpoint's whole is put together and taken apart again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sealtrain.training.distributed.ranks import place
from sealtrain.training.models.weights import load_weights, trainable_state

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import Recipe

__all__ = ["Copies", "Machinery", "connected", "machinery_of"]


class Machinery(Protocol):
    """See the module. One for each training."""

    def arguments(self) -> dict[str, Any]:
        """``TrainingArguments`` that the backend fixes."""

    def trainer(self, kind: type[Any]) -> type[Any]:
        """A trainer's class, or its subclass for this backend."""

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """``model`` and ``optimizer`` as a checkpoint keeps them; all ranks take part.

        Returns:
            The whole on rank 0, nothing on the others.
        """

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Put back what ``state`` gave. Every rank has the whole.

        Raises:
            CheckpointRefused: It is of another model.
        """

    def whole(self, trainer: Any) -> Any:
        """The trained model as one module; all ranks take part, and only rank 0 gets it."""


def machinery_of(recipe: Recipe) -> Machinery:
    """The machinery of a recipe's backend."""
    if recipe.backend.name == "fsdp":
        from sealtrain.training.distributed.sharded import Sharded

        return Sharded(recipe.backend)
    if recipe.backend.name == "deepspeed":
        from sealtrain.training.distributed.zero import Zero

        return Zero(recipe.backend, recipe.trainer)
    from sealtrain.training.distributed.chosen import Copies

    return Copies()


def connected(name: str) -> None:
    """Let a backend make connections that it needs besides the group of all ranks.

    Called in every rank while that is still possible, so before the rank is locked down.

    Args:
        name: ``backend.name`` of a recipe.
    """
    if name == "deepspeed":
        from sealtrain.training.distributed.zero import connect

        connect()


class Copies:
    """``Machinery`` of one process, or of several with a copy each."""

    def arguments(self) -> dict[str, Any]:
        """None: Transformers finds the other ranks by itself."""
        return {}

    def trainer(self, kind: type[Any]) -> type[Any]:
        """The class itself."""
        return kind

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """Rank 0's own: all copies are equal."""
        if not place().leads:
            return {}
        return {"model": trainable_state(model), "optimizer": optimizer.state_dict()}

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Into this rank's copy."""
        load_weights(model, kept["model"])
        optimizer.load_state_dict(kept["optimizer"])

    def whole(self, trainer: Any) -> Any:
        """Rank 0's copy without the trainer's wrapping."""
        return trainer.accelerator.unwrap_model(trainer.model) if place().leads else None
