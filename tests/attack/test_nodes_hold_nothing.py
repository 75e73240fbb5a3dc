"""What the processes of two nodes hold while they train, as the kernel lists it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from collecting import COLLECTING
from polling import wait_until
from run_processes import keeper_of, of_life
from stage import stage

if not COLLECTING:
    from nodes_world import Nodes, recipe_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.claim("C607", "C609"),
]

LISTENS = "0A"  # of /proc/net/tcp
RANKS = 2
WORLD = 2 * RANKS
PLANTED = "planted-5d1c77"
KINDS = re.compile(
    r"/dev/(null|urandom)|socket:\[\d+\]|pipe:\[\d+\]|anon_inode:\S+|/memfd:\S+ \(deleted\)"
    r"|/dev/shm/sealtrain-run-[0-9a-f]+"
)
CHANNEL = 3
"""Sockets of a rank."""


def descriptors(pid: int) -> list[str]:
    found = []
    for place in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(place.readlink()))
        except OSError:  # of the listing itself
            continue
    return found


def inodes(kind: str) -> set[str]:
    """Of the sockets of a kind on this machine."""
    lines = Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    at = {"tcp": 9, "unix": 6}[kind]
    return {f"socket:[{line.split()[at]}]" for line in lines}


def tcp_ends() -> dict[str, tuple[str, str]]:
    """Own and other end of each TCP connection of this machine, by its socket."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]": (row[1], row[2]) for row in rows if row[3] != LISTENS}


def test_the_workload_of_each_node_has_its_connections_and_its_channel(tmp_path: Path) -> None:
    with stage(tmp_path) as world:
        world.anew = True  # as an operator starts them
        world.variables["AWS_SECRET_ACCESS_KEY"] = PLANTED
        both = Nodes(world, "both", recipe_of(2, steps=100_000, ranks=RANKS))
        out = tmp_path / "run"
        with both.lead("run") as (lead, place), both.join(1, place, out="n1") as other:
            wait_until(lambda: any((out / "checkpoints").glob("*")) or lead.gone or other.gone, 200)
            assert not lead.gone, "\n".join(lead.read_stderr())
            assert not other.gone, "\n".join(other.read_stderr())
            tcp, unix, ends = inodes("tcp"), inodes("unix"), tcp_ends()
            for part in (lead, other):
                ranks = of_life(part.pid)
                assert len(ranks) == RANKS
                keeper = keeper_of(ranks[0])
                here = {
                    ends[share] for rank in ranks for share in descriptors(rank) if share in ends
                }
                for rank in ranks:
                    held = descriptors(rank)
                    assert [share for share in held if not KINDS.fullmatch(share)] == []
                    # One to each rank of the other node; the others end in this node's own ranks.
                    across = [ends[share] for share in held if share in ends]
                    across = [pair for pair in across if (pair[1], pair[0]) not in here]
                    assert len(across) == WORLD - RANKS
                    # The first forked the other: both ends of its ranks, and a line to the other.
                    assert sum(share in unix for share in held) == RANKS * CHANNEL + RANKS - 1
                    assert not tcp & set(held) & set(descriptors(keeper))
                    assert PLANTED.encode() not in Path(f"/proc/{rank}/environ").read_bytes()
                    status = Path(f"/proc/{rank}/status").read_text()
                    assert "Seccomp:\t2" in status
                    assert "CapEff:\t0000000000000000" in status
                    maps = Path(f"/proc/{rank}/maps").read_text()
                    assert ".sealed" not in maps
                    assert str(tmp_path / "run") not in maps
                assert "libtorch" not in Path(f"/proc/{keeper}/maps").read_text()
            assert lead.end(signal.SIGTERM) == 143, "\n".join(
                [*lead.read_stderr(), *other.read_stderr()]
            )
            other.end()
