"""``fp16``: 16-bit floats of a small range, so the loss is scaled while gradients are computed.

Accelerate scales it on accelerators; on a CPU it trains in float32 without a word. A recipe means
the same on both, so here a CPU computes in float16, too, with PyTorch's own scaler. Its state is in
the checkpoints (``training.checkpoints.callback``).
"""

from __future__ import annotations

from typing import Any


def scale_gradients(kind: type[Any]) -> type[Any]:
    """A subclass of a Hugging Face trainer that scales on a CPU as on an accelerator.

    Args:
        kind: The trainer's class. Its arguments say ``fp16``.
    """

    class ScaledTrainer(kind):  # type: ignore[misc]  # any trainer
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            accelerator = self.accelerator
            if self.args.fp16 and accelerator.device.type == "cpu":
                import torch

                accelerator.native_amp = True
                accelerator.scaler = torch.amp.GradScaler("cpu")

    return ScaledTrainer
