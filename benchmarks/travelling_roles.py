"""Parties of `travelling.py`, each a process of its own that listens on loopback.

    python benchmarks/travelling_roles.py '{"role": "holder", "name": "north", ...}'

Says one line of JSON where it listens, then answers each line of its input with one line, and ends
with it. Parties of attested channels prove themselves by Ed25519 keys made from their names;
parties of TLS show certificates that were handed to the others beforehand.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.collector import pause_collection
from sealtrain.sealing.datakey import DataKey
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain_together.channel.channel import accept, connect
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.proofs import AcceptKey, ProveKey
from sealtrain_together.travelling import programs
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE, LentAccelerator
from sealtrain_together.travelling.holder import HOLDER_PURPOSE, Holder
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds
from sealtrain_together.travelling.mapped_code import MappedCode
from sealtrain_together.travelling.measurement import StateMeter
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.schedule import TravelPlan
from sharing.data import BusFeed, ChannelFeed, TlsFeed, relay, serve_channel, serve_data
from sharing.gradient import GRADIENT_PURPOSE, GradientHolder
from sharing.model import MODEL_PURPOSE, ModelHolder, Routes
from sharing.tls import Identity, client_context, server_context
from sharing.training import train_fed

PATIENCE = 300.0
RUN_ID = "7a" * 16
SEAL_EVERY = 8
"""The recipe's default."""
BUS_PURPOSE = "share-bus"
OWN_PURPOSE = "share-own"
LOOPBACK = ("127.0.0.1", 0)
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024


class Shard:
    """Tokens of a `.bin` file as llm.c writes it: 256 int32 of header, then uint16."""

    def __init__(self, path: str) -> None:
        header = np.fromfile(path, dtype="<i4", count=HEADER_BYTES // 4)
        if header[0] != MAGIC or header[1] != VERSION:
            raise SystemExit(f"{path} is no shard of llm.c")
        self.size = 2 * int(header[2])
        self._file = os.open(path, os.O_RDONLY)  # as long as the process lives

    def read_into(self, offset: int, view: memoryview) -> int:
        """As ``TokenSource``."""
        return os.preadv(self._file, [view], HEADER_BYTES + offset)


class Idle(TravellingModel):
    """Looks at nothing and learns nothing: for the cost of trips alone."""

    def train(self, tokens: memoryview) -> tuple[int, float]:
        """Say that all of it was trained on."""
        return len(tokens) // 2, 0.0


def signer(name: str) -> Ed25519Signer:
    """The key that a party proves itself with."""
    seed = hashlib.sha256(b"benchmark/" + name.encode()).digest()
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))


def accepting(*names: str) -> AcceptKey:
    """Whoever proves itself with a key of these names."""
    return AcceptKey(frozenset(signer(name).public for name in names))


def conversation(purpose: str, me: str, *others: str, context: Any = None) -> ChannelTerms:
    """Between two parties that know each other's keys."""
    return ChannelTerms(
        purpose=purpose,
        context=context,
        proof=ProveKey(signer(me)),
        accept=accepting(*others),
        random=os.urandom,
    )


def channels_to(addresses: dict[str, tuple[str, int]], me: str) -> ChannelFeed:
    """A channel to each holder."""
    return ChannelFeed(
        {
            name: connect(
                address, conversation(OWN_PURPOSE, me, name, context={}), timeout=PATIENCE
            )
            for name, address in addresses.items()
        }
    )


def plan_of(fields: dict[str, Any]) -> TravelPlan:
    """A plan of a line."""
    return TravelPlan.from_dict(fields)


class Holders:
    """Role ``holder``: gives its tokens to a travelling accelerator, or through TLS."""

    def __init__(self, given: dict[str, Any], stack: ExitStack) -> None:
        self.name = given["name"]
        source = Shard(given["shard"])
        key = DataKey(hashlib.sha256(self.name.encode()).digest())
        context = server_context(Identity(**_octets(given["me"])), _certificates(given["others"]))

        def travels(sock: socket.socket) -> None:
            # A holder counts what it gave; every run of this benchmark begins anew.
            with tempfile.TemporaryDirectory() as folder:
                file = GivenFile(Path(folder, "given.jsonl"), key, RUN_ID, every=SEAL_EVERY,
                                 anchor=lambda *_, wait: None)  # fmt: skip
                bounds = GivingBounds(max_bytes=1 << 40, timeout=PATIENCE, patience=PATIENCE)
                file.read(None)
                file.begin()
                holder = Holder(
                    source,
                    given=GivenTrips(RUN_ID, bounds, remember=file.keep),
                    key=key,
                    share=lambda: bytes(32),
                )
                with closing(file):
                    holder.serve(sock, conversation(HOLDER_PURPOSE, self.name, "lead"))

        def shares(sock: socket.socket) -> None:
            agreed = conversation(OWN_PURPOSE, self.name, "device", "gateway")
            with accept(sock, agreed, timeout=PATIENCE) as channel:
                serve_channel(channel, source)

        self.ports = {
            "travel": stack.enter_context(listening(LOOPBACK, travels, what="travel"))[1],
            "own": stack.enter_context(listening(LOOPBACK, shares, what="own"))[1],
            "data": stack.enter_context(
                listening(
                    LOOPBACK,
                    lambda sock: serve_data(sock, context, source, timeout=PATIENCE),
                    what="data",
                )
            )[1],
        }


class Learners:
    """Role ``learner``: a holder with an accelerator of its own."""

    def __init__(self, given: dict[str, Any], stack: ExitStack) -> None:
        import torch

        torch.set_num_threads(1)
        self.name, self.source = given["name"], Shard(given["shard"])
        self.holder: ModelHolder | None = None
        self.learner: GradientHolder | None = None
        self.ports = {
            "model": stack.enter_context(listening(LOOPBACK, self._model, what="model"))[1],
            "gradient": stack.enter_context(listening(LOOPBACK, self._gradient, what="gradient"))[
                1
            ],
        }

    def model(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Get ready for a run of model sharing."""
        addresses = {name: ("127.0.0.1", port) for name, port in asked["ports"].items()}
        self.everybody = tuple(addresses)
        routes = Routes(
            addresses,
            lambda other: conversation(MODEL_PURPOSE, self.name, other, context={}),
            timeout=PATIENCE,
        )
        self.routes = routes
        self.holder = ModelHolder(self.name, plan_of(asked["plan"]), self.source, routes)
        return {}

    def rest(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """Hang up after a run of model sharing."""
        self.routes.close()
        return {}

    def gradient(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Get ready for a run of gradient sharing."""
        self.learner = GradientHolder(plan_of(asked["plan"]), self.source)
        return {}

    def _model(self, sock: socket.socket) -> None:
        agreed = conversation(MODEL_PURPOSE, self.name, *self.everybody)
        with accept(sock, agreed, timeout=PATIENCE) as channel:
            assert self.holder is not None
            self.holder.serve(channel)

    def _gradient(self, sock: socket.socket) -> None:
        with accept(
            sock, conversation(GRADIENT_PURPOSE, self.name, "lead"), timeout=PATIENCE
        ) as channel:
            assert self.learner is not None
            self.learner.serve(channel)


class Gateways:
    """Role ``gateway``: the machine that TLS sessions end in when the accelerator has a bus."""

    def __init__(self, given: dict[str, Any], stack: ExitStack) -> None:
        context = client_context(Identity(**_octets(given["me"])), _certificates(given["others"]))
        addresses, own = _addresses(given["holders"]), _addresses(given["own"])

        def hops(sock: socket.socket) -> None:
            agreed = conversation(BUS_PURPOSE, "gateway", "device")
            with accept(sock, agreed, timeout=PATIENCE) as channel:
                feed = channels_to(own, "gateway")
                try:
                    relay(channel, feed)
                finally:
                    feed.close()

        def serve(sock: socket.socket) -> None:
            agreed = conversation(BUS_PURPOSE, "gateway", "device")
            with accept(sock, agreed, timeout=PATIENCE) as channel:
                feed = TlsFeed(addresses, context, timeout=PATIENCE)
                try:
                    relay(channel, feed)
                finally:
                    feed.close()

        self.ports = {
            "bus": stack.enter_context(listening(LOOPBACK, serve, what="bus"))[1],
            "hop": stack.enter_context(listening(LOOPBACK, hops, what="hop"))[1],
        }


class Devices:
    """Role ``device``: the accelerator that travels, or trains on what comes to it."""

    def __init__(self, given: dict[str, Any], stack: ExitStack) -> None:
        with pause_collection():  # as the guest does
            import torch
            import transformers

            transformers.GPT2LMHeadModel  # noqa: B018
        torch.set_num_threads(1)
        self.context = client_context(
            Identity(**_octets(given["me"])), _certificates(given["others"])
        )
        self.holders = _addresses(given["holders"])
        self.own = _addresses(given["own"])
        self.bus = ("127.0.0.1", given["bus"])
        self.hop = ("127.0.0.1", given["hop"])
        self.ports: dict[str, int] = {}
        self.travelling = ExitStack()
        stack.enter_context(self.travelling)

    def travel(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Wait for an orchestrator, with a buffer of so many bytes."""
        self.travelling.close()
        programs.TravellingModel = Idle if asked["idle"] else TravellingModel  # type: ignore[misc]
        device = LentAccelerator(asked["buffer"], patience=PATIENCE)
        talk = conversation(CONTROL_PURPOSE, "device", "lead")
        control, writes = self.travelling.enter_context(
            device.listening(LOOPBACK, LOOPBACK, talk, holders=len(self.holders), timeout=PATIENCE)
        )
        return {"control": control[1], "writes": writes[1]}

    def feed(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Get ready to train on data that holders share."""
        plan = plan_of(asked["plan"])
        program = (Idle if asked["idle"] else TravellingModel)(plan.program)
        began = time.perf_counter()
        feed: TlsFeed | BusFeed | ChannelFeed
        if asked["way"] in ("tls+bus", "own+bus"):
            channel = connect(
                self.bus if asked["way"] == "tls+bus" else self.hop,
                conversation(BUS_PURPOSE, "device", "gateway", context={}),
                timeout=PATIENCE,
            )
            feed, close = BusFeed(channel), channel.close
        elif asked["way"] == "own":
            feed = channels_to(self.own, "device")
            close = feed.close
        else:
            feed = TlsFeed(self.holders, self.context, timeout=PATIENCE)
            close = feed.close
        # Allocated before the clock starts, as the travelling accelerator's is.
        buffer = memoryview(bytearray(plan.buffer_bytes))
        self.fed_by = (program, plan, feed, close, buffer)
        return {"setup": time.perf_counter() - began}

    def fed(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """Train on them."""
        program, plan, feed, close, buffer = self.fed_by
        ready = time.perf_counter()
        progress = train_fed(program, plan, feed, buffer=buffer)
        over = time.perf_counter()
        close()
        return {
            "total": over - ready,
            "transfer": progress.transfer,
            "training": progress.training,
            "timers": progress.timers,
            "trips": len(progress.losses),
            "model": program.digest(),
        }

    def measured(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Seconds of each way to measure a state after one step of training, best of so many."""
        import torch

        program = TravellingModel(plan_of(asked["plan"]).program)
        program.train(memoryview(bytes(program.settings.step_bytes)))
        meter = StateMeter(program)
        code = MappedCode({}, program.code())
        code.digest()

        def best(do: Callable[[], object]) -> float:
            spent = []
            for _ in range(asked["times"]):
                began = time.perf_counter()
                do()
                spent.append(time.perf_counter() - began)
            return min(spent)

        tensors = [tensor.detach() for _, tensor in program.tensors()]
        words = [
            tensor.view(-1).view(torch.int32).numpy() for tensor in tensors if tensor.numel() > 1
        ]
        return {
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "read once": best(lambda: [np.bitwise_xor.reduce(word) for word in words]),
            "sha256": best(program.digest),
            "fingerprint": best(lambda: meter.take(os.urandom(32))),
            "read again": best(meter.check_unchanged),
            "code": best(code.digest),
        }

    def pooled(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Train on chunks that are here already."""
        from sharing.training import turns

        plan = plan_of(asked["plan"])
        sources = {name: Shard(path) for name, path in asked["shards"].items()}
        chunks = []
        for trip in turns(plan):
            chunk = memoryview(bytearray(trip.size))
            sources[trip.holder].read_into(trip.offset, chunk)
            chunks.append(chunk)
        program = TravellingModel(plan.program)
        began = time.perf_counter()
        for chunk in chunks:
            program.train(chunk)
        return {"training": time.perf_counter() - began, "model": program.digest()}


ROLES: dict[str, Callable[[dict[str, Any], ExitStack], Any]] = {
    "holder": Holders,
    "learner": Learners,
    "gateway": Gateways,
    "device": Devices,
}


def _octets(texts: dict[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}


def _certificates(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def _addresses(ports: dict[str, int]) -> dict[str, tuple[str, int]]:
    return {name: ("127.0.0.1", port) for name, port in ports.items()}


def _lines() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Be a party until the input ends."""
    given = json.loads(sys.argv[1])
    with ExitStack() as stack:
        party = ROLES[given["role"]](given, stack)
        print(json.dumps(party.ports), flush=True)
        for asked in _lines():
            do = asked.pop("do")
            answer = (
                {"seconds": time.process_time()} if do == "spent" else getattr(party, do)(asked)
            )
            print(json.dumps(answer), flush=True)
        # Threads of connections are daemons: whoever asked is gone with the input.
        assert threading.current_thread() is threading.main_thread()


if __name__ == "__main__":
    main()
