"""Where a process trains: on one GPU where PyTorch sees any, never beside a GPU unseen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from sealtrain.errors import UsageError

_DEVICES: Final = Path("/dev")
_HIDES: Final = "CUDA_VISIBLE_DEVICES"


def compute_device(machine: Path = _DEVICES) -> Literal["cpu", "cuda"]:
    """The device of this process's model.

    Libraries go on on the processor where the driver does not start: a run of a day takes months,
    and says nothing.

    Args:
        machine: Folder of the machine's device files.

    Raises:
        UsageError: The machine has a GPU and PyTorch, built for it, sees none; unless all are
            hidden by an empty ``CUDA_VISIBLE_DEVICES``, or -1.
    """
    import torch

    if torch.cuda.is_available():
        return "cuda"
    hidden = torch.version.cuda is None or os.environ.get(_HIDES) in ("", "-1")
    present = sorted(device.name for device in machine.glob("nvidia[0-9]*"))
    if present and not hidden:
        raise UsageError(
            "this machine has a GPU, and PyTorch does not see it",
            check="accelerator",
            got=", ".join(present),
            hint=f"see nvidia-smi, or set {_HIDES}= to train on the processor",
        )
    return "cpu"


def one_gpu_each() -> None:
    """Have trainers of transformers take one GPU in a process: several take as many ranks.

    By itself a trainer copies its model to every GPU that it sees and multiplies the recipe's batch
    by their number.
    """
    from transformers import TrainingArguments

    kind: Any = TrainingArguments
    if not isinstance(kind.n_gpu, _OneAtMost):
        kind.n_gpu = _OneAtMost(kind.n_gpu.fget)


class _OneAtMost(property):
    """A number of GPUs, of which one is used."""

    def __init__(self, found: Callable[[Any], int]) -> None:
        super().__init__(lambda arguments: min(1, found(arguments)))
