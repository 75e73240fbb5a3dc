"""Every collective over a wire gives what a reference computed in one process gives."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from typing import Any

import pytest
from collecting import COLLECTING
from variants import variants

from sealtrain.errors import UsageError
from sealtrain.training.errors import ChannelBroken
from sealtrain_nodes.wire.meeting import Wire

if not COLLECTING:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from wire_world import all_gather_single, ranks, reduce_scatter_single

    from sealtrain_nodes.wire.staging import STAGED, staging_of

pytestmark = pytest.mark.long

SIZES = (0, 1, 5, 4_097, 300_001)
LARGE = 700_003


def inputs(world: int, size: int, dtype: Any) -> list[Any]:
    made = torch.Generator().manual_seed(size)
    found = [torch.randint(-9, 9, (size,), generator=made) for _ in range(world)]
    if dtype.is_floating_point:
        return [(each + torch.rand(size, generator=made)).to(dtype) for each in found]
    return [each.to(dtype) for each in found]


EACH = 1
"""Ranks of one guest; forked ranks inherit it."""


def in_order(tensors: list[Any], way: str) -> Any:
    """Reduced in the order of ranks within each guest, and then in the order of guests."""
    if EACH > 1:
        guests = [tensors[first : first + EACH] for first in range(0, len(tensors), EACH)]
        tensors = [added(guest, way) for guest in guests]
    return added(tensors, way)


def added(tensors: list[Any], way: str) -> Any:
    found = tensors[0].clone()
    for other in tensors[1:]:
        found = {
            "SUM": torch.add,
            "PRODUCT": torch.mul,
            "MAX": torch.maximum,
            "MIN": torch.minimum,
        }[way](found, other)
    return found


def reductions(rank: int, wire: Wire) -> int:
    types = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]
    types += [torch.int16, torch.int8, torch.uint8, torch.bool]
    tried = 0
    for dtype in types:
        for size in SIZES if dtype in (torch.float32, torch.bfloat16) else (3, 70_001):
            own = inputs(wire.world, size, dtype)
            for way in ("SUM", "PRODUCT", "MAX", "MIN") if size < LARGE // 3 else ("SUM",):
                expected = in_order(own, way)
                op = getattr(dist.ReduceOp, way)
                work = own[rank].clone()
                dist.all_reduce(work, op)
                assert torch.equal(work, expected), (dtype, size, way)
                work = own[rank].clone()
                dist.reduce(work, wire.world - 1, op)
                last = rank == wire.world - 1
                assert torch.equal(work, expected if last else own[rank]), (dtype, size, way)
                tried += 1
    both = inputs(wire.world, LARGE, torch.float32)
    work = both[rank].clone()
    dist.all_reduce(work, dist.ReduceOp.AVG)
    assert torch.equal(work, in_order(both, "SUM") / wire.world)
    bits = torch.tensor([0b1100 >> rank, 5])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.tolist() == [
        0b1100 | (0b1100 >> (wire.world - 1)) | (0b110 if wire.world > 1 else 0),
        5,
    ]
    return tried


def movements(rank: int, wire: Wire) -> None:
    world = wire.world
    for size in (0, 1, 5, 200_003):
        own = inputs(world, size, torch.float32)
        for root in (0, world - 1):
            work = own[rank].clone()
            dist.broadcast(work, root)
            assert torch.equal(work, own[root])
            back = [torch.empty(size) for _ in range(world)] if rank == root else None
            dist.gather(own[rank], back, root)
            if back is not None:
                assert all(map(torch.equal, back, own))
            work = torch.empty(size)
            dist.scatter(work, own if rank == root else None, root)
            assert torch.equal(work, own[rank])
        back = [torch.empty(size) for _ in range(world)]
        dist.all_gather(back, own[rank])
        assert all(map(torch.equal, back, own))
        whole = torch.empty(world * size)
        all_gather_single(whole, own[rank])
        assert torch.equal(whole, torch.cat(own))
        part = torch.empty(size)
        tables = [torch.cat([each + step for step in range(world)]) for each in own]
        reduce_scatter_single(part, tables[rank])
        assert torch.equal(part, in_order([each + rank for each in own], "SUM"))
        dist.reduce_scatter(part, [own[rank] + step for step in range(world)])
        assert torch.equal(part, in_order([each + rank for each in own], "SUM"))
        back = [torch.empty(size) for _ in range(world)]
        dist.all_to_all(back, [own[rank] + step for step in range(world)])
        assert all(torch.equal(back[step], own[step] + rank) for step in range(world))
    # Rank r sends r + j rows of its number to rank j.
    sent = torch.full((sum(rank + to for to in range(world)), 2), float(rank))
    rows = [source + rank for source in range(world)]
    got = torch.empty(sum(rows), 2)
    dist.all_to_all_single(got, sent, rows, [rank + to for to in range(world)])
    assert got[:, 0].tolist() == [
        float(source) for source in range(world) for _ in range(rows[source])
    ]


def shapes(rank: int, wire: Wire) -> None:
    table = torch.arange(12.0).reshape(3, 4).t()  # not contiguous
    column = table[:, 1]
    dist.all_reduce(column)
    assert torch.equal(table[:, 1], torch.arange(4.0, 8.0) * wire.world)
    assert torch.equal(table[:, 0], torch.arange(4.0))
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2.0 * wire.world
    back = torch.empty(4, wire.world).t()
    all_gather_single(back, torch.full((4,), float(rank)))
    assert torch.equal(back, torch.arange(float(wire.world))[:, None].expand(-1, 4))
    number = torch.tensor([1 + 2j, rank + 0j])
    dist.all_reduce(number)
    assert number[0] == wire.world * (1 + 2j)


def messages(rank: int, wire: Wire) -> None:
    world = wire.world
    right, left = (rank + 1) % world, (rank - 1) % world
    # Every rank sends 16 MB to its neighbour before it receives.
    mine, theirs = torch.full((4 << 20,), float(rank)), torch.empty(4 << 20)
    works = [dist.isend(mine, right, tag=3), dist.irecv(theirs, left, tag=3)]
    for work in works:
        work.wait()
    assert torch.equal(theirs, torch.full_like(theirs, float(left)))
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, theirs, left), dist.P2POp(dist.isend, mine, right)]
    ):
        work.wait()
    dist.barrier()
    # Asynchronous ones are done in the order of issue, and results stay apart.
    tensors = [torch.full((50_000,), float(number + rank)) for number in range(12)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    for number, tensor in enumerate(tensors):
        assert tensor[0] == number * world + sum(range(world))
    told: list[Any] = [None] * world
    dist.all_gather_object(told, {"rank": rank})
    assert told == [{"rank": each} for each in range(world)]


def groups(rank: int, wire: Wire) -> None:
    again = dist.new_group()
    one = torch.ones(3)
    dist.all_reduce(one, group=again)
    assert one.tolist() == [float(wire.world)] * 3
    pair = dist.new_group([0, wire.world - 1])
    if rank in (0, wire.world - 1):
        one = torch.full((70_000,), float(rank))
        dist.all_reduce(one, group=pair)
        assert one[0] == wire.world - 1
        dist.broadcast(one, wire.world - 1, group=pair)
    dist.barrier()


def everything(rank: int, wire: Wire) -> list[str]:
    done = []
    for work in (reductions, movements, shapes, messages, groups):
        work(rank, wire)
        done.append(work.__name__)
    return done


@pytest.mark.parametrize(
    ("world", "each"),
    variants([(2, 1), (3, 1), (4, 1), (4, 2), (6, 3), (6, 2)], each_time=[(3, 1), (4, 2)]),
)
def test_each_collective_equals_its_reference(
    world: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "EACH", each)
    expected = ["reductions", "movements", "shapes", "messages", "groups"]
    assert ranks(world, everything, each=each) == [expected] * world


def test_tensors_that_are_copied_to_host_memory_and_back_are_the_same() -> None:
    expected = ["reductions", "movements", "shapes", "messages", "groups"]
    assert ranks(3, everything, staged={"cpu"}) == [expected] * 3


def other_devices(rank: int, wire: Wire) -> list[str]:
    found = []
    meta = torch.ones(2, device="meta")
    for call in (
        lambda: dist.all_reduce(meta),
        lambda: dist.all_gather([torch.ones(2), torch.ones(2)], meta),
    ):
        try:
            call()
        except UsageError as error:
            found.append(error.check)
    dist.barrier()
    return found


def test_a_device_that_is_not_served_is_refused_and_the_group_goes_on() -> None:
    assert ranks(2, other_devices) == [["tensor", "tensor"]] * 2


def test_only_staged_tensors_leave_their_own_memory() -> None:
    own = torch.arange(6.0)
    assert staging_of([own], STAGED).in_host(own).data_ptr() == own.data_ptr()
    staging = staging_of([own], {"cpu"})
    row = staging.in_host(own)
    assert row.data_ptr() != own.data_ptr()
    row += 1
    staging.back(row, own)
    assert own.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def one_alone(rank: int, wire: Wire) -> list[float]:
    work = torch.ones(2)
    dist.all_reduce(work)
    dist.barrier()
    return work.tolist()


def test_one_rank_alone_is_a_group() -> None:
    assert ranks(1, one_alone) == [[1.0, 1.0]]


def refused(rank: int, wire: Wire) -> list[str]:
    found = []
    for call in (
        lambda: dist.all_reduce(torch.ones(2).to_sparse()),
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        lambda: dist.recv(torch.ones(2)),
        lambda: all_gather_single(torch.ones(5), torch.ones(2)),
    ):
        try:
            call()
        except UsageError as error:
            found.append(error.check)
    dist.barrier()
    return found


def test_what_a_group_does_not_do_is_refused_and_the_group_goes_on() -> None:
    expected = ["tensor", "reduction", "receive", "shape"]
    assert ranks(2, refused) == [expected, expected]


def disagreeing(rank: int, wire: Wire) -> None:
    if rank:
        dist.broadcast(torch.ones(8), 0)
    else:
        dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(8))


def other_type(rank: int, wire: Wire) -> None:
    dist.all_reduce(torch.ones(8, dtype=torch.int32 if rank else torch.float32))


def other_size(rank: int, wire: Wire) -> None:
    dist.all_reduce(torch.ones(2_000_000 if rank else 1_048_576))


@pytest.mark.claim("C157")
@pytest.mark.parametrize("work", [disagreeing, other_type, other_size])
def test_ranks_that_disagree_end_with_an_error_on_both_sides(work: Any) -> None:
    both = ranks(2, work)
    for found in both:
        assert isinstance(found, ChannelBroken), found
        assert found.check in ("operation", "peer")
    assert any(found.check == "operation" for found in both)


# --- Training -----------------------------------------------------------------------------------


def weights(model: Any) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def trained(rank: int, sharded: bool) -> str:
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(64, 257), torch.nn.GELU(), torch.nn.Linear(257, 64)
    )
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    made = torch.Generator().manual_seed(100 + rank)
    for _ in range(4):
        rows = torch.randn(8, 64, generator=made)
        (model(rows) - rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def over_gloo(rank: int, wire: Wire) -> dict[str, str]:
    """The same over gloo: rank and membership come over the wire, rows from a file in memory."""
    wire.close()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"/proc/self/fd/{MEMORY}", 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    found = {"ddp": trained(rank, False), "fsdp": trained(rank, True)}
    dist.destroy_process_group()
    return found


def over_wire(rank: int, wire: Wire) -> dict[str, str]:
    return {"ddp": trained(rank, False), "fsdp": trained(rank, True)}


MEMORY = -1


def test_ddp_and_fsdp_of_two_ranks_end_with_the_weights_of_gloo() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("ranks forked by a process that used its GPU cannot: run this file by itself")
    global MEMORY  # inherited by the forked ranks
    MEMORY = os.memfd_create("wire-test")
    try:
        gloo = ranks(2, over_gloo, joined=False)
    finally:
        os.close(MEMORY)
    ours = ranks(2, over_wire)
    copied = ranks(2, over_wire, staged={"cpu"})
    assert isinstance(gloo[0], dict), gloo
    assert gloo[0] == gloo[1] == ours[0] == ours[1]
    assert copied == ours
