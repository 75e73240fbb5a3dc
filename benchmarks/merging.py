"""What it takes a lead to merge the adapters of many parties, by each rule.

    python benchmarks/merging.py [--json] [--parties 30] [--layers 22] [--width 2048] [--rank 16]
                                 [--times 3]

Two adapted square matrices a layer, of parties that have nothing in common: the hardest case for
the rule ``exact``. ``through QR`` is the same product through two QR factorisations and a full SVD,
as a plain implementation does it; both are timed in turns, on all threads. ``apart`` is the largest
difference between the two products over all matrices, relative to their norm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from measured_on import machine
from sealtrain_together.federated.merging import factor_pairs, merge
from sealtrain_together.federated.update import Update

State = dict[str, torch.Tensor]
GOAL_S = 2.0


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", action="store_true")
    for name, usual in (("parties", 30), ("layers", 22), ("width", 2048), ("rank", 16)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    asked.add_argument("--times", type=int, default=3)
    given = asked.parse_args()
    updates = [
        Update(party=f"party-{number:03}", weight=100 + number, state=_adapter(number, given))
        for number in range(given.parties)
    ]
    before = _adapter(given.parties, given)
    ways: dict[str, Callable[[], State]] = {
        "exact": lambda: merge("exact", updates, before, rank=given.rank),
        "through QR": lambda: _through_qr(updates, before, given.rank),
        "fedavg": lambda: merge("fedavg", updates, before),
        "median": lambda: merge("median", updates, before),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    merged: dict[str, State] = {}
    for _ in range(given.times):
        for name, way in ways.items():
            began = time.perf_counter()
            merged[name] = way()
            taken[name].append(time.perf_counter() - began)
    middle = {name: statistics.median(times) for name, times in taken.items()}
    seconds = {name: round(median, 2) for name, median in middle.items()}
    apart = max(
        _apart(merged["exact"], merged["through QR"], *pair) for pair in factor_pairs(list(before))
    )
    size = sum(tensor.nbytes for tensor in before.values()) / 2**20
    told = {**machine(), "threads": torch.get_num_threads()}
    found = {
        "machine": told,
        "adapter_mib": round(size, 1),
        "seconds": seconds,
        "ratio": round(middle["exact"] / middle["through QR"], 2),
        "apart": apart,
    }
    if given.json:
        print(json.dumps(found))
        return
    print("machine    " + ", ".join(map(str, told.values())))
    print(f"{given.parties} parties, {size:.1f} MiB each, median of {given.times}")
    for name, second in seconds.items():
        print(f"{name:10} {second:6.2f} s")
    print(
        f"exact / through QR {found['ratio']:.2f}; apart {apart:.1e}; goal for exact {GOAL_S:.0f} s"
    )


def _adapter(seed: int, given: argparse.Namespace) -> State:
    chance = torch.Generator().manual_seed(seed)
    state = {}
    for layer in range(given.layers):
        for each_name in ("q", "v"):
            name = f"model.{layer}.{each_name}"
            state[f"{name}.lora_A.default.weight"] = 0.01 * torch.randn(
                given.rank, given.width, generator=chance
            )
            state[f"{name}.lora_B.default.weight"] = 0.01 * torch.randn(
                given.width, given.rank, generator=chance
            )
    return state


def _through_qr(updates: list[Update], before: State, rank: int) -> State:
    total = sum(update.weight for update in updates)
    merged = {}
    for name_a, name_b in factor_pairs(list(before)):
        left = torch.cat(
            [update.weight / total * update.state[name_b].double() for update in updates], dim=1
        )
        right = torch.cat([update.state[name_a].double() for update in updates])
        basis_out, upper_out = torch.linalg.qr(left)
        basis_in, upper_in = torch.linalg.qr(right.T)
        core, sizes, turned = torch.linalg.svd(upper_out @ upper_in.T, full_matrices=False)
        merged[name_a] = (turned[:rank] @ basis_in.T).float()
        merged[name_b] = ((basis_out @ core * sizes)[:, :rank]).float()
    return merged


def _apart(one: State, other: State, name_a: str, name_b: str) -> float:
    first, second = one[name_b] @ one[name_a], other[name_b] @ other[name_a]
    return float((first - second).norm() / second.norm())


if __name__ == "__main__":
    main()
