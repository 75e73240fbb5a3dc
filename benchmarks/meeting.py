"""How soon the nodes of a run know each other: each proves itself to the lead, and it to each.

    python benchmarks/meeting.py [--json] [--nodes 16] [--ranks 1] [--times 3]

Each node is a process of its own on this machine, and comes as soon as the lead listens. Guests are
simulated, so evidence is made and verified as that of hardware, under another root; handshakes,
receipts and addresses are those of a run (spec/nodes.md §3). Keys are not asked for: what a broker
needs for that is measured by ``release.py``.

===========  =====================================================================================
``met``      from when the lead listens until each node has every address, key and secret
``one``      the same of a run of two nodes: what one node's handshake takes
``lead``     processor time of the lead for all of it
``nodes``    the same of all other nodes
===========  =====================================================================================
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measured_on import machine

REPOSITORY = Path(__file__).resolve().parents[1]
WORLDS = REPOSITORY / "tests" / "support"  # a consortium, and nodes that come to its lead
GOAL_S = 5.0
PATIENCE_S = 60.0


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=_as_written)
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--nodes", type=int, default=16)
    asked.add_argument("--ranks", type=int, default=1)
    asked.add_argument("--times", type=int, default=3)
    given = asked.parse_args()
    sys.path.insert(0, str(WORLDS))
    found = {
        "machine": machine(),
        "nodes": given.nodes,
        "ranks": given.ranks,
        "one": _measured(2, given.ranks, given.times)["met"],
        **_measured(given.nodes, given.ranks, given.times),
    }
    if given.json:
        print(json.dumps(found))
        return
    print("machine    " + ", ".join(map(str, found["machine"].values())))
    print(f"{given.nodes} nodes of {given.ranks} ranks, median of {given.times}")
    for name in ("met", "one", "lead", "nodes_cpu"):
        print(f"{name:<10} {found[name]:.2f} s")
    print("goal       " + ("reached" if found["met"] < GOAL_S else f"missed: {GOAL_S} s"))


_as_written = argparse.RawDescriptionHelpFormatter


def _measured(nodes: int, ranks: int, times: int) -> dict[str, float]:
    """Medians of some meetings."""
    from meeting_world import nodes_world

    with tempfile.TemporaryDirectory() as folder:
        world = nodes_world(Path(folder), nodes=nodes, ranks=ranks, join_seconds=int(PATIENCE_S))
        meetings = [_meeting(world, Path(folder)) for _ in range(times)]
    return {name: statistics.median(meeting[name] for meeting in meetings) for name in meetings[0]}


def _meeting(world: Any, folder: Path) -> dict[str, float]:
    from meeting_world import Lead, Run

    nodes = world.locked.lock.recipe.collaboration.nodes
    forking = multiprocessing.get_context("fork")
    run, pipes = Run(world, folder), []
    processes = []
    for number in range(1, nodes):
        here, there = forking.Pipe()
        processes.append(forking.Process(target=_node, args=(world, number, there)))
        processes[-1].start()
        pipes.append(here)
    for pipe in pipes:
        _next(pipe)  # it has started
    cpu, begun = time.process_time(), time.monotonic()
    with Lead(run) as lead:
        for pipe in pipes:
            pipe.send(lead.address)
        lead.met()
        spent = time.process_time() - cpu
        told = [_next(pipe) for pipe in pipes]
        met = time.monotonic() - begun
        for pipe in pipes:
            pipe.send(None)
    for process in processes:
        process.join(PATIENCE_S)
    return {"met": met, "lead": spent, "nodes_cpu": sum(told)}


def _node(world: Any, number: int, pipe: Connection) -> None:
    """Another node: processor time that it took to know the others."""
    from meeting_world import Node

    pipe.send(0.0)
    address = pipe.recv()
    cpu = time.process_time()
    with Node(world, number, address, seconds=PATIENCE_S) as node:
        node.welcomed()
        with node.introduced():
            pipe.send(time.process_time() - cpu)
            pipe.recv()


def _next(pipe: Connection) -> float:
    if not pipe.poll(PATIENCE_S):
        raise SystemExit("a node did not come")
    return float(pipe.recv())


if __name__ == "__main__":
    main()
