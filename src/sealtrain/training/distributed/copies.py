"""``trl``: every rank has the whole model, and gradients are averaged between them (DDP)."""

from __future__ import annotations

from typing import Any

from sealtrain.training.distributed.ranks import place
from sealtrain.training.models.weights import load_weights, trainable_state

__all__ = ["Copies"]


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
