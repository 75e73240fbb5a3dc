"""One sealed dataset read by 1, 4 and 16 simulated nodes: memory, order, index, and a plan.

    python benchmarks/scale.py [--gigabytes 100] [--nodes 1 4 16] [--json] [--write]

A node is a process with its own connection to the store and its own memory. All nodes read the same
stretches of an epoch: at its beginning, in its middle, and over its end into the next. The order
must be the same for any number of nodes, also where a run goes on with another number. ``--write``
makes the page ``docs/reference/benchmarks/scale.md``. ``scale_store`` says what is generated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from measured_on import machine
from scale_node import Read, Task, planned, read
from scale_page import page
from scale_plan import Plan, broker_constants, plan, run_log_bytes
from scale_store import ROWS_A_SHARD, Generated, SealedSet, sealed_sets, serving
from sealtrain.training.data.rank_part import RankPart

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks" / "scale.md"
STEP = 1024
STEPS = 16
"""Steps of a stretch; eight rounds, so every lane comes to a next batch."""
LONG_STEPS = 160
"""Of a stretch that says what an epoch costs, beginnings aside."""
NODES = multiprocessing.get_context("forkserver")
NODES.set_forkserver_preload(["scale_node"])


def measure(gigabytes: list[int], nodes: list[int], folder: Path) -> dict[str, Any]:
    """Every figure.

    Args:
        gigabytes: Sizes of datasets, ascending.
        nodes: Numbers of nodes.
        folder: For the broker; empty.
    """
    sets, ends, sealing = sealed_sets(gigabytes)
    found: dict[str, Any] = {
        "machine": machine("pyarrow", "numpy", "cryptography", load=os.getloadavg()[0]),
        "sealing": {
            "seconds": sealing,
            "bytes_a_s": sets[-1].size / sum(end.seconds for end in ends),
        },
        "sets": [asdict(dataset) | {"index": len(dataset.index)} for dataset in sets],
        "rows": [dataset.shards * ROWS_A_SHARD for dataset in sets],
        "reads": [],
    }
    with serving(sets, ends) as store:
        orders = {
            (dataset.name, world): _read(store, dataset, world, windows(dataset), found["reads"])
            for dataset in sets
            for world in nodes
        }
        largest = sets[-1]
        found["orders"] = {
            dataset.name: {str(world): digest(orders[dataset.name, world]) for world in nodes}
            for dataset in sets
        }
        found["resumed"] = _resumed(store, largest, nodes, orders[largest.name, nodes[0]])
        found["planned"] = _planned(store, largest)
        found["ranks"] = _ranks(store, sets[0])
        middle = windows(largest)[1][0]
        long: list[dict[str, Any]] = []
        _read(store, largest, 1, [(middle, middle + LONG_STEPS * STEP)], long)
        found["long"] = long[0]
    found["shared"] = _told_by("scale_share.py")
    found["constants"] = constants(found, folder)
    wanted = Plan()
    found["plan"] = {
        "plan": asdict(wanted),
        "rows": [asdict(row) for row in plan(found["constants"], wanted)],
    }
    return found


def windows(one: SealedSet) -> list[tuple[int, int]]:
    """Stretches of whole steps: at the beginning, in the middle, and over the end of an epoch."""
    steps = one.shards * ROWS_A_SHARD // STEP
    return [(first * STEP, (first + STEPS) * STEP) for first in (0, steps // 2, steps - STEPS // 2)]


def _read(
    store: Generated,
    one: SealedSet,
    world: int,
    stretches: list[tuple[int, int]],
    told: list[dict[str, Any]] | None = None,
) -> list[list[bytes]]:
    """Have so many nodes read some stretches together; the digests of all steps, by stretch."""
    start = NODES.Barrier(world)
    before = store.counted()
    running: list[tuple[Any, Connection]] = []
    for rank in range(world):
        task = Task(
            url=f"{store.url}/{one.name}",
            root=one.root,
            part=RankPart(rank=rank, world=world, step=STEP),
            windows=stretches,
        )
        here, there = NODES.Pipe()
        process = NODES.Process(target=read, args=(task, there, start))
        process.start()
        there.close()
        running.append((process, here))
    reads: list[Read] = [here.recv() for _, here in running]
    for process, _ in running:
        process.join(60)
    asked, sent = (after - first for after, first in zip(store.counted(), before, strict=True))
    if told is not None:
        told.append(_told(one, world, reads, asked, sent))
    return [steps_of(reads, number) for number in range(len(stretches))]


def _told(one: SealedSet, world: int, reads: list[Read], asked: int, sent: int) -> dict[str, Any]:
    rows = sum(len(ids) for node in reads for ids in node.ids)
    slowest = [max(node.seconds[at] for node in reads) for at in range(len(reads[0].seconds))]
    return {
        "set": one.name,
        "nodes": world,
        "rows": rows,
        "rows_s": rows / sum(slowest),
        "first_ms": 1000 * max(max(node.first) for node in reads),
        "open_s": min(node.open_seconds for node in reads),
        "base_mib": max(node.base_mib for node in reads),
        "opened_mib": max(node.opened_mib for node in reads),
        "peak_mib": max(node.peak_mib for node in reads),
        "growth_mib": max(node.peak_mib - node.base_mib for node in reads),
        "requests": asked,
        "open_requests": reads[0].open_requests,
        "sent": sent,
        "bytes": rows * one.size / (one.shards * ROWS_A_SHARD),
    }


def steps_of(reads: list[Read], number: int) -> list[bytes]:
    """Digest of the ids of each step of a stretch, in the order of the stream."""
    positions = np.concatenate([node.positions[number] for node in reads])
    ids = np.concatenate([node.ids[number] for node in reads])
    by_position = np.argsort(positions)
    if not (np.diff(positions[by_position]) == 1).all():
        raise SystemExit("the nodes left a row out, or read one twice")
    return [
        hashlib.sha256(step.astype("<i8").tobytes()).digest()
        for step in ids[by_position].reshape(-1, STEP)
    ]


def digest(stretches: list[list[bytes]]) -> str:
    """One digest for all steps."""
    return hashlib.sha256(b"".join(b"".join(steps) for steps in stretches)).hexdigest()


def _resumed(
    store: Generated, one: SealedSet, nodes: list[int], whole: list[list[bytes]]
) -> dict[str, Any]:
    """Read the middle stretch with one number of nodes, and go on in its middle with another."""
    low, high = windows(one)[1]
    half = low + STEPS // 2 * STEP
    before, after = nodes[-1], nodes[len(nodes) // 2]
    steps = [
        *_read(store, one, before, [(low, half)])[0],
        *_read(store, one, after, [(half, high)])[0],
    ]
    return {"before": before, "after": after, "step": half // STEP, "same": steps == whole[1]}


def _planned(store: Generated, one: SealedSet) -> dict[str, Any]:
    here, there = NODES.Pipe()
    process = NODES.Process(target=planned, args=(f"{store.url}/{one.name}", one.root, there))
    process.start()
    answer: dict[str, Any] = here.recv()
    process.join(60)
    return answer


def _ranks(store: Generated, one: SealedSet) -> list[dict[str, Any]]:
    """What ``scale_ranks`` counts, in a process that may fork beside no thread."""
    return _told_by("scale_ranks.py", f"{store.url}/{one.name}", one.root)


def _told_by(program: str, *words: str) -> list[dict[str, Any]]:
    """What a program beside this one prints, in a process of its own."""
    asked = [sys.executable, str(Path(__file__).with_name(program)), *words]
    done = subprocess.run(asked, stdout=subprocess.PIPE, check=True, timeout=900)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def constants(found: dict[str, Any], folder: Path) -> dict[str, float]:
    """What the plan multiplies: slopes between the smallest and the largest dataset."""
    small, large = found["sets"][0], found["sets"][-1]
    alone = [read for read in found["reads"] if read["nodes"] == found["reads"][0]["nodes"]]
    more = (large["size"] - small["size"]) / 1e9

    def slope(before: float, after: float) -> float:
        return max(0.0, after - before) / more

    return {
        "index_bytes_a_gb": slope(small["index"], large["index"]),
        "shards_a_gb": slope(small["shards"], large["shards"]),
        "open_s_a_gb": slope(alone[0]["open_s"], alone[-1]["open_s"]),
        "memory_a_gb": 2**20 * slope(alone[0]["opened_mib"], alone[-1]["opened_mib"]),
        "fetched_a_byte": found["long"]["sent"] / found["long"]["bytes"],
        "seal_bytes_a_s": found["sealing"]["bytes_a_s"],
        "opened_by_ranks": found["ranks"][-1]["together"]["opened"]["all"]
        / found["ranks"][0]["alone"]["opened"]["all"],
        "run_log_entry": run_log_bytes(),
        "share_bytes_a_s": found["shared"][-1]["bytes"] / found["shared"][-1]["seconds"],
        "shared_by_first": found["shared"][-1]["sent_by_first"],
        **broker_constants(folder / "broker"),
    }


def broken(found: dict[str, Any], nodes: list[int]) -> list[str]:
    """What must hold and does not."""
    wrong = [
        f"order of {name} differs between numbers of nodes"
        for name, digests in found["orders"].items()
        if len(set(digests.values())) != 1
    ]
    if not found["resumed"]["same"]:
        wrong.append("order changed on resuming with another number of nodes")
    if not all(rank["same"] for rank in found["ranks"]):
        wrong.append("ranks that prepare rows together train on other rows")
    if not found["planned"]["once"]:
        wrong.append("an epoch leaves a row out")
    return wrong


def main() -> None:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=int, default=100, help="size of the largest dataset")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    if given.gigabytes < 2 or any(count < 1 or STEP % count for count in given.nodes):
        parser.error(f"at least two gigabytes, and numbers of nodes that divide {STEP}")
    began = time.perf_counter()
    sizes = sorted({max(1, given.gigabytes // 100), max(1, given.gigabytes // 10), given.gigabytes})
    with tempfile.TemporaryDirectory() as folder:
        found = measure(sizes, given.nodes, Path(folder))
    found["seconds"] = time.perf_counter() - began
    wrong = broken(found, given.nodes)
    if given.json:
        print(json.dumps(found, indent=2))
    elif given.write:
        PAGE.write_text(page(found))
    else:
        print(page(found))
    if wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
