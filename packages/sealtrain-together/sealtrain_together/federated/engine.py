"""Rounds merged by one of Flower's own strategies, inside the lead's guest (spec/federated.md §4).

The object is the real one of ``flwr.serverapp.strategy``, and it is given real messages: before a
round ``configure_train`` with a grid that knows only the parties that are present, after it
``aggregate_train`` with the opened updates as replies, in the order of the parties' names. What the
strategy remembers from round to round is read out and put back, so that a lead that was resumed
ends in the same bits (spec/federated-rounds.md §8).

Flower makes messages only in a process that it gave an identity, and logs every call: ``_Identity``
gives one and keeps it quiet. No process, socket or thread of Flower's is started.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sealtrain.base.extras import extra_missing
from sealtrain.recipe.collaborations.strategies import StrategySettings, arguments_of
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain_together.errors import TooFewParties, UpdateRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
"""Adapter tensors by name."""

_SERVER: Final = 1
_WEIGHT: Final = "num-examples"
_ARRAYS, _METRICS = "arrays", "metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyUpdate:
    """One party's update.

    Attributes:
        party: Whose.
        records: Its weight.
        arrays: The whole adapter after the round, float32.
    """

    party: str
    records: int
    arrays: Arrays


class FlowerStrategy:
    """One strategy of one run.

    Args:
        settings: Of the recipe.
        seed: Of the choice of parties, where the recipe asks for a share of them.

    Raises:
        ExtraMissing: Flower is not installed.
    """

    def __init__(self, settings: StrategySettings, *, seed: int) -> None:
        try:
            from flwr.serverapp import strategy as flower
        except ImportError as error:
            raise extra_missing("A strategy of Flower's", "federated", error) from error
        _identify()
        self._settings = settings
        self._seed = seed
        self._name: str = getattr(settings, "name", "")
        given = arguments_of(settings) | {"fraction_evaluate": 0.0}
        self._strategy: Any = getattr(flower, self._name)(**given)
        self._arrays: dict[str, NDArray[Any]] | None = None
        self._names: tuple[str, ...] = ()

    def choose(self, number: int, present: Sequence[str], state: Arrays) -> tuple[str, ...]:
        """Begin a round: ``configure_train`` says which parties to ask.

        Args:
            number: Of the round, from 1.
            present: Parties that can be asked, sorted.
            state: The merged adapter that they begin with, float32.

        Raises:
            TooFewParties: Flower would wait for more to come, without an end.
        """
        from flwr.app import ConfigRecord

        if len(present) < self._settings.needed:
            raise TooFewParties(
                "too few parties for the strategy to choose from",
                check="strategy",
                got=len(present),
                expected=f"at least {self._settings.needed}",
            )
        # A strategy that computes in float64 goes on from its own numbers, not from rounded ones.
        arrays = dict(state) if self._arrays is None else self._arrays
        before = random.getstate()
        random.seed(f"sealtrain/sample/v1:{self._seed}/{number}")
        try:
            asked = self._strategy.configure_train(
                number, _record(arrays), ConfigRecord(), _grid(len(present))
            )
        finally:
            random.setstate(before)
        return tuple(sorted(present[message.metadata.dst_node_id - 1] for message in asked))

    def merge(self, number: int, given: Sequence[PartyUpdate]) -> dict[str, NDArray[np.float32]]:
        """The adapter after a round that ``choose`` began: what ``aggregate_train`` makes of it.

        Args:
            number: Of the round.
            given: One update a party, all of the form of the state.

        Raises:
            TooFewParties: The strategy needs more updates.
            UpdateRefused: It refuses them, or the numbers it makes are not finite.
        """
        from flwr.app.exception import AppExitException

        ordered = sorted(given, key=lambda one: one.party)
        replies = [_reply(node, update) for node, update in enumerate(ordered, 1)]
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                record, _metrics = self._strategy.aggregate_train(number, replies)
        except (AppExitException, ValueError, IndexError) as error:
            raise UpdateRefused(
                "Flower's strategy does not merge these updates",
                check="strategy",
                got=f"{self._name}: {type(error).__name__}",
            ) from None
        if record is None:
            raise TooFewParties(
                "the strategy merges no so few updates",
                check="strategy",
                got=len(given),
                expected=f"more, for {self._name}",
            )
        arrays = {name: array.numpy() for name, array in record.items()}
        with np.errstate(over="ignore"):
            rounded = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        if not all(bool(np.isfinite(array).all()) for array in rounded.values()):
            raise UpdateRefused("the merge of the updates is not finite", check="numbers")
        self._arrays, self._names = arrays, tuple(sorted(arrays))
        return rounded

    def memory(self) -> bytes:
        """What the strategy remembers, for a lead that goes on: safetensors (spec §8)."""
        from safetensors.numpy import save

        arrays = self._arrays or {}
        rounded = all(array.dtype == np.float32 for array in arrays.values())
        held = {} if rounded else {f"{_ARRAYS}/{name}": array for name, array in arrays.items()}
        for attribute in self._settings.memory:
            value = getattr(self._strategy, attribute)
            held |= {
                f"{attribute}/{name}": array for name, array in self._name_tensors(value).items()
            }
        if not held:
            return b""
        return bytes(save({name: np.ascontiguousarray(held[name]) for name in sorted(held)}))

    def recall(self, data: bytes) -> None:
        """Put back what ``memory`` gave.

        Raises:
            CheckpointRefused: It is of another strategy.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        self._arrays = None
        if not data:
            return
        try:
            held = load(data)
        except (SafetensorError, ValueError, KeyError) as error:
            raise _no_memory(type(error).__name__) from None
        groups: dict[str, dict[str, NDArray[Any]]] = {}
        for name, array in held.items():
            attribute, _, tensor = name.partition("/")
            groups.setdefault(attribute, {})[tensor] = array
        known = {_ARRAYS, *self._settings.memory}
        forms = {tuple(sorted(named)) for named in groups.values()}
        if groups.keys() - known or len(forms) != 1:
            raise _no_memory(", ".join(sorted(groups)))
        (self._names,) = forms
        self._arrays = groups.pop(_ARRAYS, None)
        for attribute, named in groups.items():
            in_order = {name: named[name] for name in sorted(named)}
            as_list = attribute == "momentum_vector"
            setattr(self._strategy, attribute, list(in_order.values()) if as_list else in_order)

    def _name_tensors(self, value: Any) -> dict[str, NDArray[Any]]:
        """An attribute of a strategy by the names of its tensors; some keep a list in order."""
        if not value:
            return {}
        if isinstance(value, dict):
            return value
        return dict(zip(self._names, value, strict=True))


def _no_memory(got: str) -> CheckpointRefused:
    return CheckpointRefused(
        "the sealed memory is not that of the recipe's strategy", check="strategy", got=got
    )


def _record(arrays: Arrays) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.asarray(arrays[name])) for name in sorted(arrays)})


def _reply(node: int, given: PartyUpdate) -> Any:
    """A party's update as Flower's answer to a message."""
    from flwr.app import Message, MessageType, MetricRecord, RecordDict

    asked = Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
    content = RecordDict({
        _ARRAYS: _record(given.arrays), _METRICS: MetricRecord({_WEIGHT: given.records}),
    })  # fmt: skip
    return Message(content, reply_to=asked)


def _grid(nodes: int) -> Any:
    """A grid that knows its nodes and carries nothing: the seats talk (``seats``)."""
    from flwr.serverapp import Grid

    class Present(Grid):  # type: ignore[misc, unused-ignore]
        """The parties that are present, by number."""

        def set_run(self, run: Any) -> None:
            """No run of Flower's."""

        @property
        def run(self) -> Any:
            raise NotImplementedError

        def create_message(self, *arguments: Any, **named: Any) -> Any:
            raise NotImplementedError

        def get_node_ids(self) -> Iterable[int]:
            return range(1, nodes + 1)

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            raise NotImplementedError

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            raise NotImplementedError

        def send_and_receive(
            self, messages: Iterable[Any], *, timeout: float | None = None
        ) -> Iterable[Any]:
            raise NotImplementedError

    return Present()


def _identify() -> None:
    """Let this process make messages, which Flower does in its own processes."""
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for name in ("run_id", "node_id", "task_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, _SERVER)
