"""Flower's strategies in the lead: what a recipe may name, and that the numbers are Flower's."""

from __future__ import annotations

import gc
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from pydantic import TypeAdapter, ValidationError

from sealtrain.recipe.collaborations.strategies import (
    ENGINE_ARGUMENTS,
    Strategy,
    StrategySettings,
    arguments_of,
)
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain_together.errors import TooFewParties, UpdateRefused
from sealtrain_together.federated.engine import Arrays, FlowerStrategy, PartyUpdate

pytestmark = pytest.mark.flower

if not COLLECTING:
    flower = pytest.importorskip("flwr.serverapp.strategy", reason="needs sealtrain[federated]")

PARTIES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d", "clinic-e")
RECORDS = {party: 10 + 7 * number for number, party in enumerate(PARTIES)}
SHAPES = {"layer.lora_A.weight": (2, 5), "layer.lora_B.weight": (4, 2), "head.bias": (3,)}
CLASSES: dict[str, type[StrategySettings]] = {
    get_args(kind.model_fields["name"].annotation)[0]: kind
    for kind in get_args(get_args(Strategy)[0])
}
CHOSEN: dict[str, dict[str, Any]] = {
    "FedAvgM": {"server_momentum": 0.9, "server_learning_rate": 0.7},
    "FedAdam": {"eta": 0.03},
    "FedProx": {"proximal_mu": 0.1},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
}


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> Iterator[None]:
    """Bulyan collects garbage for each update, and all that other tests left would be searched."""
    gc.freeze()
    yield
    gc.unfreeze()


def settings(name: str, **changed: Any) -> StrategySettings:
    given: StrategySettings = TypeAdapter(Strategy).validate_python(
        {"name": name} | CHOSEN.get(name, {}) | changed
    )
    return given


def start() -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(0)
    return {name: chance.normal(size=shape).astype("<f4") for name, shape in SHAPES.items()}


def learned(party: str, number: int, state: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """A party's round: float32, as every model that it is loaded into."""
    chance = np.random.default_rng([number, *party.encode()])
    return {
        name: array.astype("<f4") + chance.normal(scale=0.1, size=array.shape).astype("<f4")
        for name, array in sorted(state.items())
    }


def sealed(strategy: FlowerStrategy, rounds: Iterable[int], state: Arrays) -> dict[str, Any]:
    """The lead's rounds: adapters travel in float32."""
    merged = dict(state)
    for number in rounds:
        asked = strategy.choose(number, PARTIES, merged)
        given = [
            PartyUpdate(
                party=question, records=RECORDS[question], arrays=learned(question, number, merged)
            )
            for question in reversed(asked)
        ]
        merged = dict(strategy.merge(number, given))
    return merged


def direct(given: StrategySettings, rounds: int) -> dict[str, Any]:
    """Flower's own loop, ``Strategy.start``, over the same parties in the clear."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid

    class Nodes(Grid):
        def set_run(self, run: Any) -> None: ...
        @property
        def run(self) -> Any: ...
        def create_message(self, *_: Any, **__: Any) -> Any: ...
        def push_messages(self, messages: Any) -> Any: ...
        def pull_messages(self, message_ids: Any) -> Any: ...
        def get_node_ids(self) -> Iterable[int]:
            return range(len(PARTIES))

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = []
            for message in messages:
                party = PARTIES[message.metadata.dst_node_id]
                arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
                number = message.content["config"]["server-round"]
                made = learned(party, number, arrays)
                content = RecordDict({
                    "arrays": ArrayRecord({name: Array(case) for name, case in made.items()}),
                    "metrics": MetricRecord({"num-examples": RECORDS[party]}),
                })  # fmt: skip
                replies.append((party, Message(content, reply_to=message)))
            return [reply for _party, reply in sorted(replies, key=lambda one: one[0])]

    FlowerStrategy(given, seed=0)  # lets this process make messages
    own = getattr(flower, given.name)(**arguments_of(given) | {"fraction_evaluate": 0.0})  # type: ignore[attr-defined]
    first = ArrayRecord({name: Array(value) for name, value in sorted(start().items())})
    result = own.start(Nodes(), first, num_rounds=rounds)
    return {name: array.numpy().astype("<f4") for name, array in result.arrays.items()}


def identical(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype == np.float32
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_and_defaults_are_flowers(name: str) -> None:
    signature = inspect.signature(getattr(flower, name).__init__).parameters
    theirs = {
        item.name: item.default
        for item in signature.values()
        if item.name not in ("self", "kwargs")
    }
    ours = {
        each_name: field.default
        for each_name, field in CLASSES[name].model_fields.items()
        if each_name != "name"
    }
    assert ours == {name: value for name, value in theirs.items() if name not in ENGINE_ARGUMENTS}


@pytest.mark.parametrize("argument", ["etaa", "weighted_by_key", "fraction_evaluate", "momentum"])
def test_an_unknown_argument_is_refused_by_name(argument: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings("FedAdam", **{argument: 1})
    assert [error["loc"][-1] for error in refused.value.errors()] == [argument]


@pytest.mark.parametrize("name", ["FedSGD", "fedavg", "FedXgbBagging", "QFedAvg", "Strategy"])
def test_another_strategy_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        settings(name)


@pytest.mark.claim("C242")
@pytest.mark.parametrize("name", CLASSES)
def test_four_rounds_are_flowers_own_to_the_bit(name: str) -> None:
    given = settings(name)
    mine = sealed(FlowerStrategy(given, seed=3), range(1, 5), start())
    assert identical(mine, direct(given, 4))
    assert not identical(mine, start())


@pytest.mark.claim("C242")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("after", [1, 3])
def test_a_strategy_that_recalls_goes_on_to_the_bit(name: str, after: int) -> None:
    given = settings(name, fraction_train=0.9, min_train_nodes=4)
    first = FlowerStrategy(given, seed=3)
    state = sealed(first, range(1, after + 1), start())
    second = FlowerStrategy(given, seed=3)
    second.recall(first.memory())
    assert second.memory() == first.memory() or not given.memory
    assert identical(
        sealed(second, range(after + 1, 6), state), sealed(first, range(after + 1, 6), state)
    )


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_without_its_memory_a_strategy_goes_on_otherwise(name: str) -> None:
    given = settings(name)
    first = FlowerStrategy(given, seed=3)
    state = sealed(first, range(1, 4), start())
    assert not identical(
        sealed(FlowerStrategy(given, seed=3), range(4, 6), state),
        sealed(first, range(4, 6), state),
    )


@pytest.mark.parametrize(
    ("whose", "spoiled"),
    [
        ("FedAvgM", lambda memory: memory),
        ("FedAdam", lambda memory: memory[:-4]),
        ("FedAdam", lambda memory: memory.replace(b"m_t/head.bias", b"m_t/head.bios")),
    ],
)
def test_memory_of_another_strategy_is_refused(
    whose: str, spoiled: Callable[[bytes], bytes]
) -> None:
    remembers = FlowerStrategy(settings(whose), seed=3)
    sealed(remembers, range(1, 3), start())
    with pytest.raises(CheckpointRefused, check=carries(check="strategy")):
        FlowerStrategy(settings("FedAdam"), seed=3).recall(spoiled(remembers.memory()))


def test_a_share_of_the_parties_is_drawn_anew_each_round_and_the_same_again() -> None:
    given = settings("FedAvg", fraction_train=0.5, min_train_nodes=2)
    drawn = []
    before = random.getstate()
    for seed in (3, 3, 4):
        strategy = FlowerStrategy(given, seed=seed)
        drawn.append([strategy.choose(number, PARTIES, start()) for number in range(1, 9)])
    assert random.getstate() == before
    assert drawn[0] == drawn[1] != drawn[2]
    assert {len(value) for value in drawn[0]} == {2}
    assert len(set(drawn[0])) > 2


def test_flower_does_not_wait_without_an_end_for_parties() -> None:
    strategy = FlowerStrategy(settings("FedAvg", min_available_nodes=3), seed=3)
    with pytest.raises(TooFewParties, check=carries(check="strategy", got="2")):
        strategy.choose(1, PARTIES[:2], start())


def test_a_merge_that_is_not_finite_is_refused() -> None:
    strategy = FlowerStrategy(settings("FedAvg"), seed=3)
    strategy.choose(1, PARTIES[:2], start())
    huge = {name: np.full(shape, 3e38, "<f4") for name, shape in SHAPES.items()}
    given = [PartyUpdate(party=party, records=1 << 53, arrays=huge) for party in PARTIES[:2]]
    strategy.merge(1, given)
    strategy = FlowerStrategy(settings("FedAdagrad", eta=1e6, tau=1e-30), seed=3)
    strategy.choose(1, PARTIES[:2], huge)
    wide = {name: -array for name, array in huge.items()}
    with pytest.raises(UpdateRefused, check=carries(check="numbers")):
        strategy.merge(
            1, [PartyUpdate(party=party, records=5, arrays=wide) for party in PARTIES[:2]]
        )
