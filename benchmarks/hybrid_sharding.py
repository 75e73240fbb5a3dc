"""Two guests of two ranks: a training step with hybrid sharding beside one with the wire for all.

    python benchmarks/hybrid_sharding.py [--json] [--rounds 5] [--steps 3] [--millions 15 150]
        [--ways sharded copies] [--line-gbit 1 10]
    python benchmarks/hybrid_sharding.py --paper

Four ranks in two network namespaces that a veth pair joins (root needed; loopback otherwise, and
the output says so). Two worlds of four processes do the same steps in turn within each round, while
the other world waits:

- ``all``: every tensor goes over the wire, also between ranks of one guest: FSDP2 shards over four;
- ``hybrid``: gloo within a guest, the wire across; FSDP2 shards within a guest.

Both also make steps of DDP (``copies``). Figures are medians of the ratios of each round; bytes
that cross between guests are counted by connection. ``waited`` is the part of a hybrid step in
which a rank waited for the wire, which includes waiting for ranks that came later.

On one machine a byte over loopback costs as much processor time as one over the wire, so without a
line there is nothing to gain. ``--line-gbit`` shapes the line between the namespaces (``tc``): the
same one for both worlds, which do the same steps in turn. Each line has a run of its own.

Memory: at 150 million parameters ``sharded`` takes some 8 GB for both worlds, ``copies`` some 25.

``--paper`` calculates that part for lines of 10, 100 and 400 Gbit/s and models of 8B and 70B.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from measured_on import machine
from node_wire import heard, nodes, read, say, write

WORLD, EACH = 4, 2
WAYS = ("sharded", "copies")
VOCABULARY = 8192
WIDTHS = {15: (512, 2), 150: (1024, 11)}
"""Width and layers by millions of parameters."""


# --- A rank -------------------------------------------------------------------------------------


def rank_of_four(rank: int, given: argparse.Namespace) -> None:
    """The whole of a rank; the parent passes lines."""
    from sealtrain_nodes.wire.identity import NodeKey
    from sealtrain_nodes.wire.meeting import connect
    from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer

    # One key for the ranks of a guest, or one for each rank: then everything goes over the wire.
    key, listener = NodeKey.make(lambda _: bytes.fromhex(given.seed)), Listener.open(given.host)
    say({"address": listener.address, "key": key.public_key.hex()})
    told = heard()
    membership = Membership(
        tuple(
            RankPeer(tuple(peer["address"]), bytes.fromhex(peer["key"])) for peer in told["ranks"]
        )
    )
    hybrid = given.world == "hybrid"
    import torch

    from sealtrain_nodes.wire.guest_groups import GuestGroups
    from sealtrain_nodes.wire.joining import join, leave

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    guest = None
    if hybrid:
        first = rank - rank % EACH
        guest = GuestGroups(rank % EACH, EACH, first=first, memory=given.memory, timeout_s=600.0)
    session = bytes.fromhex(told["session"])
    wire = connect(membership, rank, listener, key, session, timeout_s=60)
    join(wire, timeout_s=600.0, guest=guest)
    say({"ready": True})
    play(rank, wire, hybrid=hybrid)
    leave()


def play(rank: int, wire: Any, *, hybrid: bool) -> None:
    """Make the steps that the parent asks for, until it asks for none."""
    import torch
    import torch.distributed as dist

    from sealtrain_nodes.wire.work import WireWork

    waited = 0.0
    wait = WireWork.wait

    def time_wait(work: Any, *words: Any) -> bool:
        nonlocal waited
        begin = time.perf_counter()
        try:
            return bool(wait(work, *words))
        finally:
            waited += time.perf_counter() - begin

    WireWork.wait = time_wait  # type: ignore[method-assign]
    trained: Any = None
    while (asked := heard()) is not None:
        if asked.get("make"):
            trained = None
            trained = prepared(asked, hybrid=hybrid)
            trained(rank)
            say({"made": True})
            continue
        dist.barrier()
        before, waited = crossing(wire, rank), 0.0
        processor, begin = time.process_time(), time.perf_counter()
        main = time.thread_time()
        for _ in range(asked["steps"]):
            trained(rank)
        dist.barrier()
        say(
            {
                "seconds": (time.perf_counter() - begin) / asked["steps"],
                "processor": (time.process_time() - processor) / asked["steps"],
                "main": (time.thread_time() - main) / asked["steps"],
                "waited": waited / asked["steps"],
                "crossed": (crossing(wire, rank) - before) / asked["steps"],
            }
        )
    torch.set_num_threads(1)


def crossing(wire: Any, rank: int) -> int:
    """Bytes that this rank sent to ranks of the other guest."""
    sent: dict[int, int] = wire.engine.bytes_by_peer
    return sum(count for peer, count in sent.items() if peer // EACH != rank // EACH)


def prepared(asked: dict[str, Any], *, hybrid: bool) -> Any:
    """A model and its optimizer; calling it makes a step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    way, tokens = asked["make"], asked["tokens"]
    width, layers = WIDTHS[asked["millions"]]
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, width),
        *(
            torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ),
        torch.nn.Linear(width, VOCABULARY),
    )
    if way == "copies":
        model = DistributedDataParallel(model)
    else:
        shape, names = (
            ((WORLD // EACH, EACH), ("replicate", "shard")) if hybrid else ((WORLD,), None)
        )
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for module in model:
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(rank: int) -> None:
        made = torch.Generator().manual_seed(rank)
        batch = torch.randint(0, VOCABULARY, (1, tokens), generator=made)
        logits = model(batch)[:, :-1].reshape(-1, VOCABULARY)
        torch.nn.functional.cross_entropy(logits, batch[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- Both worlds --------------------------------------------------------------------------------


@contextlib.contextmanager
def world(name: str, both: list[Any]) -> Iterator[list[Any]]:
    """Four ranks, connected."""
    seeds = [os.urandom(32).hex() for _ in range(WORLD)]
    memories = [os.memfd_create("guest") for _ in range(WORLD // EACH)]
    with contextlib.ExitStack() as stack:
        for memory in memories:
            stack.callback(os.close, memory)
        ranks = []
        for rank in range(WORLD):
            node, memory = both[rank // EACH], memories[rank // EACH]
            seed = seeds[rank - rank % EACH if name == "hybrid" else rank]
            words = [*node.enter, sys.executable, __file__, "--rank", str(rank), "--world", name]
            words += ["--host", node.host, "--memory", str(memory), "--seed", seed]
            started = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[memory],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            stack.callback(started.wait, 30)
            stack.callback(started.terminate)
            ranks.append(started)
        told = {"ranks": [read(rank) for rank in ranks], "session": os.urandom(32).hex()}
        for rank in ranks:
            write(rank, told)
        for rank in ranks:
            read(rank)
        yield ranks
        for rank in ranks:
            write(rank, None)
            rank.wait(60)


def asked(ranks: list[Any], word: Any) -> list[Any]:
    """Ask all ranks of a world, and wait for their answers."""
    for rank in ranks:
        write(rank, word)
    return [read(rank) for rank in ranks]


def measure(given: argparse.Namespace, line: float | None) -> dict[str, Any]:
    """Steps of both worlds, in turn, over one line of so many Gbit/s."""
    found: dict[str, Any] = {}
    with (
        nodes(loopback=given.loopback, line_gbit=line) as both,
        world("all", both) as every,
        world("hybrid", both) as hybrid,
    ):
        worlds = {"all": every, "hybrid": hybrid}
        for millions in given.millions:
            for way in given.ways:
                for ranks in worlds.values():
                    asked(ranks, {"make": way, "millions": millions, "tokens": given.tokens})
                for ranks in worlds.values() if given.warmup else ():
                    asked(ranks, {"steps": given.warmup})
                rounds: list[dict[str, Any]] = []
                for number in range(given.rounds):
                    order = list(worlds) if number % 2 else list(reversed(worlds))
                    rounds.append(
                        {name: asked(worlds[name], {"steps": given.steps}) for name in order}
                    )
                found[f"{millions} {way}"] = summary(rounds)
        return {
            "between": "loopback" if not both[0].enter else "two namespaces",
            "line_gbit": line,
            "load": os.getloadavg()[0],
            "steps": found,
        }


def summary(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of one model and one way."""

    def of(number: dict[str, Any], name: str, what: str) -> float:
        return sum(rank[what] for rank in number[name]) / WORLD

    def ratio(what: str) -> float:
        return statistics.median(
            of(number, "hybrid", what) / of(number, "all", what) for number in rounds
        )

    def middle(name: str, what: str) -> float:
        return statistics.median(of(number, name, what) for number in rounds)

    return {
        "seconds_all": middle("all", "seconds"),
        "seconds_hybrid": middle("hybrid", "seconds"),
        "ratio": ratio("seconds"),
        "processor_ratio": ratio("processor"),
        "processor_all": WORLD * middle("all", "processor"),
        "processor_hybrid": WORLD * middle("hybrid", "processor"),
        "main_all": WORLD * middle("all", "main"),
        "main_hybrid": WORLD * middle("hybrid", "main"),
        "crossed_all": WORLD * middle("all", "crossed"),
        "crossed_hybrid": WORLD * middle("hybrid", "crossed"),
        "crossed_ratio": ratio("crossed"),
        "waited": statistics.median(
            of(number, "hybrid", "waited") / of(number, "hybrid", "seconds") for number in rounds
        ),
    }


# --- On paper -----------------------------------------------------------------------------------

FLOPS = 400e12
"""Of one accelerator at work: 40 % of what an H100 does in bfloat16."""
GPUS = 8
LINES = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9, "400 Gbit/s": 50e9}


def wire_share(
    parameters: float,
    trained: float,
    guests: int,
    tokens: float,
    line: float,
    *,
    rank_rate: float,
    item: int = 4,
) -> tuple[float, str]:
    """Part of a step in which a guest waits for the wire, and what bounds it.

    Nothing overlaps: compute first, then one all-reduce of a reduced copy between guests.

    Args:
        parameters: Of the model.
        trained: Of those, the ones with gradients.
        guests: Of eight GPUs each.
        tokens: Of a step, in all guests.
        line: Bytes a second between guests, each way.
        rank_rate: Bytes a second that the wire of one rank carries each way.
        item: Bytes of a gradient.
    """
    passes = 6 * trained + 4 * (parameters - trained)  # frozen weights have no gradients
    compute = passes * tokens / (guests * GPUS * FLOPS)
    sent = 2 * (guests - 1) / guests * trained * item
    rate = min(line, GPUS * rank_rate)
    seconds = sent / rate
    return seconds / (seconds + compute), "line" if rate == line else "wire"


MODELS = {
    "8B, full, 2 guests": (8.03e9, 8.03e9, 2),
    "8B, full, 4 guests": (8.03e9, 8.03e9, 4),
    "8B, LoRA r=16, 2 guests": (8.03e9, 42e6, 2),
    "70B, full, 8 guests": (70.6e9, 70.6e9, 8),
    "70B, LoRA r=16, 4 guests": (70.6e9, 207e6, 4),
}
TOKENS_OF_A_STEP = (0.5e6, 4e6)


def paper(rank_rate: float) -> list[dict[str, Any]]:
    """Shares by model, tokens of a step and line."""
    rows = []
    for name, (parameters, trained, guests) in MODELS.items():
        for tokens in TOKENS_OF_A_STEP:
            shares = {
                line: wire_share(parameters, trained, guests, tokens, rate, rank_rate=rank_rate)
                for line, rate in LINES.items()
            }
            rows.append({"model": name, "tokens": tokens, "shares": shares})
    return rows


def show_paper(rank_rate: float) -> None:
    """As a table."""
    print(f"one rank's wire: {rank_rate / 1e9:.2f} GB/s each way; nothing overlaps")
    for row in paper(rank_rate):
        shares = "  ".join(
            f"{line}: {share:5.1%} ({bound})" for line, (share, bound) in row["shares"].items()
        )
        print(f"{row['model']:26} {row['tokens'] / 1e6:4.1f}M tokens  {shares}")


def show(found: dict[str, Any]) -> None:
    """As a table."""
    line = "no line" if found["line_gbit"] is None else f"{found['line_gbit']:g} Gbit/s"
    load = f"load {found['load']:.1f} at the end"
    print(f"between {found['between']}; {line}; {load}; hybrid ÷ the wire for all")
    for name, figures in found["steps"].items():
        print(
            f"{name:14} step {figures['seconds_all'] * 1e3:7.0f} → "
            f"{figures['seconds_hybrid'] * 1e3:7.0f} ms  {figures['ratio']:.2f}   "
            f"processor {figures['processor_all'] * 1e3:7.0f} → "
            f"{figures['processor_hybrid'] * 1e3:7.0f} ms  {figures['processor_ratio']:.2f}   "
            f"main {figures['main_all'] * 1e3:7.0f} → {figures['main_hybrid'] * 1e3:7.0f}   "
            f"crossing {figures['crossed_hybrid'] / 1e6:8.1f} MB  {figures['crossed_ratio']:.2f}   "
            f"waited for the wire {figures['waited']:.0%}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--millions", type=int, nargs="+", default=[15, 150], choices=WIDTHS)
    parser.add_argument("--tokens", type=int, default=32, help="of a rank in a step")
    parser.add_argument("--warmup", type=int, default=0, help="steps that are not measured")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument(
        "--line-gbit", type=float, nargs="+", default=[None], help="of the line, each way"
    )
    parser.add_argument("--loopback", action="store_true", help="make no namespaces")
    parser.add_argument("--paper", action="store_true", help="calculate, and measure nothing")
    parser.add_argument(
        "--rank-rate", type=float, default=1.17, help="GB/s of one rank's wire, for --paper"
    )
    for hidden in ("--host", "--world", "--seed"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--rank", "--memory"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_of_four(given.rank, given)
        return
    if given.paper:
        show_paper(given.rank_rate * 1e9)
        return
    if given.loopback and given.line_gbit != [None]:
        parser.error("a line needs two namespaces")
    load = os.getloadavg()[0]
    lines = []
    for line in given.line_gbit:
        lines.append(measure(given, line))
        if not given.json:
            show(lines[-1])
    if given.json:
        measured_on = machine("torch", "cryptography", load=load)
        print(json.dumps({"lines": lines, "load": load, "machine": measured_on}))


if __name__ == "__main__":
    main()
