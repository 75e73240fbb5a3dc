"""A recipe's settings as DeepSpeed's configuration: a function of the recipe alone.

DeepSpeed and Transformers choose nothing (``auto``), and every feature that writes or reports (its
own checkpoints, tensorboard, wandb, flops profiler, data efficiency) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sealtrain.recipe.backends import DeepSpeed
    from sealtrain.recipe.trainers import TrainerArguments

__all__ = ["ds_config"]

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
        # The recipe's optimizer is PyTorch's. DeepSpeed's own would be compiled when first used.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
    }
