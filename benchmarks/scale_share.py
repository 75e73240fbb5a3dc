"""What passing a checkpoint on costs: bytes that node 0 sends, and how soon every node has it.

    python benchmarks/scale_share.py [--megabytes 256] [--nodes 2 4 8]

Each node is a process of this machine that is connected to every other over node-wire, as the first
ranks of the nodes of a run are; the bytes come from memory and go nowhere (spec/nodes.md §3.1).
All nodes share the processors, so rates fall with their number here and not on machines of their
own; the share that node 0 sends does not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, cast

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))  # ranks that are forked and connected

from wire_world import ranks  # noqa: E402

from sealtrain_nodes.sharing import Sharing  # noqa: E402
from sealtrain_nodes.wire.meeting import Wire  # noqa: E402


class _Nowhere:
    """A file of zeros that takes and keeps nothing."""

    def readinto(self, piece: memoryview) -> int:
        return len(piece)

    def write(self, piece: memoryview) -> int:
        return len(piece)


def measured(nodes: int, size: int) -> dict[str, Any]:
    """Share so many bytes among so many nodes."""

    def work(rank: int, wire: Wire) -> tuple[float, int]:
        sharing, file = Sharing(wire, 1), cast(BinaryIO, _Nowhere())
        way = sharing.send if rank == 0 else sharing.receive
        way(file, 1 << 20)  # buffers are there, and all ranks have begun
        before, began = wire.engine.bytes_sent, time.perf_counter()
        way(file, size)
        return time.perf_counter() - began, wire.engine.bytes_sent - before

    found = ranks(nodes, work)
    for value in found:
        if isinstance(value, BaseException):
            raise value
    return {
        "nodes": nodes,
        "bytes": size,
        "seconds": max(seconds for seconds, _sent in found),
        "sent_by_first": found[0][1] / size,
        "sent_by_others": max(sent for _seconds, sent in found[1:]) / size,
    }


def main() -> None:
    """Measure, and print JSON."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--megabytes", type=int, default=256)
    asked.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    given = asked.parse_args()
    print(json.dumps([measured(nodes, given.megabytes << 20) for nodes in given.nodes]))


if __name__ == "__main__":
    main()
