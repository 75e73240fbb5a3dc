"""A federation as guests run it, in one process: proven channels, sealed updates, real merging.

Lead and parties are those of ``sealtrain_together.federated``: ``Federation`` merges,
``PartyService`` answers, both prove themselves with a TEE's evidence (the simulator's), and every
adapter crosses an attested channel. Only the courier is not Flower: it hands the same bytes from
one unix socket to another. Parties train in turn, since they share one process and its random
state.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError
from sealtrain.training.errors import PeerUnreachable
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_together.channel.answers import Done
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.federated.federation import Federation, Rounds
from sealtrain_together.federated.frames import receive_frame, send_frame
from sealtrain_together.federated.guest.merging import Merge
from sealtrain_together.federated.learner import Learner
from sealtrain_together.federated.mailbox import Mailbox
from sealtrain_together.federated.mathematics import Taken
from sealtrain_together.federated.messages import PURPOSE, Asked, PartyJoined
from sealtrain_together.federated.party_server import PartyService

_AT = 1_790_000_000
_PATIENCE_S = 3 * 3600
_COMPOSE = canonical_json({"name": "medical-benchmark", "manifest_version": 2})
_RUN = "4f" * 16


@dataclass
class Carried:
    """Results of a federation.

    Attributes:
        states: The merged adapter after each round.
        bytes: That crossed the channels, both ways.
        events: Of the run log, in their order.
    """

    states: list[bytes]
    bytes: int
    events: list[str]


class _Courier:
    """Hands turns to the parties' sockets, as Flower's apps do.

    Attributes:
        nodes: Their numbers.
        bytes: Of all turns and answers.
    """

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = dict(enumerate(sockets, start=1))
        self.nodes = tuple(self._sockets)
        self.bytes = 0
        self._lock = threading.Lock()

    def exchange(self, node: int, data: bytes, *, seconds: int) -> bytes:
        """Bring a turn to a party, and its answer back."""
        try:
            with socket.socket(socket.AF_UNIX) as party:
                party.settimeout(seconds)
                party.connect(str(self._sockets[node]))
                send_frame(party, data)
                answer = receive_frame(party)
        except OSError as error:
            raise PeerUnreachable("a party does not listen", check="courier") from error
        with self._lock:
            self.bytes += len(data) + len(answer)
        return answer


class _Work:
    """One party's learning, while no other party learns."""

    def __init__(self, learner: Learner, turn: threading.Lock) -> None:
        self._learner, self._turn = learner, turn

    def learn(self, asked: Asked, state: bytes) -> Done:
        """A round."""
        with self._turn:
            torch.set_num_threads(1)  # each thread has its own number of workers
            learned = self._learner.learn(asked.round, state)
        words: dict[str, Any] = {
            "round": asked.round,
            "records": learned.records,
            "steps": learned.steps,
            "loss": learned.loss,
            "report": {},
        }
        return words, learned.state

    def finish(self, state: bytes) -> Done:
        """Nothing: adapters are measured when all is over."""
        return {}, b""

    def failure(self) -> SealtrainError | None:
        """None: a party here goes on after all that its learner answers."""
        return None


class _Merge(Merge):
    """The lead's own merging, which keeps each round's adapter for the measurement."""

    states: list[bytes]

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        """Parties report no run of theirs: there is none."""
        return document

    def merge(self, number: int, taken: Sequence[Taken], state: bytes) -> tuple[bytes, Any]:
        """As the lead's."""
        merged, besides = super().merge(number, taken, state)
        self.states.append(merged)
        return merged, besides


def federated(
    recipe: Any, rule: str, learners: Mapping[str, Learner], rounds: int, start: bytes
) -> Carried:
    """All rounds of a federation of guests.

    Args:
        recipe: Of all of them.
        rule: Aggregation.
        learners: By party.
        rounds: How many merges.
        start: The adapter before the first round.
    """
    turn = threading.Lock()
    events: list[str] = []
    terms: Any = SimpleNamespace(
        aggregation=rule, trim=None, max_update_norm=None, products=None, local_steps=1
    )
    run: Any = SimpleNamespace(recipe=recipe)
    merging = _Merge(run, terms, next(iter(learners.values())).form)
    merging.states = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-")))
        over = threading.Event()
        paths = {name: folder / f"{number}.sock" for number, name in enumerate(learners)}
        for name, learner in learners.items():
            mailbox = stack.enter_context(Mailbox(paths[name]))
            thread = threading.Thread(
                target=_holding(mailbox, name, learner, turn, over).run, daemon=True
            )
            thread.start()
            stack.callback(thread.join, 30.0)
        stack.callback(over.set)
        courier = _Courier(list(paths.values()))
        plan = Rounds(
            rule=rule,
            rounds=rounds,
            min_parties=len(learners),
            round_seconds=_PATIENCE_S,
            joining_seconds=_PATIENCE_S,
            parties=tuple(sorted(learners)),
            again_after=0.5,
        )
        carrier: Any = courier
        federation = Federation(
            plan, carrier, _conversation(), merging, record=lambda event, _: events.append(event)
        )
        federation.run(start)
    return Carried(states=merging.states, bytes=courier.bytes, events=events)


def _holding(
    mailbox: Mailbox, name: str, learner: Learner, turn: threading.Lock, over: threading.Event
) -> PartyService:
    def may_go_on() -> None:
        if over.is_set():
            raise PeerUnreachable("the federation ended", check="lead")

    return PartyService(
        mailbox,
        _conversation(),
        lambda: PartyJoined(party=name, records=learner.records, countable=True),
        _Work(learner, turn),
        may_go_on=may_go_on,
        patience=float(_PATIENCE_S),
    )


def _conversation() -> ChannelTerms:
    """Between guests of one simulated TEE, which accept only their own code."""
    pki = SimulatedPki(hashlib.sha256(b"medical benchmark").digest())
    guest = SimulatedGuest(pki, Secret(bytes(32)), _COMPOSE, random=os.urandom)

    def collect(binding: Binding) -> Evidence:
        return guest.evidence(binding, collateral=pki.collateral(_AT))

    return ChannelTerms(
        purpose=PURPOSE,
        context={"run_id": _RUN},
        proof=ProveGuest(collect),
        accept=AcceptGuest(
            policy=insecure_simulator_policy(pki.root_der),
            compose_hash=sha256_hex(_COMPOSE),
            clock=lambda: _AT,
        ),
        random=os.urandom,
    )
