"""Facts about the machine that a repetition of the run needs, for the manifest."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from sealtrain.training.distributed.ranks import place

_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "numpy")


def environment() -> dict[str, str]:
    """Versions, threads and instruction set: bit-for-bit repetition depends on them."""
    import torch

    facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": str(torch.backends.cpu.get_cpu_capability()),
        "threads": str(torch.get_num_threads()),
        "aten_cpu_capability": os.environ.get("ATEN_CPU_CAPABILITY", "unset"),
        "mkl_cbwr": os.environ.get("MKL_CBWR", "unset"),
        "world_size": str(place().world),
        "cuda": str(torch.version.cuda or "none"),
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts


def accelerators() -> tuple[str, ...]:
    """Names of the accelerators in use."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
