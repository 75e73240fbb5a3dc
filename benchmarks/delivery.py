"""Memory that the delivery of a trained model takes beside it, and its throughput.

    python benchmarks/delivery.py [--megabytes 512] [--json]

A model of so many MB, on the GPU if there is one, goes to its file as in a run: tensor by tensor
into ciphertext that waits on the disk. ``host`` and ``device`` are the most bytes that the process
took more than before, on the machine and on the GPU (``null`` without one). Either does not grow
with the model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from measured_on import machine

STATUS = Path("/proc/self/status")


def resident(most: str) -> int:
    """Bytes of this process in memory: ``VmRSS`` now, ``VmHWM`` at most."""
    found = re.search(rf"{most}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise SystemExit("this system does not tell a process's memory")
    return int(found[1]) << 10


def measure(megabytes: int) -> dict[str, Any]:
    """Deliver a model once."""
    import torch

    from sealtrain.guest.delivered import DeliveredFiles
    from sealtrain.guest.workload.messages import FileDelivered
    from sealtrain.training.devices import compute_device
    from sealtrain.training.model_files import plan_files

    device = compute_device()
    layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(max(1, megabytes // 4))]
    model = torch.nn.Sequential(*layers).to(device)
    made = plan_files(model, None)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5")  # the most so far begins anew
    before, held = resident("VmRSS"), torch.cuda.memory_allocated() if on_gpu else 0
    begin, offset, size = time.perf_counter(), 0, made.weights.size
    with tempfile.TemporaryDirectory() as place, closing(DeliveredFiles(Path(place))) as files:
        for block in made.weights.blocks(made.held):
            part = FileDelivered(
                name=made.weights.name, size=size, offset=offset, length=len(block)
            )
            files.take(part, block)
            offset += len(block)
        files.keep()
        seconds = time.perf_counter() - begin
        return {
            "bytes": size,
            "host": max(0, resident("VmHWM") - before),
            "device": torch.cuda.max_memory_allocated() - held if on_gpu else None,
            "seconds": seconds,
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=512, help="of the model")
    given = parser.parse_args()
    found = measure(given.megabytes) | {"load": os.getloadavg()[0]}
    if given.json:
        print(json.dumps(found | {"machine": machine("torch", "cryptography")}))
        return
    device = "no GPU" if found["device"] is None else f"GPU {found['device'] / 1e6:.1f} MB"
    print(
        f"{found['bytes'] / 1e6:.0f} MB delivered in {found['seconds']:.2f} s at load "
        f"{found['load']:.1f}; beside the model: machine {found['host'] / 1e6:.1f} MB, {device}"
    )


if __name__ == "__main__":
    main()
