"""Flower's own loop, ``Strategy.start``, over sealed seats: how far it goes (decision 0071).

The grid here is a real one: its ``send_and_receive`` asks parties over attested channels. A run in
which nothing happens ends as the lead's own; what the other tests show is why the lead has rounds
of its own.
"""

from __future__ import annotations

import inspect
import queue
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from collecting import COLLECTING
from federated_world import (
    PARTIES,
    START,
    Adds,
    ByStrategy,
    FederatedWorld,
    conversation,
    federated_world,
    rounds,
)

from sealtrain.recipe.collaborations.strategies import FedAdam, FedAvg, StrategySettings
from sealtrain_together.federated.engine import FlowerStrategy
from sealtrain_together.federated.messages import Asked
from sealtrain_together.federated.node_conversation import Answered, Came, News, NodeSeat, PartyGone

pytestmark = pytest.mark.flower

if not COLLECTING:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    from flwr.app import (  # type: ignore[import-untyped, unused-ignore]
        Array,
        ArrayRecord,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.serverapp import Grid  # type: ignore[import-untyped, unused-ignore]
    from flwr.serverapp import strategy as flower

    class SealedGrid(Grid):  # type: ignore[misc, unused-ignore]
        """Flower's grid over the lead's seats."""

        def __init__(self, world: FederatedWorld, parties: int) -> None:
            self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
            self._here: dict[int, NodeSeat] = {}
            self.looked = 0
            for node in range(1, parties + 1):
                seat = NodeSeat(
                    lambda data, seconds, node=node: world.carrier.exchange(  # type: ignore[misc]
                        node, data, seconds=seconds
                    ),
                    conversation("lead", *PARTIES),
                    self._news,
                    patience=10,
                    again_after=0.2,
                )
                world.stack.callback(seat.end)
                seat.start()
            until = time.monotonic() + 20
            while len(self._here) < parties and time.monotonic() < until:
                news = self._news.get(timeout=20)
                if isinstance(news, Came):
                    self._here[1 + PARTIES.index(news.joined.party)] = news.seat

        def set_run(self, run: Any) -> None: ...
        @property
        def run(self) -> Any: ...
        def create_message(self, *_: Any, **__: Any) -> Any: ...
        def push_messages(self, messages: Any) -> Any: ...
        def pull_messages(self, message_ids: Any) -> Any: ...

        def get_node_ids(self) -> Iterable[int]:
            self.looked += 1
            if self.looked > 20:
                raise TimeoutError("Flower looks again and again")
            return list(self._here)

        def send_and_receive(
            self, messages: Iterable[Any], *, timeout: float | None = None
        ) -> list[Any]:
            asked = {}
            for message in messages:
                number = message.content["config"]["server-round"]
                state = message.content["arrays"]["x"].numpy().astype("<f4").tobytes()
                seat = self._here[message.metadata.dst_node_id]
                seat.ask(Asked(do="learn", round=number, payload=len(state)), state)
                asked[seat] = message
            replies = []
            until = time.monotonic() + 10
            while asked and time.monotonic() < until:
                try:
                    news = self._news.get(timeout=1)
                except queue.Empty:
                    continue
                if isinstance(news, Answered):
                    replies.append(self._reply(asked.pop(news.seat), news))
                elif isinstance(news, PartyGone):
                    asked.pop(news.seat, None)  # as Flower: an error reply, or none in time
            return sorted(replies, key=lambda one: one.metadata.src_node_id)

        @staticmethod
        def _reply(message: Any, news: Answered) -> Any:
            content = RecordDict({
                "arrays": ArrayRecord({"x": Array(np.frombuffer(news.data, "<f4"))}),
                "metrics": MetricRecord({"num-examples": news.words["records"]}),
            })  # fmt: skip
            return Message(content, reply_to=message)


def first() -> Any:
    return ArrayRecord({"x": Array(np.frombuffer(START, "<f4"))})


def started(name: str, grid: Grid, rounds_: int, **arguments: Any) -> list[float]:
    FlowerStrategy(FedAvg(name="FedAvg"), seed=0)  # lets this process make messages
    strategy = getattr(flower, name)(fraction_evaluate=0.0, **arguments)
    result = strategy.start(grid, first(), num_rounds=rounds_)
    return [float(value) for value in result.arrays["x"].numpy()] if result.arrays else []


@pytest.mark.parametrize("settings", [FedAvg(name="FedAvg"), FedAdam(name="FedAdam")])
def test_an_undisturbed_run_is_the_same_by_flowers_loop_and_by_the_leads(
    settings: StrategySettings,
) -> None:
    name: str = settings.name  # type: ignore[attr-defined]
    with federated_world() as world:
        for party in PARTIES:
            world.party(party)
        theirs = started(name, SealedGrid(world, 3), 3)
    with federated_world() as world:
        for party in PARTIES:
            world.party(party)
        merging = ByStrategy(settings)
        ours = world.federation(rounds(rounds=3, min_parties=3), merging=merging).run(START)
    assert np.array(theirs, "<f4").tobytes() == ours.state


def test_flowers_loop_begins_with_round_one_only() -> None:
    """A lead that died cannot go on: ``start`` takes no round, and FedAdam's step depends on it."""
    assert set(inspect.signature(flower.Strategy.start).parameters) == {
        "self", "grid", "initial_arrays", "num_rounds", "timeout", "train_config",
        "evaluate_config", "evaluate_fn",
    }  # fmt: skip
    with federated_world() as world:
        for party in PARTIES:
            world.party(party)
        grid = SealedGrid(world, 3)
        FlowerStrategy(FedAvg(name="FedAvg"), seed=0)
        whole = flower.FedAdam(fraction_evaluate=0.0).start(grid, first(), num_rounds=4)
        strategy = flower.FedAdam(fraction_evaluate=0.0)
        half = strategy.start(grid, first(), num_rounds=2)
        rest = strategy.start(grid, half.arrays, num_rounds=2)  # the strategy kept m and v
    assert not np.array_equal(whole.arrays["x"].numpy(), rest.arrays["x"].numpy())


def test_flowers_loop_asks_nobody_twice_in_a_round_and_takes_no_reply_for_success() -> None:
    with federated_world() as world:
        world.works = {
            party: Adds(number=1, before=lambda number: world.stops[PARTIES[0]].set())
            for party in PARTIES[:1]
        }
        world.party(PARTIES[0])
        grid = SealedGrid(world, 1)
        # Its party dies in round 1 before it answers; no other one is there.
        world.works[PARTIES[0]].before = lambda number: world.die(PARTIES[0])
        world.relay.back = lambda node, data: None if world.works[PARTIES[0]].asked else data
        ended = started("FedAvg", grid, 2, min_train_nodes=1, min_available_nodes=1)
        assert ended == []  # two rounds without one update end like any run
        assert world.works[PARTIES[0]].asked[:1] == [1]


def test_flowers_loop_waits_for_parties_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it hears nothing meanwhile: no joining window, no refusal of a party."""
    from flwr.serverapp.strategy import strategy_utils

    monkeypatch.setattr(strategy_utils, "sleep", lambda seconds: None)
    with federated_world() as world:
        world.party(PARTIES[0])
        with pytest.raises(TimeoutError):
            started("FedAvg", SealedGrid(world, 1), 1)
