"""What a sealed checkpoint costs against plaintext ones of the same state, in one run.

    python benchmarks/checkpoint.py [--json] [--megabytes 256] [--rounds 7] [--layers 8]
                                    [--folder DIR] ...

The state is that of a small language model: float32 weights and two moments of Adam. Every writer
gets it in turn, on a file system in memory and on a disk, and ends with fsync.

==================  ==============================================================================
``safetensors``     ``safetensors.torch.save_file``
``torch.save``      ``torch.save``
``dcp``             ``torch.distributed.checkpoint.save`` in one process
``gocryptfs``       ``torch.save`` into a mounted gocryptfs, where it is installed
``sealed, new``     ``training.checkpoints.checkpoint.save`` into a new file
``sealed``          the same over the space of a checkpoint that is no longer kept, as a run does
                    from its third checkpoint on
``background``      ``CheckpointSaver``: until training may go on, and until all is sealed
==================  ==============================================================================

``cpu s/GB`` counts all threads: it says what a busy machine pays, where time says little. Memory is
what the process held at most above what it held before the first write, in sizes of the state.
``training`` trains a model in this process and seals checkpoints behind it: steps/s beside those
without a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from sealtrain.base.files import sync
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.saver import CheckpointSaver

RUN_ID = "be" * 16
Writer = Callable[[], dict[str, float]]


def main() -> None:
    """Run every comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=8, help="of the model that trains")
    parser.add_argument(
        "--folder", type=Path, action="append", help="where to write (default: memory and temp)"
    )
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    state = state_of(given.megabytes << 20)
    found = given.folder or [Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108
    results: dict[str, Any] = {"machine": machine(), "bytes": size_of(state)}
    for folder in found:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            results[str(folder)] = compare(Path(name), state, given.rounds)
    with tempfile.TemporaryDirectory(dir=found[0]) as name:
        results["training"] = behind_training(Path(name), given.layers)
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        show(results, found)


def machine() -> dict[str, Any]:
    """What the figures hold for."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def state_of(size: int) -> dict[str, Any]:
    """Weights and moments of about ``size`` bytes in tensors of many sizes."""
    generator = torch.Generator().manual_seed(1)
    third, made, weights = size // 12, 0, {}
    shapes = [(2048, 512), (512, 512), (512, 2048), (512,)]
    while made < third:
        shape = shapes[len(weights) % len(shapes)]
        tensor = torch.randn(shape, generator=generator)
        weights[f"layer.{len(weights)}"] = tensor
        made += tensor.numel()
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": weight * 0.1, "exp_avg_sq": weight * weight}
        for number, weight in enumerate(weights.values())
    }
    return {"model": weights, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1}]}}


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The same tensors under one name each, as safetensors and DCP take them."""
    found = dict(state["model"])
    for number, entry in state["optimizer"]["state"].items():
        found |= {f"optimizer.{number}.{name}": tensor for name, tensor in entry.items()}
    return found


def size_of(state: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in flat(state).values())


def compare(folder: Path, state: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds, GB/s and memory of every writer, in turn, after a round thrown away."""
    size = size_of(state)
    with gocryptfs(folder) as mounted, writers(folder, state, mounted) as each:
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in each}
        memory: dict[str, float] = {}
        for number in range(rounds + 1):
            for name, write in each.items():
                before = resident(peak=False)
                Path("/proc/self/clear_refs").write_text("5")
                used = time.process_time()
                figures = write() | {"processor": time.process_time() - used}
                if number:
                    measured[name].append(figures)
                else:
                    memory[name] = max(resident(peak=True) - before, 0) / size
    results = {}
    for name, figures in measured.items():
        row = {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
        row["gb_s"] = size / row["seconds"] / 1e9
        row["memory"] = memory[name]
        row["processor"] /= size / 1e9
        results[name] = row
    for name, row in results.items():
        row["of_safetensors"] = results["safetensors"]["seconds"] / row["seconds"]
        row["of_torch"] = results["torch.save"]["seconds"] / row["seconds"]
        row["stall_of_torch"] = row["stall"] / results["torch.save"]["stall"]
        results[name] = {key: round(value, 4) for key, value in row.items()}
    return results


@contextmanager
def writers(
    folder: Path, state: dict[str, Any], mounted: Path | None
) -> Iterator[dict[str, Writer]]:
    """Every writer by name; each writes a whole checkpoint and reports seconds and stall."""
    tensors = flat(state)
    key = DataKey.generate()
    fresh, kept, behind = (
        CheckpointStore(folder / name, key, label=name) for name in ("fresh", "kept", "behind")
    )
    saver = CheckpointSaver(behind, RUN_ID, on_sealed=lambda ref: None, keep=1)

    def safetensors() -> None:
        save_file(tensors, folder / "a.safetensors")
        sync(folder / "a.safetensors")

    def torch_save(to: Path) -> None:
        torch.save(state, to / "a.pt")
        sync(to / "a.pt")

    def distributed() -> None:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / "dcp"), no_dist=True)

    def sealed_new() -> None:
        checkpoint.save(fresh, RUN_ID, 1, 1, state)

    def sealed() -> None:
        checkpoint.save(kept, RUN_ID, 1, 1, state)

    def background() -> dict[str, float]:
        began = time.perf_counter()
        saver.save(1, state)
        stall = time.perf_counter() - began
        saver.flush()
        return {"seconds": time.perf_counter() - began, "stall": stall}

    def after(write: Callable[[], None], clean: Callable[[], Any]) -> Writer:
        def timed() -> dict[str, float]:
            began = time.perf_counter()
            write()
            seconds = time.perf_counter() - began
            clean()
            return {"seconds": seconds, "stall": seconds}

        return timed

    one = checkpoint.CheckpointRef(counter=1, step=1).name
    each: dict[str, Writer] = {
        "safetensors": after(safetensors, (folder / "a.safetensors").unlink),
        "torch.save": after(lambda: torch_save(folder), (folder / "a.pt").unlink),
        "dcp": after(distributed, lambda: shutil.rmtree(folder / "dcp")),
        "sealed, new": after(sealed_new, lambda: fresh.remove(one)),
        "sealed": after(sealed, lambda: kept.retire(one)),
        "background": background,
    }
    if mounted is not None:
        each["gocryptfs"] = after(lambda: torch_save(mounted), (mounted / "a.pt").unlink)
    try:
        yield each
    finally:
        saver.close()


@contextmanager
def gocryptfs(folder: Path) -> Iterator[Path | None]:
    """A mounted gocryptfs inside ``folder``, or nothing where there is none."""
    program = shutil.which("gocryptfs")
    cipher, plain = folder / "cipher", folder / "plain"
    cipher.mkdir()
    plain.mkdir()
    words = [program or "", "-q", "-extpass", "echo bench"]
    if program is None or not all(
        subprocess.run(more, capture_output=True, check=False).returncode == 0
        for more in ([*words, "-init", str(cipher)], [*words, str(cipher), str(plain)])
    ):
        yield None
        return
    try:
        yield plain
    finally:
        subprocess.run(["fusermount", "-u", str(plain)], check=False)


def behind_training(folder: Path, depth: int) -> dict[str, float]:
    """Steps/s of a small model alone and while a checkpoint of it is being sealed."""
    torch.manual_seed(1)
    layers = [
        torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(depth)
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(1, 32, 512)

    def steps(at_least: int, pending: Future[None] | None) -> tuple[int, float]:
        done, began = 0, time.perf_counter()
        while done < at_least or not (pending is None or pending.done()):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        return done, time.perf_counter() - began

    steps(2, None)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    store = CheckpointStore(folder, DataKey.generate(), label="training")
    complete: list[float] = []
    saver = CheckpointSaver(
        store, RUN_ID, on_sealed=lambda ref: complete.append(time.perf_counter()), keep=1
    )
    alone, beside, sealed, stalls = [], [], [], []
    for number in range(6):
        done, seconds = steps(5, None)
        alone.append(done / seconds)
        began = time.perf_counter()
        saver.save(number, state)
        stalls.append(time.perf_counter() - began)
        done, seconds = steps(1, saver._pending)
        saver.flush()
        sealed.append(complete[-1] - began)
        beside.append(done / seconds)
    saver.close()
    size = sum(tensor.nbytes for tensor in model.state_dict().values()) * 3
    return {
        "bytes": size,
        "steps_s_alone": round(statistics.median(alone), 3),
        "steps_s_beside": round(statistics.median(beside[3:]), 3),
        "stall_s": round(statistics.median(stalls[3:]), 4),
        "sealed_gb_s": round(size / statistics.median(sealed[3:]) / 1e9, 3),
    }


def show(results: dict[str, Any], folders: list[Path]) -> None:
    """The table for people."""
    print(f"state {results['bytes'] / 1e6:.0f} MB; {results['machine']}")
    for folder in folders:
        print(f"\n{folder}")
        head = (
            "GB/s", "stall s", "cpu s/GB", "memory", "÷ safetensors", "÷ torch.save", "stall ÷",
        )  # fmt: skip
        print(f"{'':14}" + "".join(f"{title:>15}" for title in head))
        for name, row in results[str(folder)].items():
            figures = (
                row["gb_s"], row["stall"], row["processor"], row["memory"],
                row["of_safetensors"], row["of_torch"], row["stall_of_torch"],
            )  # fmt: skip
            print(f"{name:14}" + "".join(f"{figure:15.3f}" for figure in figures))
    print("\ntraining", results["training"])


def resident(*, peak: bool) -> int:
    """Bytes this process holds, or held at most since ``clear_refs``."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
