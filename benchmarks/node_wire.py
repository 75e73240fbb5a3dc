"""All-reduce and a DDP step over the wire between nodes, beside gloo in plaintext.

    python benchmarks/node_wire.py [--json] [--rounds 5] [--megabytes 1 16 256] [--loopback]
    python benchmarks/node_wire.py --write

Two ranks in two network namespaces that a veth pair joins (root needed; loopback otherwise, and the
output says so). All ways run in one process per rank, in turn within each round; a figure is the
median of the rounds.

- ``gloo``: PyTorch's own backend, in plaintext;
- ``wire``: ``sealtrain_nodes.wire``;
- ``ssl``: Python's ssl module, TLS 1.3: a thread sends and a thread receives, 1 MB a write;
- ``wireguard``: gloo over wireguard-go, where wireguard-go and wg are installed.

The DDP step trains 15 million parameters on tokens: over gloo from a plaintext file, and over the
wire from a sealed file. ``--write`` measures the meeting of 16 nodes (``meeting.py``) and the floor
of the processor too, and makes the page ``docs/reference/benchmarks/nodes.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from measured_on import machine
from node_wire_page import floor, page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks" / "nodes.md"
HOSTS = ("10.213.0.1", "10.213.0.2")
GUARDED = ("10.214.0.1", "10.214.0.2")
TIMEOUT = timedelta(seconds=120)
WRITE = 1 << 20
STEPS = 4
ROWS, TOKENS, VOCABULARY, WIDTH = 8, 128, 8192, 512


# --- Two nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """Where a rank runs: how its program is started, and its addresses."""

    enter: list[str]
    host: str
    interface: str
    guarded: str | None


def call(*words: str, given: str | None = None) -> str:
    """Run a program that has to succeed; its output."""
    return subprocess.run(words, check=True, capture_output=True, text=True, input=given).stdout


@contextlib.contextmanager
def nodes(*, loopback: bool, line_gbit: float | None = None) -> Iterator[list[Node]]:
    """Two namespaces, or this machine's loopback twice.

    Args:
        loopback: Make no namespaces.
        line_gbit: Gbit/s that the line between them carries each way (``tc``, a token bucket);
            ``None`` for as much as the processor moves.
    """
    if loopback or os.geteuid() != 0 or shutil.which("ip") is None:
        yield [Node([], "127.0.0.1", "lo", None)] * 2
        return
    names = [f"node-wire-{os.getpid()}-{rank}" for rank in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            call("ip", "netns", "add", name)
            stack.callback(call, "ip", "netns", "del", name)
        links = [f"nw{os.getpid()}{rank}" for rank in range(2)]
        call("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for name, link, host in zip(names, links, HOSTS, strict=True):
            call("ip", "link", "set", link, "netns", name)
            call("ip", "-n", name, "addr", "add", f"{host}/24", "dev", link)
            call("ip", "-n", name, "link", "set", link, "up")
            call("ip", "-n", name, "link", "set", "lo", "up")
            if line_gbit is not None:
                shape_line(name, link, line_gbit)
        guarded = guard(names, stack)
        yield [
            Node(["ip", "netns", "exec", name], host, link, address if guarded else None)
            for name, link, host, address in zip(names, links, HOSTS, GUARDED, strict=True)
        ]


def shape_line(name: str, link: str, gbit: float) -> None:
    """Let an end of a veth pair send no more than a line carries.

    Args:
        name: Namespace of the end.
        link: The end.
        gbit: Gbit/s.
    """
    # A bucket of 1 ms, and at least four of the largest segments that the stack hands over.
    burst = max(1 << 18, int(gbit * 1e9 / 8 / 1000))
    call(
        *("tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf"),
        *("rate", f"{int(gbit * 1000)}mbit", "burst", str(burst), "latency", "50ms"),
    )


def guard(names: list[str], stack: contextlib.ExitStack) -> bool:
    """WireGuard in userspace between the namespaces, if it is installed."""
    if not (shutil.which("wireguard-go") and shutil.which("wg")):
        return False
    keys = [call("wg", "genkey") for _ in names]
    public = [call("wg", "pubkey", given=key).strip() for key in keys]
    for rank, name in enumerate(names):
        device = f"wg{os.getpid()}{rank}"
        daemon = subprocess.Popen(
            ["ip", "netns", "exec", name, "wireguard-go", "-f", device],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(daemon.wait, 10)
        stack.callback(daemon.terminate)
        until = time.monotonic() + 10
        while subprocess.run(
            ["ip", "-n", name, "link", "show", device], capture_output=True
        ).returncode:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        call(
            *("ip", "netns", "exec", name, "wg", "set", device),
            *("private-key", "/dev/stdin", "listen-port", "51820"),
            *("peer", public[1 - rank], "endpoint", f"{HOSTS[1 - rank]}:51820"),
            *("allowed-ips", f"{GUARDED[1 - rank]}/32"),
            given=keys[rank],
        )
        call("ip", "-n", name, "addr", "add", f"{GUARDED[rank]}/24", "dev", device)
        call("ip", "-n", name, "link", "set", device, "mtu", "1420", "up")
    return True


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


# --- One rank -----------------------------------------------------------------------------------


class PythonTls:
    """An all-reduce of two ranks over the ssl module: halves there, sums back."""

    def __init__(self, rank: int, hosts: list[str], port: int, contexts: Any) -> None:
        self.rank = rank
        client, server = contexts
        if rank == 0:
            with socket.create_server((hosts[0], port)) as listener:
                say({"listening": True})
                raw = [listener.accept()[0] for _ in range(2)]
        else:
            heard()
            raw = [socket.create_connection((hosts[0], port)) for _ in range(2)]
        for sock in raw:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # One connection for each direction: an SSL object serves one thread at a time.
        ends = [
            client.wrap_socket(sock) if rank else server.wrap_socket(sock, server_side=True)
            for sock in raw
        ]
        self.out, self.back = ends if rank == 0 else reversed(ends)

    def exchange(self, out: memoryview, back: memoryview) -> None:
        """Send and receive at the same time."""

        def send() -> None:
            for start in range(0, len(out), WRITE):
                self.out.sendall(out[start : start + WRITE])

        sender = threading.Thread(target=send)
        sender.start()
        done = 0
        while done < len(back):
            done += self.back.recv_into(back[done:], WRITE)
        sender.join()

    def all_reduce(self, tensor: Any) -> None:
        """Reduce by halves."""
        import torch

        halves = list(tensor.chunk(2))
        own, other = halves[self.rank], halves[1 - self.rank]
        room = torch.empty_like(own)

        def bytes_of(part: Any) -> memoryview:
            return part.view(torch.uint8).numpy().data

        self.exchange(bytes_of(other), bytes_of(room))
        own.add_(room)
        self.exchange(bytes_of(own), bytes_of(other))


def say(word: Any) -> None:
    """To the parent."""
    print(json.dumps(word), flush=True)


def heard() -> Any:
    """From the parent."""
    return json.loads(sys.stdin.readline())


def rank_of_two(rank: int, given: argparse.Namespace) -> None:
    """The whole of a rank; the parent passes lines between both."""
    from sealtrain_nodes.wire.identity import NodeKey
    from sealtrain_nodes.wire.meeting import connect
    from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer
    from sharing.tls import Identity, client_context, server_context

    key, listener = NodeKey.make(), Listener.open(given.host)
    shown = Identity.make(f"rank {rank}", int(time.time()))
    say(
        {
            "address": listener.address,
            "key": key.public_key.hex(),
            "certificate": shown.certificate.decode(),
        }
    )
    told = heard()
    membership = Membership(
        tuple(
            RankPeer(tuple(peer["address"]), bytes.fromhex(peer["key"])) for peer in told["ranks"]
        )
    )
    wire = connect(membership, rank, listener, key, bytes.fromhex(told["session"]), timeout_s=60)
    import torch
    import torch.distributed as dist

    from sealtrain_nodes.wire.group import WireGroup

    torch.set_num_threads(1)
    hosts = [peer["address"][0] for peer in told["ranks"]]
    other = [told["ranks"][1 - rank]["certificate"].encode()]
    tls = PythonTls(
        rank, hosts, told["port"] + 1, (client_context(shown, other), server_context(shown, other))
    )
    store = dist.TCPStore(hosts[0], told["port"], 2, rank == 0, TIMEOUT)

    def gloo(interface: str, name: str) -> Any:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        return dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2, TIMEOUT)

    plain = gloo(given.interface, "plain")
    group = WireGroup(wire.engine, (0, 1), rank, "all", TIMEOUT)

    def of(maker: Any) -> Callable[[Any], None]:
        return lambda tensor: maker.allreduce([tensor], dist.AllreduceOptions()).wait()

    ways = {"gloo": of(plain), "wire": of(group), "ssl": tls.all_reduce}
    if given.guarded:
        ways["wireguard"] = of(gloo(given.guarded, "guarded"))
    found = {
        str(size): all_reduces(ways, size, given.rounds, lambda: group.barrier().wait())
        for size in given.megabytes
    }
    step = ddp_steps(rank, wire, store, given)
    if rank == 0:
        say({"all_reduce": found, "ddp": step})
    wire.close()


def all_reduces(
    ways: dict[str, Callable[[Any], None]], megabytes: int, rounds: int, meet: Callable[[], None]
) -> dict[str, list[float]]:
    """Seconds of one all-reduce, by way and round; every way has to give the same bits."""
    import torch

    torch.manual_seed(7)
    first = torch.randn(megabytes * (1 << 20) // 4)
    again = max(1, min(24, 128 // megabytes))
    found: dict[str, list[float]] = {name: [] for name in ways}
    expected = first + first
    for name, way in ways.items():
        if name == "wireguard" and megabytes > 64:
            continue
        tensor = first.clone()
        way(tensor)
        assert torch.equal(tensor, expected), name
    work = first.clone()
    for number in range(rounds):
        for name, way in ways.items():
            slow = name == "wireguard"
            if slow and number:
                continue  # a tenth of the others' speed
            times = 1 if slow else again
            work.fill_(0.5)
            meet()
            begin = time.perf_counter()
            for _ in range(times):
                way(work)
            found[name].append((time.perf_counter() - begin) / times)
    return found


def ddp_steps(
    rank: int, wire: Any, store: Any, given: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of a step, by way and round."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.file import FileContext, open_file, seal_file
    from sealtrain_nodes.wire.joining import BACKEND, offer

    os.environ["GLOO_SOCKET_IFNAME"] = given.interface
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=2, timeout=TIMEOUT
    )
    offer(wire)
    groups = {"gloo": dist.group.WORLD, "wire": dist.new_group(backend=BACKEND, timeout=TIMEOUT)}
    size = ROWS * TOKENS * 8
    torch.manual_seed(rank)
    tokens = torch.randint(0, VOCABULARY, (32, ROWS, TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        plaintext, sealed = Path(folder) / "tokens", Path(folder) / "tokens.sealed"
        plaintext.write_bytes(tokens.numpy().tobytes())
        key = DataKey.generate()
        context = FileContext(dataset_id="00" * 16, owner_id="00" * 32, name="bench")
        with plaintext.open("rb") as source:
            seal_file(source, sealed, data_key=key, context=context)
        readers = {"gloo": plaintext.open("rb"), "wire": open_file(sealed, key)}
        trained = {}
        for name, group in groups.items():
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Embedding(VOCABULARY, WIDTH),
                *(
                    torch.nn.TransformerEncoderLayer(
                        WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True
                    )
                    for _ in range(2)
                ),
                torch.nn.Linear(WIDTH, VOCABULARY),
            )
            parameters = sum(each.numel() for each in model.parameters())
            model = DistributedDataParallel(model, process_group=group)
            trained[name] = (model, torch.optim.AdamW(model.parameters(), lr=1e-4))

        def step(name: str) -> None:
            model, optimizer = trained[name]
            batch = torch.frombuffer(bytearray(readers[name].read(size)), dtype=torch.int64)
            batch = batch.view(ROWS, TOKENS)
            logits = model(batch)[:, :-1].reshape(-1, VOCABULARY)
            torch.nn.functional.cross_entropy(logits, batch[:, 1:].reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()

        found: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(given.rounds + 1):
            for name in groups if number % 2 else reversed(list(groups)):
                readers[name].seek(0)
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(STEPS):
                    step(name)
                if number:
                    found[name].append((time.perf_counter() - begin) / STEPS)
        weights = [list(model.parameters()) for model, _ in trained.values()]
        assert all(torch.equal(weight, other) for weight, other in zip(*weights, strict=True))
        for reader in readers.values():
            reader.close()
    return found | {"parameters": [parameters]}


# --- Both ---------------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Start both ranks, have them meet, and read what rank 0 found."""
    with nodes(loopback=given.loopback) as both, contextlib.ExitStack() as stack:
        ranks = []
        for rank, node in enumerate(both):
            words = [*node.enter, sys.executable, __file__, "--rank", str(rank)]
            words += ["--host", node.host, "--interface", node.interface]
            words += ["--rounds", str(given.rounds), "--megabytes", *map(str, given.megabytes)]
            if node.guarded:
                words += ["--guarded", f"wg{os.getpid()}{rank}"]
            started = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            stack.callback(started.wait, 30)
            stack.callback(started.terminate)
            ranks.append(started)
        shown = [read(rank) for rank in ranks]
        told = {"ranks": shown, "session": os.urandom(32).hex(), "port": free_port()}
        for rank in ranks:
            write(rank, told)
        write(ranks[1], read(ranks[0]))  # its ssl listener is there
        found = read(ranks[0])
        return found | {"between": "loopback" if not both[0].enter else "two namespaces"}


def read(rank: Any) -> Any:
    """What a rank says."""
    line = rank.stdout.readline()
    if not line:
        raise SystemExit("a rank ended early")
    return json.loads(line)


def write(rank: Any, word: Any) -> None:
    """Tell a rank."""
    rank.stdin.write(json.dumps(word) + "\n")
    rank.stdin.flush()


def show(found: dict[str, Any]) -> None:
    """As a table."""
    print(f"between {found['between']}; milliseconds, speed ÷ gloo")
    for size, ways in found["all_reduce"].items():
        base = statistics.median(ways["gloo"])
        for name, seconds in ways.items():
            middle = statistics.median(seconds)
            print(f"{size:>4} MB  {name:10} {middle * 1000:9.2f}   {base / middle:5.2f}")
    gloo, wire = (statistics.median(found["ddp"][name]) for name in ("gloo", "wire"))
    pairs = zip(found["ddp"]["wire"], found["ddp"]["gloo"], strict=True)
    ratio = statistics.median(ratio / other for ratio, other in pairs)
    print(
        f"DDP step, {found['ddp']['parameters'][0] / 1e6:.1f} million parameters: "
        f"plaintext over gloo {gloo * 1000:.0f} ms, sealed over the wire {wire * 1000:.0f} ms, "
        f"{ratio:.3f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--loopback", action="store_true", help="make no namespaces")
    parser.add_argument("--write", action="store_true", help="write the page")
    for hidden in ("--host", "--interface", "--guarded"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_of_two(given.rank, given)
        return
    load, began = os.getloadavg()[0], time.monotonic()
    found = measure(given)
    if given.write:
        met = call(sys.executable, str(Path(__file__).with_name("meeting.py")), "--json")
        found |= {
            "meeting": json.loads(met),
            "floor": floor(),
            "command": " ".join(["python", "benchmarks/node_wire.py", *sys.argv[1:]]),
            "machine": machine("torch", "cryptography", load=load, nice=os.nice(0)),
            "seconds": time.monotonic() - began,
        }
        PAGE.write_text(page(found), "utf-8")
    elif given.json:
        print(json.dumps(found | {"machine": machine("torch", "cryptography")}))
    else:
        show(found)


if __name__ == "__main__":
    main()
