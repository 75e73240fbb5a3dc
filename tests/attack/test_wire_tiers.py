"""Two guests of two ranks: what crosses between them, what ends them, and what they may not do."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from collecting import COLLECTING
from variants import variants

from sealtrain.errors import SealtrainError, UsageError
from sealtrain_nodes.wire.meeting import Wire

if not COLLECTING:
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from wire_world import Relay, World, ranks

    from sealtrain_nodes.wire.group import WireGroup
    from sealtrain_nodes.wire.guest_groups import GuestGroup, is_of_transport

pytestmark = pytest.mark.long

WORLD, EACH = 4, 2
WIDTH, HIDDEN = 64, 257
CANARY = 1.2345678e-3


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while World.made:
        World.made.pop().close()


def weights(model: Any) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def trained(rank: int, way: str, steps: int = 3) -> Any:
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH)
    )
    if way == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.02)
    else:
        names = ("replicate", "shard")
        mesh = (
            init_device_mesh("cpu", (WORLD // EACH, EACH), mesh_dim_names=names)
            if way == "hybrid"
            else init_device_mesh("cpu", (WORLD,))
        )
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    made = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        rows = torch.randn(8, WIDTH, generator=made)
        (model(rows) - rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def every_way(rank: int, wire: Wire) -> dict[str, tuple[str, int]]:
    found = {}
    for way in ("ddp", "hybrid", "whole"):
        before = wire.engine.bytes_sent
        model = trained(rank, way)
        dist.barrier()
        found[way] = (weights(model), wire.engine.bytes_sent - before)
    return found


def everywhere(rank: int, wire: Wire) -> dict[str, tuple[str, int]]:
    """The same over the wire alone, as each rank being a guest of its own."""
    found = {}
    for way in ("ddp", "whole"):
        before = wire.engine.bytes_sent
        model = trained(rank, way)
        dist.barrier()
        found[way] = (weights(model), wire.engine.bytes_sent - before)
    return found


@pytest.mark.claim("C725")
def test_ranks_end_with_equal_weights_and_one_reduced_copy_of_a_guest_crosses() -> None:
    ours = ranks(WORLD, every_way, each=EACH)
    assert all(isinstance(found, dict) for found in ours), ours
    for way in ("ddp", "hybrid", "whole"):
        assert len({found[way][0] for found in ours}) == 1
    # A guest's ranks add up first, whatever shards the model: every way has the same sums.
    assert ours[0]["ddp"][0] == ours[0]["hybrid"][0] == ours[0]["whole"][0]
    parameters = 2 * WIDTH * HIDDEN + HIDDEN + WIDTH
    gradients = 3 * 4 * parameters
    # Of two guests each sends half of the parts, and then the sums of the other half.
    sent = [sum(found["hybrid"][1] for found in ours[first : first + EACH]) for first in (0, EACH)]
    for guest in sent:
        assert gradients <= guest < 1.1 * gradients + 20_000
    again = ranks(WORLD, every_way, each=EACH)
    assert [found["hybrid"][0] for found in again] == [found["hybrid"][0] for found in ours]


# --- The path between guests -------------------------------------------------------------------


def canaries(rank: int, wire: Wire) -> int:
    """Everything that two guests do, with one value in every tensor."""
    for size in (1, 5, 40_000, 700_000):
        own = torch.full((size,), CANARY)
        dist.broadcast(own, 1)
        parts = [torch.empty(size) for _ in range(WORLD)]
        dist.all_gather(parts, own)
        dist.all_to_all(parts, [own.clone() for _ in range(WORLD)])
        other = torch.empty(size)
        works = [dist.isend(own, (rank + 1) % WORLD), dist.irecv(other, (rank - 1) % WORLD)]
        for work in works:
            work.wait()
        assert all(torch.equal(part, own) for part in [*parts, other])
        dist.all_reduce(own, dist.ReduceOp.MAX)
        dist.reduce(own, 3, dist.ReduceOp.MIN)
        dist.gather(own, parts if rank == 2 else None, 2)
        dist.scatter(own, [part.clone() for part in parts] if rank == 2 else None, 2)
        assert torch.equal(own, torch.full((size,), CANARY))
    told: list[Any] = [None] * WORLD
    dist.all_gather_object(told, "a record: canary-4be1a7")
    trained(rank, "hybrid", 1)
    return len(told)


@pytest.mark.claim("C726")
def test_no_byte_of_a_tensor_crosses_between_guests_in_clear() -> None:
    relay = Relay()
    assert ranks(WORLD, canaries, each=EACH, through=relay) == [WORLD] * WORLD
    assert len(relay.seen) > 4 * 700_000  # half of the columns pass the relay
    value = torch.tensor([CANARY]).numpy().tobytes()
    for needle in (4 * value, b"canary-4be1a7"):
        assert needle not in relay.seen


def connected_to(rank: int, wire: Wire) -> list[int]:
    return list(wire.engine.peers)


@pytest.mark.claim("C726")
def test_between_ranks_of_a_guest_there_is_no_wire() -> None:
    assert ranks(WORLD, connected_to, each=EACH) == [[2, 3], [2, 3], [0, 1], [0, 1]]


# --- Groups -------------------------------------------------------------------------------------


def grouped(rank: int, wire: Wire) -> dict[str, Any]:
    guest = rank // EACH
    found: dict[str, Any] = {}
    for name, members in {
        "own guest": [list(range(EACH)), list(range(EACH, WORLD))],
        "columns": [[0, 2], [1, 3]],
        "crossed": [[0, 3], [1, 2]],
        "all": [list(range(WORLD))] * 2,
        "alone": [[each] for each in range(WORLD)],
    }.items():
        for ranks_of in members:
            group = dist.new_group(ranks_of)
            if rank in ranks_of:
                one = torch.tensor([float(rank)])
                dist.all_reduce(one, group=group)
                found[name] = one.item() == sum(ranks_of)
    for name, members in {"three": [[0, 1, 2]], "uneven": [[0, 2, 3]]}.items():
        for ranks_of in members:
            try:
                dist.new_group(ranks_of)
            except UsageError as error:
                found[name] = error.check
            else:
                found[name] = "group" if rank not in ranks_of else "made"
    dist.barrier()
    return found | {"guest": guest}


@pytest.mark.claim("C727")
def test_groups_share_the_connections_that_exist_and_others_are_refused_by_name() -> None:
    expected = dict.fromkeys(["own guest", "columns", "crossed", "all", "alone"], True)
    expected |= {"three": "group", "uneven": "group"}
    assert ranks(WORLD, grouped, each=EACH) == [
        expected | {"guest": rank // EACH} for rank in range(WORLD)
    ]


def gathered(rank: int, wire: Wire) -> int:
    """States of shards again and again, beside messages of all ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model = trained(rank, "hybrid", 1)
    for _ in range(4):
        weights_of = get_model_state_dict(model, options=options)
        told: list[Any] = [None] * WORLD
        dist.all_gather_object(told, {"rank": rank})
        dist.barrier()
    return len(weights_of)


@pytest.mark.claim("C728")
def test_what_a_group_leaves_to_its_transport_waits_for_no_lock() -> None:
    """PyTorch calls a method that a Python group leaves out with the interpreter's lock held."""
    assert ranks(WORLD, gathered, each=EACH) == [4, 0, 0, 0]
    left_out = {
        name
        for name in vars(dist.ProcessGroup)
        if not name.startswith("_") and name in vars(WireGroup) and callable(vars(WireGroup)[name])
    }
    assert left_out - set(vars(GuestGroup)) <= {"rank", "size"}


# --- Ends ---------------------------------------------------------------------------------------


def ended(rank: int, wire: Wire, way: str, how: str) -> str:
    """Train without end while rank 3 is killed, stalls or lies in the middle."""
    dist.barrier()
    begin = time.monotonic()
    try:
        if how == "lies":
            dist.all_reduce(torch.ones(8, dtype=torch.int32 if rank == WORLD - 1 else None))
        for number in range(10_000):
            if rank == WORLD - 1 and number == 3:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(8)
                return "woke"
            if way == "sums":
                dist.all_reduce(torch.ones(300_000))
            else:
                trained(rank, way, 1)
            if time.monotonic() - begin > 30:
                return "goes on"
    except SealtrainError as error:
        return f"{error.code} {error.check}"
    except RuntimeError as error:
        return "its guest's transport" if is_of_transport(error) else type(error).__name__
    return "done"


def killed_in_sums(rank: int, wire: Wire) -> str:
    return ended(rank, wire, "sums", "killed")


def killed_in_shards(rank: int, wire: Wire) -> str:
    return ended(rank, wire, "hybrid", "killed")


def stalled(rank: int, wire: Wire) -> str:
    return ended(rank, wire, "sums", "stalls")


def lying(rank: int, wire: Wire) -> str:
    return ended(rank, wire, "sums", "lies")


@pytest.mark.claim("C728")
@pytest.mark.parametrize(
    "work",
    variants([killed_in_sums, killed_in_shards, stalled, lying], each_time=[killed_in_sums, lying]),
)
def test_a_rank_that_dies_stalls_or_lies_ends_every_rank_with_a_typed_error(work: Any) -> None:
    begin = time.monotonic()
    found = ranks(WORLD, work, each=EACH, timeout_s=3.0)
    assert time.monotonic() - begin < 60
    for said in found[: WORLD - 1]:
        assert isinstance(said, str), found
        code = said.partition(" ")[0]
        assert code in ("channel-cut", "channel-broken", "peer-unreachable", "its"), found
        assert work is not lying or code == "channel-broken"
    # The other guest hears of it by the wire: a typed error, never the text of a library.
    assert all("-" in said for said in found[:EACH]), found
