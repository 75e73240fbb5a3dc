"""``fsdp``: ranks shard the model with ``torch.distributed.fsdp.fully_shard``.

Transformers' own switch (``TrainingArguments.fsdp``) silently trains plain copies on a CPU. So this
module shards the layers, on any device, before the optimizer is built, and marks the model as
sharded, so that the trainer leaves placement and gradients to it.

Of several guests each shards the model among its own ranks (``HYBRID_SHARD``): weights are gathered
within a guest, and of gradients one reduced copy crosses between guests. With ``FULL_SHARD`` all
ranks share one model out, and weights cross between guests, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.training.devices import compute_device
from sealtrain.training.distributed.outline import fill_outline, outline_of
from sealtrain.training.distributed.ranks import count_guests, place
from sealtrain.training.distributed.shared_model import ShardedWeights, SharedModel
from sealtrain.training.halfprecision import scale_gradients
from sealtrain.training.models.weights import of_training

if TYPE_CHECKING:
    from sealtrain.recipe.backends import Fsdp


def choose_mesh(strategy: str, *, guests: int, ranks: int) -> tuple[int, ...]:
    """The mesh of devices: (replicas, shards of each), or (shards,) of one model.

    Args:
        strategy: ``HYBRID_SHARD``: each of several guests has a whole model, so that only gradients
            of a shard cross to the others. ``FULL_SHARD``: all ranks share one model out.
        guests: How many train together.
        ranks: Of all guests; each guest has as many.
    """
    if strategy == "HYBRID_SHARD" and guests > 1:
        return guests, ranks // guests
    return (ranks,)


class Sharded:
    """``Machinery`` over FSDP2."""

    in_shards = True
    shares_out = True

    def __init__(self, backend: Fsdp, *, half: bool = False) -> None:
        self._reshard, self._half = backend.reshard_after_forward, half
        self._strategy = backend.sharding_strategy
        self._outline: Any = None

    def arguments(self) -> dict[str, Any]:
        """No arguments: ``TrainingArguments`` has none for this."""
        return {}

    def trainer(self, kind: type[Any]) -> type[Any]:
        """A subclass that shards its model when training begins."""
        machinery = self

        class ShardedTrainer(kind):  # type: ignore[misc]  # any trainer
            def _move_model_to_device(self, model: Any, device: Any) -> None:
                """Do nothing: the model stays in place until each rank takes its shard."""

            def _prepare_for_training(self, *words: Any, **named: Any) -> Any:
                machinery.share_out(self.model)
                self.is_distributed_loading_by_transformers = True
                return super()._prepare_for_training(*words, **named)

            @contextlib.contextmanager
            def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
                self.model.set_requires_gradient_sync(False)
                try:
                    yield
                finally:
                    self.model.set_requires_gradient_sync(True)

        return scale_gradients(ShardedTrainer) if self._half else ShardedTrainer

    def share_out(self, model: Any) -> None:
        """Leave each rank its shard of every layer."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._outline = outline_of(model)
        # Each group of the mesh exists already, or shares connections that do: none is opened.
        shape = choose_mesh(self._strategy, guests=count_guests(), ranks=place().world)
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh(compute_device(), shape, mesh_dim_names=names)
        # An encoder or an adapter holds the model that names its layers.
        layers = {
            name
            for module in model.modules()
            for name in getattr(module, "_no_split_modules", None) or ()
        }
        for module in reversed(list(model.modules())):
            if type(module).__name__ in layers:
                fully_shard(module, mesh=mesh, reshard_after_forward=self._reshard)
        fully_shard(model, mesh=mesh)
        model._is_fsdp_managed_module = True  # Transformers' own mark

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """This rank's shard, under the names an unshared model has."""
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        options = StateDictOptions(ignore_frozen_params=True)
        weights = get_model_state_dict(model, options=options)
        # PyTorch leaves frozen weights out under one of their names only, if they are tied.
        return {
            "model": of_training(model, weights),
            "optimizer": get_optimizer_state_dict(model, optimizer.optimizer, options=options),
        }

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Give the optimizer its state; the weights lie in place."""
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_optimizer_state_dict,
        )

        options = StateDictOptions(strict=False)
        set_optimizer_state_dict(model, optimizer.optimizer, kept["optimizer"], options=options)

    def whole(self, trainer: Any) -> Any:
        """The outline kept from before, filled with the gathered weights."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(trainer.model, options=options)
        if not place().leads:
            return None
        outline, self._outline = self._outline, None
        return fill_outline(outline, weights, trainer.args.device)

    def share_model(self, trainer: Any) -> SharedModel:
        """Every rank's shards, under the names an unshared model has."""
        import torch
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        parts = get_model_state_dict(trainer.model)
        outline, self._outline = self._outline, None
        return SharedModel(
            trainer.model,
            outline,
            ShardedWeights(parts),
            parts=parts,
            described={
                name: (tuple(part.shape), str(part.dtype))
                for name, part in parts.items()
                if isinstance(part, torch.Tensor)
            },
        )
