"""The part of a model that a checkpoint keeps, and its way back into the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.finite import require_finite_model


def trainable_state(model: Any) -> dict[str, Any]:
    """Trainable parameters and persistent buffers by name."""
    return of_training(model, model.state_dict())


def finite_state(model: Any) -> dict[str, Any]:
    """``trainable_state`` for a checkpoint. Raises ``TrainingDiverged`` for other numbers."""
    state = trainable_state(model)
    require_finite_model(model, state)
    return state


def of_training(model: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a model's state that a checkpoint keeps."""
    kept = {name for name, parameter in _parameters(model) if parameter.requires_grad}
    kept |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {name: tensor for name, tensor in state.items() if name in kept}


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    # A frozen base in four bits also has scales in the state dict: neither parameter nor buffer.
    return model.named_parameters(remove_duplicate=False)  # type: ignore[no-any-return]


def load_weights(model: Any, kept: dict[str, Any]) -> None:
    """Put the weights of a checkpoint into the model they were taken from.

    Raises:
        CheckpointRefused: The weights belong to another model.
    """
    refuse_another_model(model, kept)
    model.load_state_dict(kept, strict=False)


def refuse_another_model(model: Any, kept: dict[str, Any]) -> None:
    """Compare names and shapes. Raises ``CheckpointRefused`` as ``load_weights``."""
    wanted = trainable_state(model)
    unknown, missing = set(kept) - set(wanted), set(wanted) - set(kept)
    reshaped = [name for name in set(kept) & set(wanted) if kept[name].shape != wanted[name].shape]
    if unknown or missing or reshaped:
        raise CheckpointRefused(
            "the checkpoint is of another model",
            check="weights",
            got=f"{len(unknown)} unknown, {len(missing)} missing, {len(reshaped)} reshaped tensors",
            hint="resume with the recipe that began the run",
        )
