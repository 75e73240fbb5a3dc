"""Programs for torchrun under ranks of several nodes: they get the wire, or a refusal by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain_nodes.wire.meeting import Wire

if not COLLECTING:
    import torch
    import torch.distributed as dist
    from wire_world import Relay, World, ranks

    from sealtrain_nodes.wire.joining import BACKEND

pytestmark = pytest.mark.claim("C167")

ATTEMPTS = 3
PROGRAM = (Path(__file__).parents[1] / "support" / "torchrun_script.txt").read_text()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while World.made:
        World.made.pop().close()


def run_program(backend: str | None) -> Any:
    """Weights that the program ends with."""
    weights: list[Any] = []
    exec(PROGRAM, {"__name__": "__main__", "BACKEND": backend, "WEIGHTS": weights})  # noqa: S102
    return weights[0].numpy().tobytes()


def environment(rank: int, world: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def listening() -> set[str]:
    """Sockets of this process that listen."""
    mine = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}


def played(rank: int, wire: Wire) -> dict[str, tuple[bool, bytes]]:
    found = {}
    for backend in (None, "gloo", "nccl", "cpu:gloo,cuda:nccl"):
        environment(rank, wire.world, 1)  # nothing listens there
        before = listening()
        weights = run_program(backend)
        found[str(backend)] = (listening() == before and dist.get_backend() == BACKEND, weights)
        dist.destroy_process_group()
    return found


def over_gloo(folder: Path) -> bytes:
    """The weights of the same program as torchrun runs it, in the clear over loopback.

    Without its last lines: gloo's second group finds the keys of the first in torchrun's store, and
    may wait for ever.
    """
    trained, _barrier, _again = PROGRAM.partition("dist.barrier()")
    program = folder / "program.py"
    begins = "import os\nBACKEND, WEIGHTS = 'gloo', []\n"
    kept = "open('weights', 'wb').write(WEIGHTS[0].numpy().tobytes())"
    ends = f"dist.barrier()\nif os.environ['RANK'] == '0':\n    {kept}\n"
    program.write_text(begins + trained + ends)
    words = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    for _ in range(ATTEMPTS):  # torchrun finds a free port, which may be another's when it listens
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *words, "program.py"],
            cwd=folder,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=120,
        )
        if done.returncode == 0:
            return (folder / "weights").read_bytes()
    pytest.fail(done.stderr.decode(errors="replace")[-2000:])


def test_a_program_for_torchrun_runs_over_the_wire_whatever_backend_it_names() -> None:
    over_the_wire()


@pytest.mark.nightly
def test_a_program_for_torchrun_ends_with_the_weights_of_gloo(tmp_path: Path) -> None:
    assert over_the_wire() == over_gloo(tmp_path)


def over_the_wire() -> bytes:
    """The weights that the program ends with in every rank, under every backend that it names."""
    relay = Relay()
    ended = set()
    for found in ranks(2, played, through=relay):
        assert isinstance(found, dict), found
        assert {held for held, _ in found.values()} == {True}
        ended |= {weights for _, weights in found.values()}
    [plain] = ended
    assert plain[:16] not in relay.seen
    return bytes(plain)


def strangers(rank: int, wire: Wire) -> dict[str, str]:
    found = {}
    for name, call in {
        "mpi": lambda: dist.init_process_group("mpi"),
        "ucc": lambda: dist.init_process_group("cpu:ucc,cuda:nccl"),
        "fake": lambda: dist.init_process_group("fake"),
        "rank": lambda: dist.init_process_group("gloo", rank=1 - rank, world_size=2),
        "world": lambda: dist.init_process_group("gloo", rank=rank, world_size=3),
        "group": lambda: dist.new_group(backend="mpi"),
    }.items():
        try:
            call()
        except UsageError as error:
            found[name] = str(error.check)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        dist.init_process_group("gloo")
    except ValueError:
        found["twice"] = "pytorch"
    one = torch.ones(2)
    dist.all_reduce(one)
    assert one.tolist() == [2.0, 2.0]
    return found


def test_other_transports_and_other_ranks_are_refused_by_name() -> None:
    expected = {"mpi": "backend", "ucc": "backend", "fake": "backend", "group": "backend"}
    expected |= {"rank": "rank", "world": "world_size", "twice": "pytorch"}
    assert ranks(2, strangers) == [expected] * 2


def left(rank: int, wire: Wire) -> None:
    pass


def test_what_was_adopted_is_given_back() -> None:
    begin, make = dist.init_process_group, dist.new_group
    assert ranks(1, left) == [None]
    assert (dist.init_process_group, dist.new_group) == (begin, make)
