"""The interface of a backend, and the choice of the recipe's backend.

The trainer, its callback and the phases are the same for all backends. A backend differs in how it
spreads the model over ranks, and so in how it assembles a whole checkpoint and splits it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from sealtrain.training.distributed.ranks import place
from sealtrain.training.halfprecision import scale_gradients
from sealtrain.training.models.weights import load_weights, trainable_state

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.distributed.shared_model import SharedModel


class Machinery(Protocol):
    """See the module. Each training has its own.

    Attributes:
        in_shards: Every rank seals its own shard of a checkpoint (``checkpoints.shardsaver``).
        shares_out: No rank has the whole model (``share_model``).
    """

    in_shards: bool
    shares_out: bool

    def arguments(self) -> dict[str, Any]:
        """``TrainingArguments`` that the backend fixes."""

    def trainer(self, kind: type[Any]) -> type[Any]:
        """A trainer's class, or its subclass for this backend."""

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """``model`` and ``optimizer`` as a checkpoint keeps them; all ranks take part.

        Returns:
            The whole on rank 0 and nothing on the others; in shards, tensors of which each rank
            holds its part, and which are those of the training.
        """

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Restore a state that ``state`` returned. Every rank has the whole.

        In shards, the tensors are those of ``state`` and were filled already.

        Raises:
            CheckpointRefused: The state belongs to another model.
        """

    def whole(self, trainer: Any) -> Any:
        """The trained model as one module; all ranks take part, and only rank 0 gets it."""

    def share_model(self, trainer: Any) -> SharedModel:
        """The trained model where it lies, in every rank, where ranks share it out."""


def machinery_of(recipe: PhaseRecipe) -> Machinery:
    """The machinery of a recipe's backend."""
    half = getattr(recipe.trainer, "fp16", False)  # an evaluation has no precision
    if recipe.backend.name == "fsdp":
        from sealtrain.training.distributed.sharded import Sharded

        return Sharded(recipe.backend, half=half)
    if recipe.backend.name == "deepspeed":
        from sealtrain.training.distributed.zero import Zero

        return Zero(recipe.backend, recipe.trainer)
    from sealtrain.training.distributed.machinery import Copies

    return Copies(half=half)


def connects_more(name: str) -> bool:
    """Whether a backend opens connections besides the group of all ranks, by libraries of its own.

    Args:
        name: ``backend.name`` of a recipe.
    """
    return name == "deepspeed"


def connect_backend(name: str) -> None:
    """Let a backend open the connections that it needs besides the group of all ranks.

    Called in every rank before the sandbox closes around it.

    Args:
        name: ``backend.name`` of a recipe.
    """
    if connects_more(name):
        from sealtrain.training.distributed.zero import connect

        connect()


class Copies:
    """``Machinery`` of a single process, or of several that each hold a copy of the model."""

    in_shards = False
    shares_out = False

    def __init__(self, *, half: bool = False) -> None:
        self._half = half

    def arguments(self) -> dict[str, Any]:
        """No arguments: Transformers finds the other ranks by itself."""
        return {}

    def trainer(self, kind: type[Any]) -> type[Any]:
        """The class itself, or its subclass that scales the loss of ``fp16``."""
        return scale_gradients(kind) if self._half else kind

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """Rank 0's own state: all copies are equal."""
        if not place().leads:
            return {}
        return {"model": trainable_state(model), "optimizer": optimizer.state_dict()}

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Restore into this rank's copy."""
        load_weights(model, kept["model"])
        optimizer.load_state_dict(kept["optimizer"])

    def whole(self, trainer: Any) -> Any:
        """Rank 0's copy without the trainer's wrapping."""
        return trainer.accelerator.unwrap_model(trainer.model) if place().leads else None

    def share_model(self, _trainer: Any) -> NoReturn:
        """None is shared out: rank 0 has a copy."""
        raise AssertionError("every rank has a copy of the model")
