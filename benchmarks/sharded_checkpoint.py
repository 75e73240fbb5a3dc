"""What a checkpoint in sealed shards costs against one in the clear, in ranks of one machine.

    python benchmarks/sharded_checkpoint.py [--json] [--ranks 2 4] [--megabytes 256] [--rounds 5]
                                            [--folder DIR]

Each rank holds its shard of a model's float32 weights and of two moments. Both writers plan with
PyTorch's planner, in the same ranks, in turn, and end with fsync.

===============  =================================================================================
``dcp``          ``torch.distributed.checkpoint.save`` into files in the clear
``sealed``       ``ShardSaver.save`` and ``settle`` into sealed files, and the sealed index, over
                 the space of a checkpoint that is no longer kept, as a run does
``stall``        until training may go on: the copy into staging memory, and the plan
``sealed load``  back into tensors of the same ranks, every byte authenticated; beside ``dcp load``
===============  =================================================================================

``of_dcp`` is the throughput of the sealed checkpoint ÷ that of the one in the clear. Processor
seconds are those of all ranks: with more ranks than processors, and with other work beside, time
says little and they say more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shards import retire_orphans
from sealtrain.training.checkpoints.shardsaver import ShardSaver

RUN_ID = "be" * 16
ROWS = 1024


def main() -> None:
    """Run every number of ranks and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=int, default=256, help="of the state of all ranks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    results: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "bytes": given.megabytes << 20,
    }
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            torch.multiprocessing.spawn(
                measure, (ranks, Path(name), given.megabytes << 20, given.rounds), nprocs=ranks
            )
            results[str(ranks)] = json.loads((Path(name) / "figures.json").read_text())
    if given.json:
        print(json.dumps(results, indent=2))
        return
    for ranks in given.ranks:
        for name, row in results[str(ranks)].items():
            print(f"{ranks} ranks  {name:12}", *(f"{key} {row[key]:.3f}" for key in row))


def measure(rank: int, world: int, folder: Path, size: int, rounds: int) -> None:
    """One rank's whole life; the first writes the figures."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    state = state_of(size, world)
    store = CheckpointStore(folder / "sealed", DataKey(b"k" * 32), label=RUN_ID)
    saver = ShardSaver(store, RUN_ID)
    measured: dict[str, list[tuple[float, float]]] = {}
    previous = ""
    for number in range(1, rounds + 3):
        clear = folder / "clear"
        took = {"dcp": time_work(lambda clear=clear: dcp.save(state, checkpoint_id=clear))}
        took["dcp load"] = time_work(lambda clear=clear: dcp.load(state, checkpoint_id=clear))
        wanted = CheckpointRef(counter=number, step=number, previous=previous)
        begun, used = time.monotonic(), time.process_time()
        saver.save(wanted if rank == 0 else None, state)
        took["stall"] = time.monotonic() - begun, time.process_time() - used
        index = saver.settle(wait=True, make_room=lambda: None)
        if index is None:
            raise AssertionError("all ranks waited")
        ref = None
        if rank == 0:
            kept = {"shards": index.to_state()}
            ref = checkpoint.save(store, RUN_ID, number, number, kept, previous=previous)
        told = [ref]
        dist.broadcast_object_list(told)
        took["sealed"] = time.monotonic() - begun, time.process_time() - used
        ref = told[0]
        kept = checkpoint.load(store, RUN_ID, ref)["shards"]
        took["sealed load"] = time_work(lambda ref=ref, kept=kept: saver.load(ref, kept, state))
        previous = ref.digest
        if rank == 0:
            checkpoint.prune(store, 1)
            retire_orphans(store, number)
            shutil.rmtree(clear)
        dist.barrier()
        if number > 2:  # the first two write into new space
            for name, figures in took.items():
                measured.setdefault(name, []).append(figures)
    saver.close()
    report(folder, rank, measured, size)
    dist.destroy_process_group()


def state_of(size: int, world: int) -> dict[str, Any]:
    """Weights and moments of ``size`` bytes, shared out."""
    mesh = init_device_mesh("cpu", (world,))
    columns = 1024
    count = max(1, size // (ROWS * columns * 4))
    if count < 3:
        count, columns = 3, max(1, size // (ROWS * 4 * 3))
    generator = torch.Generator().manual_seed(1)
    return {
        f"tensor{number}": distribute_tensor(
            torch.randn((ROWS, columns), generator=generator), mesh, [Shard(0)]
        )
        for number in range(count)
    }


def time_work(work: Any) -> tuple[float, float]:
    """Seconds until all ranks are done, and this rank's processor seconds."""
    dist.barrier()
    begun, used = time.monotonic(), time.process_time()
    work()
    dist.barrier()
    return time.monotonic() - begun, time.process_time() - used


def report(
    folder: Path, rank: int, measured: dict[str, list[tuple[float, float]]], size: int
) -> None:
    """Medians over the rounds, with the processor seconds of all ranks."""
    results = {}
    for name, figures in measured.items():
        seconds = statistics.median(took for took, _ in figures)
        processor = torch.tensor([statistics.median(used for _, used in figures)])
        dist.all_reduce(processor)
        results[name] = {
            "seconds": seconds,
            "gb_s": size / seconds / 1e9,
            "cpu_s_per_gb": float(processor) / size * 1e9,
        }
    for ours, theirs in (("sealed", "dcp"), ("sealed load", "dcp load")):
        own, other = results[ours], results[theirs]
        own["of_dcp"] = other["seconds"] / own["seconds"]
        own["cpu_of_dcp"] = own["cpu_s_per_gb"] / other["cpu_s_per_gb"]
    if rank == 0:
        (folder / "figures.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
