"""Where a process trains: on the machine's GPU where PyTorch sees one, never beside it unseen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from sealtrain.errors import UsageError

__all__ = ["compute_device"]

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
    present = sorted(one.name for one in machine.glob("nvidia[0-9]*"))
    if present and not hidden:
        raise UsageError(
            "this machine has a GPU, and PyTorch does not see it",
            check="accelerator",
            got=", ".join(present),
            hint=f"see nvidia-smi, or set {_HIDES}= to train on the processor",
        )
    return "cpu"
