"""The parties of `travelling.py` as processes, and one run of each way to train with them."""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from sealtrain.base.digests import sha256_hex
from sealtrain.signing.runlog import RunLog
from sealtrain_together.channel.channel import accept, connect
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.proofs import ProveKey
from sealtrain_together.travelling.orchestrator import Orchestrator, TravelLog
from sealtrain_together.travelling.parties import Parties, join_holder
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.schedule import TravelPlan
from sharing.gradient import GRADIENT_PURPOSE, gradient_steps, train_apart
from sharing.model import LEAD, MODEL_PURPOSE, Baton, Routes
from sharing.tls import Identity
from sharing.training import turns
from travelling_roles import (
    HEADER_BYTES,
    LOOPBACK,
    MAGIC,
    PATIENCE,
    RUN_ID,
    VERSION,
    accepting,
    conversation,
    signer,
)

HOLDERS = ("north", "south")
WAYS = ("travelling", "own", "own+bus", "tls", "tls+bus", "model", "gradient")
START_SECONDS = 180.0
Told = dict[str, Any]


class Process:
    """A party: says where it listens, then answers lines."""

    def __init__(self, role: str, **given: Any) -> None:
        script = Path(__file__).with_name("travelling_roles.py")
        self._work = subprocess.Popen(
            [sys.executable, str(script), json.dumps({"role": role, **given})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports: dict[str, int] = self._line(START_SECONDS)

    def ask(self, do: str, **fields: Any) -> Told:
        """Have it do something and wait for what comes of it."""
        assert self._work.stdin is not None
        self._work.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._work.stdin.flush()
        return self._line(PATIENCE)

    def _line(self, seconds: float) -> Told:
        output = self._work.stdout
        assert output is not None
        ready = select.select([output], [], [], seconds)[0]
        line = output.readline() if ready else ""
        if not line:
            self.end()
            raise SystemExit("a party of the benchmark ended, or does not answer")
        told: Told = json.loads(line)
        return told

    def end(self) -> None:
        """End its input, and it with it."""
        for pipe in (self._work.stdin, self._work.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._work.wait(5.0)
        self._work.kill()
        self._work.wait()


class Stage:
    """Everybody who takes part.

    Args:
        folder: For shards.
        ways: That will be run; learners are started for the last two alone.
    """

    def __init__(self, folder: Path, ways: tuple[str, ...]) -> None:
        self._folder = folder
        self._ways = ways
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        now = int(time.time())
        known = {name: Identity.make(name, now) for name in (*HOLDERS, "guest")}

        def shown(name: str) -> Told:
            one = known[name]
            return {"certificate": one.certificate.decode(), "key": one.key.decode()}

        def certificates(*names: str) -> list[str]:
            return [known[name].certificate.decode() for name in names]

        with ExitStack() as stack:

            def process(role: str, **given: Any) -> Process:
                made = Process(role, **given)
                stack.callback(made.end)
                return made

            self.holders = {
                name: process(
                    "holder", name=name, shard=str(self.shard(name)), me=shown(name),
                    others=certificates("guest"),
                )
                for name in HOLDERS
            }  # fmt: skip
            ports = {name: holder.ports["data"] for name, holder in self.holders.items()}
            own = {name: holder.ports["own"] for name, holder in self.holders.items()}
            common = {
                "me": shown("guest"), "others": certificates(*HOLDERS), "holders": ports,
                "own": own,
            }  # fmt: skip
            self.gateway = process("gateway", **common)
            self.device = process("device", **self.gateway.ports, **common)
            self.learners = {
                name: process("learner", name=name, shard=str(self.shard(name)))
                for name in HOLDERS
                if {"model", "gradient"} & set(self._ways)
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def shard(self, name: str) -> Path:
        """Where a holder's tokens lie."""
        return self._folder / f"{name}.bin"

    def run(self, way: str, plan: TravelPlan, *, idle: bool = False) -> Told:
        """Train once.

        Args:
            way: One of ``WAYS``.
            plan: Of the run.
            idle: Move data and learn nothing.

        Returns:
            Seconds: ``setup`` until everybody is ready, ``total``, of it ``training`` and
            ``transfer`` (what training waited for data), ``timers``; ``processor``, of all parties
            together and after the setup; ``trips``, and the digest of the ``model``.
        """
        if way == "travelling":
            return self._travelling(plan, idle)
        before = self._spent()
        if way in ("model", "gradient"):
            told = self._model(plan) if way == "model" else self._gradient(plan)
        else:
            ready = self.device.ask("feed", plan=plan.to_dict(), way=way, idle=idle)
            before = self._spent()
            told = ready | self.device.ask("fed")
        return told | {"processor": self._spent() - before}

    def _spent(self) -> float:
        """Seconds of processor time so far, of all parties."""
        parties = (*self.holders.values(), *self.learners.values(), self.gateway, self.device)
        return time.process_time() + sum(party.ask("spent")["seconds"] for party in parties)

    def measured(self, plan: TravelPlan, times: int) -> Told:
        """Seconds of each way to measure the state of a plan's program."""
        return self.device.ask("measured", plan=plan.to_dict(), times=times)

    def pooled(self, plan: TravelPlan) -> Told:
        """Train where all data are there already: ``training`` and ``model``."""
        shards = {name: str(self.shard(name)) for name in HOLDERS}
        return self.device.ask("pooled", plan=plan.to_dict(), shards=shards)

    def _travelling(self, plan: TravelPlan, idle: bool) -> Told:
        began = time.perf_counter()
        ports = self.device.ask("travel", buffer=plan.buffer_bytes, idle=idle)
        parties = Parties(
            proof=ProveKey(signer(LEAD)),
            accelerator=("127.0.0.1", ports["control"]),
            writes=("127.0.0.1", ports["writes"]),
            holders={
                name: ("127.0.0.1", holder.ports["travel"]) for name, holder in self.holders.items()
            },
            accept_accelerator=accepting("device"),
            accept_holder={name: accepting(name) for name in self.holders},
            timeout=PATIENCE,
            patience=PATIENCE,
        )
        log, moments, spent = RunLog(RUN_ID), dict[str, float](), dict[str, float]()

        def record(event: str, fields: dict[str, Any]) -> None:
            log.append(event, fields, int(time.time()))
            if event == "travel.setup":
                spent[event] = self._spent()
            moments[event] = time.perf_counter()

        lanes = {name: join_holder(parties, RUN_ID, name, 0, os.urandom)[0] for name in HOLDERS}
        with Orchestrator(
            plan, parties, TravelLog(RUN_ID, log=log, record=record), holders=lanes
        ) as orchestrator:
            state = orchestrator.run()
            processor = self._spent() - spent["travel.setup"]
        # The program is loaded when the run is set up; at the end the last chunk is wiped.
        ready, over = moments["travel.setup"], moments["trip.scrubbed"]
        progress = orchestrator.progress
        return {
            "setup": ready - began,
            "total": over - ready,
            "transfer": progress.transfer,
            "training": progress.training,
            "timers": progress.timers,
            "trips": len(progress.losses),
            "processor": processor,
            "model": TravellingModel(plan.program, state).digest(),
        }

    def _model(self, plan: TravelPlan) -> Told:
        results: queue.Queue[Baton | None] = queue.Queue()

        def take(sock: socket.socket) -> None:
            agreed = conversation(MODEL_PURPOSE, LEAD, *HOLDERS)
            with accept(sock, agreed, timeout=PATIENCE) as channel:
                while (baton := Baton.receive(channel)) is not None:
                    results.put(baton)

        trips = list(turns(plan))
        program = TravellingModel(plan.program)
        with listening(LOOPBACK, take, what="lead") as here:
            ports = {name: learner.ports["model"] for name, learner in self.learners.items()}
            ports[LEAD] = here[1]
            for learner in self.learners.values():
                learner.ask("model", plan=plan.to_dict(), ports=ports)
            routes = Routes(
                {name: ("127.0.0.1", port) for name, port in ports.items()},
                lambda other: conversation(MODEL_PURPOSE, LEAD, other, context={}),
                timeout=PATIENCE,
            )
            with closing(routes):
                first = Baton(trip=0, training=0.0, state=program.state())
                began = time.perf_counter()
                routes.send(trips[0].holder, first.encode())
                last = results.get(timeout=PATIENCE)
                total = time.perf_counter() - began
                for learner in self.learners.values():
                    learner.ask("rest")
        assert last is not None
        program.restore(last.state)
        return {
            "setup": 0.0,
            "total": total,
            "transfer": total - last.training,
            "training": last.training,
            "timers": {},
            "trips": len(trips),
            "bytes_a_trip": len(last.state),
            "model": program.digest(),
        }

    def _gradient(self, plan: TravelPlan) -> Told:
        steps, _ = gradient_steps(plan)
        with ExitStack() as stack:
            channels = {}
            for name, learner in self.learners.items():
                learner.ask("gradient", plan=plan.to_dict())
                agreed = conversation(GRADIENT_PURPOSE, LEAD, name, context={})
                address = ("127.0.0.1", learner.ports["gradient"])
                channels[name] = stack.enter_context(connect(address, agreed, timeout=PATIENCE))
            began = time.perf_counter()
            progress, state = train_apart(channels, steps)
            total = time.perf_counter() - began
        return {
            "setup": 0.0,
            "total": total,
            "transfer": progress.transfer,
            "training": progress.training,
            "timers": {},
            "trips": steps,
            "model": sha256_hex(state),
        }


def write_shard(path: Path, tokens: int, *, vocabulary: int, seed: int) -> None:
    """A shard as llm.c writes it: walks over the vocabulary that a model can learn.

    Args:
        path: Where.
        tokens: How many; past the first 2**24 the file is a hole, which reads as token 0.
        vocabulary: Tokens lie below.
        seed: Of the walks.
    """
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:3] = MAGIC, VERSION, tokens
    drawn = np.random.default_rng(seed)
    count = min(tokens, 1 << 24)
    starts = drawn.integers(0, vocabulary, count // 8 + 1)
    walk = (starts[:, None] + np.arange(8)[None, :]) % vocabulary
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(walk.reshape(-1)[:count].astype("<u2").tobytes())
        file.truncate(HEADER_BYTES + 2 * tokens)
