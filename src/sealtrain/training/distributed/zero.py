"""``deepspeed``: ranks shard optimizer, gradients and weights by DeepSpeed's ZeRO.

DeepSpeed's own checkpoints are files in the clear, so it writes none: rank 0 gathers every rank's
shard and seals them as any checkpoint, and a resumed rank gets its own shard again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.distributed.agreement import to_first
from sealtrain.training.distributed.outline import fill_outline, outline_of
from sealtrain.training.distributed.ranks import place
from sealtrain.training.distributed.shared_model import GatheredWeights, SharedModel
from sealtrain.training.models.weights import refuse_another_model, trainable_state

if TYPE_CHECKING:
    from sealtrain.recipe.backends import DeepSpeed
    from sealtrain.recipe.trainers import TrainerArguments


def connect() -> None:
    """Load DeepSpeed and build the group it needs, before the sandbox closes."""
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        # The ranks of this guest; else DeepSpeed starts a program to count memories.
        os.environ["LOCAL_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]
    import deepspeed
    from deepspeed.utils import groups

    # Its own operations would be compiled when first used, and a run starts no programs.
    compiled = deepspeed.ops.__compatible_ops__
    compiled.update(dict.fromkeys(compiled, False))
    deepspeed.init_distributed(
        torch.distributed.get_backend(), auto_mpi_discovery=False, verbose=False
    )
    groups._clone_world_group()  # the engine looks it up there


class Zero:
    """``Machinery`` over DeepSpeed's engine."""

    in_shards = False

    def __init__(self, backend: DeepSpeed, trainer: TrainerArguments) -> None:
        self._stage = backend.zero_stage
        self.shares_out = backend.zero_stage == 3
        self._config = ds_config(backend, trainer)
        self._trainer: Any = None
        self._outline: Any = None

    def arguments(self) -> dict[str, Any]:
        """DeepSpeed's configuration, and the place of this process as Accelerate has to see it."""
        import torch
        from accelerate import PartialState
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # as Transformers
        cuda = torch.cuda.is_available()
        told = {"ACCELERATE_USE_DEEPSPEED": "true"}
        # Accelerate knows DeepSpeed on devices only, unless it is told which device this is.
        told |= {} if cuda else {"ACCELERATE_TORCH_DEVICE": "cpu"}
        os.environ.update(told)
        try:
            PartialState(backend="nccl" if cuda else "gloo")
        finally:
            del os.environ["ACCELERATE_USE_DEEPSPEED"]
        return {
            "deepspeed": self._config,
            "bf16": False,  # Transformers would have DeepSpeed hold the weights themselves in it
            "use_cpu": False,
            "accelerator_config": {"use_configured_state": True, "dispatch_batches": False},
        }

    def trainer(self, kind: type[Any]) -> type[Any]:
        """A subclass that remembers its engine."""
        machinery = self

        class ZeroTrainer(kind):  # type: ignore[misc]  # any trainer
            def _prepare_for_training(self, *words: Any, **named: Any) -> Any:
                machinery.begin(self)
                return super()._prepare_for_training(*words, **named)

        return ZeroTrainer

    def begin(self, trainer: Any) -> None:
        """Remember the trainer, and the model as it is before its weights are sharded."""
        self._trainer = trainer
        if self._stage == 3:
            self._outline = outline_of(trainer.model)

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """Trained weights once, and each rank's part of the optimizer."""
        weights = self._gather(model, trainable_only=True)
        parts = to_first(self._own_part())
        return {"model": weights, "optimizer": parts} if place().leads else {}

    def restore(self, model: Any, optimizer: Any, kept: dict[str, Any]) -> None:
        """Restore the weights, then this rank's shard, which also has the weights it updates."""
        mine, parts = place(), kept["optimizer"]
        if not isinstance(parts, list) or len(parts) != mine.world:
            raise CheckpointRefused(
                "the checkpoint is of another number of ranks",
                check="ranks",
                expected=mine.world,
                hint="resume with the recipe that began the run",
            )
        if self._stage == 3:
            buffers = dict(model.named_buffers())
            for name in buffers.keys() & kept["model"].keys():
                buffers[name].copy_(kept["model"][name])
        else:
            refuse_another_model(model, kept["model"])
            model.load_state_dict(kept["model"], strict=False)
        engine = self._engine.optimizer
        if self._stage == 0:
            engine.load_state_dict(parts[mine.rank]["base"])
            return
        whole = {**engine.state_dict(), **parts[mine.rank]}
        engine.load_state_dict(
            [whole] * mine.world, load_optimizer_states=True, load_from_fp32_weights=True
        )

    def whole(self, trainer: Any) -> Any:
        """The model itself, or its outline filled with every rank's shard."""
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        if self._stage < 3:
            return trainer.model if place().leads else None
        weights = self._gather(trainer.model, trainable_only=False)
        # From now on models are whole, also those that are loaded to merge with.
        unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]  # of Transformers
        outline, self._outline = self._outline, None
        return fill_outline(outline, weights, trainer.args.device) if place().leads else None

    def share_model(self, trainer: Any) -> SharedModel:
        """Every rank's partitions of stage 3; before it, each rank has the weights."""
        import deepspeed
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        model = trainer.model
        persistent = set(model.state_dict())
        buffers = {name: each for name, each in model.named_buffers() if name in persistent}
        shared_out = dict(model.named_parameters(remove_duplicate=False))
        outline, self._outline = self._outline, None
        source = GatheredWeights(shared_out, buffers, deepspeed.zero.GatheredParameters)
        parts = {name: _own_partition(each) for name, each in shared_out.items()}
        whole = {name: tuple(each.ds_shape) for name, each in shared_out.items()}
        whole |= {name: tuple(each.shape) for name, each in buffers.items()}
        types = {name: str(each.dtype) for name, each in (shared_out | buffers).items()}
        # From now on models are whole, also those that are loaded beside this one.
        unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]  # of Transformers
        return SharedModel(
            model,
            outline,
            source,
            parts=parts | buffers,
            described={name: (whole[name], types[name]) for name in whole},
        )

    @property
    def _engine(self) -> Any:
        return self._trainer.model_wrapped

    def _own_part(self) -> dict[str, Any]:
        from deepspeed.checkpoint.constants import (
            BASE_OPTIMIZER_STATE,
            FP32_FLAT_GROUPS,
            OPTIMIZER_STATE_DICT,
            SINGLE_PARTITION_OF_FP32_GROUPS,
        )

        state = self._engine.optimizer.state_dict()
        if self._stage == 0:
            return {"base": state}
        moments, weights = (
            (OPTIMIZER_STATE_DICT, FP32_FLAT_GROUPS)
            if self._stage == 3
            else (BASE_OPTIMIZER_STATE, SINGLE_PARTITION_OF_FP32_GROUPS)
        )
        return {
            moments: state[moments],
            weights: [tensor.detach() for tensor in state[weights]],
        }

    def _gather(self, model: Any, *, trainable_only: bool) -> dict[str, Any]:
        """Weights and persistent buffers by name, on rank 0."""
        leads = place().leads
        if self._stage < 3:
            return trainable_state(model) if leads else {}
        import deepspeed

        found: dict[str, Any] = {}
        persistent = set(model.state_dict())
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if trainable_only and not parameter.requires_grad:
                continue
            with deepspeed.zero.GatheredParameters([parameter]):
                if leads:
                    found[name] = parameter.detach().cpu().clone()
        if leads:
            found |= {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        return found


def _own_partition(parameter: Any) -> Any:
    """This rank's elements of a parameter; what fills its partition up was never written."""
    flat = parameter.ds_tensor.data.reshape(-1)
    return flat[: max(0, parameter.ds_numel - place().rank * len(flat))]


_NEVER = 1 << 40


def ds_config(backend: DeepSpeed, trainer: TrainerArguments) -> dict[str, Any]:
    """DeepSpeed's configuration of a recipe.

    Args:
        backend: Stage of ZeRO, and where to keep the sharded state.
        trainer: Batch, accumulation and clipping; the optimizer is the trainer's own.
    """
    zero: dict[str, Any] = {"stage": backend.zero_stage}
    if backend.offload == "cpu":
        zero["offload_optimizer"] = {"device": "cpu"}
        if backend.zero_stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": trainer.per_device_train_batch_size,
        "gradient_accumulation_steps": trainer.gradient_accumulation_steps,
        "gradient_clipping": trainer.max_grad_norm,
        "zero_optimization": zero,
        # As the trainer does by itself without DeepSpeed: weights stay float32.
        "torch_autocast": {"enabled": trainer.bf16, "dtype": "bfloat16"},
        # The recipe's optimizer is PyTorch's. DeepSpeed's own would be compiled when first used.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
    }
