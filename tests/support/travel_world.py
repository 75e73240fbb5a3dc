"""An orchestrator, holders and an accelerator on loopback, each with its own proof."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import transformers
from channel_world import keyed
from world import signer

from sealtrain.manifest.checks.collaborations.travelling import TravellingTerms
from sealtrain.sealing.datakey import DataKey
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.proofs import AcceptKey, ProveKey
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE, LentAccelerator
from sealtrain_together.travelling.holder import HOLDER_PURPOSE, Holder
from sealtrain_together.travelling.holder_memory import GivenTrips, GivingBounds
from sealtrain_together.travelling.orchestrator import Hooks, Orchestrator, TravelLog
from sealtrain_together.travelling.parties import Parties
from sealtrain_together.travelling.program import ProgramSettings
from sealtrain_together.travelling.schedule import HolderPlan, TravelPlan
from sealtrain_together.travelling.trainer_program import Training

NOW = 1_790_000_000
RUN_ID = "7e" * 16
TIMEOUT = 5.0
transformers.GPT2LMHeadModel  # noqa: B018 - imported now: nobody's patience pays for it
PATIENCE = 60.0
PROGRAM = ProgramSettings(
    n_layer=1, n_head=2, n_embd=16, vocab_size=64, seq_len=16, batch_size=2,
    learning_rate=0.01, seed=3,
)  # fmt: skip
HOLDERS = ("clinic-a", "clinic-b", "clinic-c")
OTHERS = ("hospital-a", "hospital-b")
KEYS = {name: DataKey(hashlib.sha256(name.encode()).digest()) for name in (*HOLDERS, *OTHERS)}
TERMS = TravellingTerms(
    program={name: value for name, value in PROGRAM.to_dict().items() if name != "device"},
    buffer_bytes=512,
    limits=dict.fromkeys(HOLDERS),
)


class Tokens:
    """A holder's tokens in memory: a walk that a model can learn."""

    def __init__(self, name: str, count: int) -> None:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        starts = np.random.default_rng(seed).integers(0, 64, count // 8 + 1)
        walk = (starts[:, None] + np.arange(8)[None, :]) % 64
        self.data = walk.reshape(-1)[:count].astype("<u2").tobytes()

    @property
    def size(self) -> int:
        return len(self.data)

    def read_into(self, offset: int, view: memoryview) -> int:
        part = self.data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)


def plan_of(
    sources: Mapping[str, Tokens], limits: Mapping[str, int] | None = None, **changed: Any
) -> TravelPlan:
    """Three steps a chunk, unless told otherwise."""
    fields: dict[str, Any] = {
        "program": PROGRAM,
        "holders": tuple(
            HolderPlan(
                name=name,
                tokens=len(source.data) // 2,
                max_tokens=(limits or {}).get(name, 1 << 30),
            )
            for name, source in sources.items()
        ),
        "buffer_bytes": 6 * PROGRAM.step_bytes,
        "seal_every": 1,
    }
    return TravelPlan(**fields | changed)


@dataclass
class TravelWorld:
    """Everybody who listens; tests build orchestrators on it."""

    accelerator: LentAccelerator
    control: tuple[str, int]
    writes: tuple[str, int]
    holders: dict[str, tuple[str, int]]
    tokens: dict[str, Tokens]
    buffer_bytes: int
    stack: ExitStack
    made: dict[str, Holder] = field(default_factory=dict)

    def hold(
        self,
        name: str,
        *,
        source: Tokens | None = None,
        bounds: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        **changed: Any,
    ) -> Holder:
        """A holder that orchestrators reach under this name from now on.

        Args:
            name: Of the holder.
            source: Its tokens; those of the world where ``None``.
            bounds: Changes to ``GivingBounds``.
            memory: Further arguments of ``GivenTrips``.
            changed: Further arguments of ``Holder``.
        """
        given: dict[str, Any] = {"max_bytes": 1 << 30, "timeout": TIMEOUT, "patience": PATIENCE}
        self.made[name] = holder = Holder(
            source or self.tokens[name],
            given=GivenTrips(
                RUN_ID, GivingBounds(**given | dict(bounds or {})), **dict(memory or {})
            ),
            key=KEYS[name],
            share=partial(_share, name),
            **changed,
        )
        self.stack.callback(holder.close)
        self.holders[name] = self.stack.enter_context(
            listening(("127.0.0.1", 0), partial(_serve, holder, name), what=name)
        )
        return holder

    def lies_there(self) -> bool:
        """Whether any 16 bytes of a holder's tokens are in the accelerator's buffer."""
        there = bytes(self.accelerator.buffer)
        return any(
            source.data[at : at + 16] in there
            for source in self.tokens.values()
            for at in range(0, len(source.data), 16)
        )

    def plan(self, **changed: Any) -> TravelPlan:
        fields: dict[str, Any] = {"buffer_bytes": self.buffer_bytes, "seal_every": 2}
        return plan_of({name: self.tokens[name] for name in self.holders}, **fields | changed)

    def parties(self, **changed: Any) -> Parties:
        fields: dict[str, Any] = {
            "proof": ProveKey(signer("orchestrator")),
            "accelerator": self.control,
            "writes": self.writes,
            "holders": dict(self.holders),
            "accept_accelerator": AcceptKey(frozenset({signer("accelerator").public})),
            "accept_holder": {
                name: AcceptKey(frozenset({signer(name).public})) for name in self.holders
            },
            "timeout": TIMEOUT,
            "patience": PATIENCE,
        }
        return Parties(**fields | changed)

    def orchestrator(self, plan: TravelPlan | None = None, **changed: Any) -> Orchestrator:
        parties = changed.pop("parties", None) or self.parties()
        into = TravelLog(RUN_ID, log=changed.pop("log", None))
        hooks = Hooks(
            **{
                name: changed.pop(name)
                for name in {"on_trip", "reported", "sealed"} & changed.keys()
            }
        )
        arguments: dict[str, Any] = {"clock": lambda: NOW} | changed
        return Orchestrator(plan or self.plan(), parties, into, hooks=hooks, **arguments)


def _serve(holder: Holder, name: str, sock: socket.socket) -> None:
    holder.serve(sock, keyed(HOLDER_PURPOSE, name, "orchestrator"))


def _share(name: str) -> bytes:
    return KEYS[name].derive("lead-share", "travel-standby").reveal()


@contextmanager
def travel_world(
    *,
    buffer_bytes: int = 512,
    tokens: int = 512,
    max_bytes: int = 1 << 30,
    training: Training | None = None,
) -> Iterator[TravelWorld]:
    accelerator = LentAccelerator(buffer_bytes, patience=PATIENCE, training=training)
    with ExitStack() as stack:
        control, writes = stack.enter_context(
            accelerator.listening(
                ("127.0.0.1", 0),
                ("127.0.0.1", 0),
                keyed(CONTROL_PURPOSE, "accelerator", "orchestrator"),
                holders=len(HOLDERS),
                timeout=TIMEOUT,
            )
        )
        world = TravelWorld(
            accelerator=accelerator,
            control=control,
            writes=writes,
            holders={},
            tokens={name: Tokens(name, tokens) for name in HOLDERS},
            buffer_bytes=buffer_bytes,
            stack=stack,
        )
        for name in HOLDERS:
            world.hold(name, bounds={"max_bytes": max_bytes})
        yield world
