"""Ways to train one classifier on the records of several parties, for ``medical.py``.

Every way reads the same records, starts from the same encoder, trains adapters on the same layers,
chooses on the same validation records and is measured on the same test records. A federated way
trains ``rounds`` times ``local_steps`` steps at each party. A central way trains as many as all
parties together, so that it sees as many records; what it had reached after the steps of one party
is measured as well. A sealed way names its twin: the same algorithm in the clear.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from medical_baseline import chosen_tfidf
from medical_front import first_token_only
from medical_sealed import federated
from medical_sets import Rows
from medical_split import Partition
from medical_task import (
    LAYERS,
    LORA,
    PREFIX,
    SERVER_TAU,
    Clock,
    Judge,
    Plan,
    Task,
    Told,
    digest_of_states,
)
from sealtrain.training.run import Inputs, Reporting, train
from sealtrain_together.cut.activations import Expected, batch_of, decode, encode
from sealtrain_together.cut.front import RecordEncoding
from sealtrain_together.cut.learning import Learning
from sealtrain_together.federated.merging import merge
from sealtrain_together.federated.update import Update, decode_state, encode_state
from sealtrain_together.pads.accelerator import RemoteAccelerator
from sealtrain_together.pads.multiplying import Limits
from sealtrain_together.pads.protect import protect, quantise, restore
from sealtrain_together.pads.serving import start_accelerator

States = list[tuple[int, bytes]]
Arithmetic = Literal["float", "bfloat16", "int8", "pads"]
_NO_RUN = "00" * 16
_SENT_TOGETHER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One row.

    Attributes:
        title: In the table.
        kind: ``words``: no encoder; ``federated``; ``central``; ``cut``.
        sealed: Through the product's own protection; else in the clear.
        rule: How a federated way merges.
        peft: The adapter.
        arithmetic: ``float``; ``bfloat16``: what the lower layers give is rounded, as where it
            travels; ``int8``, ``pads``: products with frozen weights under training.
        twin: Of a sealed way, the same algorithm in the clear.
        rate_of: The way whose learning rate this one takes; its own when ``None``.
    """

    title: str
    kind: Literal["words", "federated", "central", "cut"]
    sealed: bool = False
    rule: str = "fedavg"
    peft: Literal["lora", "prefix"] = "lora"
    arithmetic: Arithmetic = "float"
    twin: str | None = None
    rate_of: str | None = None


WAYS = {
    "tfidf": Way(title="TF-IDF, linear model", kind="words"),
    "pooled": Way(title="pooled, LoRA", kind="central"),
    "fedavg": Way(title="FedAvg, LoRA, in the clear", kind="federated"),
    "fedavg-sealed": Way(
        title="FedAvg, LoRA, sealed", kind="federated", sealed=True, twin="fedavg"
    ),
    "fedadam": Way(title="FedAdam, LoRA, in the clear", kind="federated", rule="fedadam"),
    "exact": Way(title="exact low-rank, in the clear", kind="federated", rule="exact"),
    "exact-sealed": Way(
        title="exact low-rank, sealed", kind="federated", sealed=True, rule="exact", twin="exact"
    ),
    "ffa": Way(title="FFA-LoRA, in the clear", kind="federated", rule="ffa"),
    "ffa-sealed": Way(
        title="FFA-LoRA, sealed", kind="federated", sealed=True, rule="ffa", twin="ffa"
    ),
    "cut": Way(
        title="cut model, LoRA, in the clear", kind="cut", arithmetic="bfloat16", rate_of="pooled"
    ),
    "split2": Way(
        title="split 2: cut model, LoRA, activations on a wire",
        kind="cut",
        sealed=True,
        arithmetic="bfloat16",
        twin="cut",
    ),
    "int8": Way(title="pooled, LoRA, int8", kind="central", arithmetic="int8", rate_of="pooled"),
    "split1": Way(
        title="split 1: LoRA under pads",
        kind="central",
        sealed=True,
        arithmetic="pads",
        twin="int8",
    ),
    "ptuning": Way(title="pooled, P-tuning v2", kind="central", peft="prefix"),
    "ptuning-int8": Way(
        title="pooled, P-tuning v2, int8",
        kind="central",
        peft="prefix",
        arithmetic="int8",
        rate_of="ptuning",
    ),
    "ptuning-pads": Way(
        title="P-tuning v2 under pads",
        kind="central",
        sealed=True,
        peft="prefix",
        arithmetic="pads",
        twin="ptuning-int8",
    ),
    "fedavg-int8": Way(
        title="FedAvg, LoRA, int8, in the clear",
        kind="federated",
        arithmetic="int8",
        rate_of="fedavg",
    ),
    "method1": Way(
        title="method 1 whole: FedAvg, sealed, under pads",
        kind="federated",
        sealed=True,
        arithmetic="pads",
        twin="fedavg-int8",
    ),
}
"""By name, in the order of the table."""

_SHARED = (("key", "value"),)
"""Layers with one input: the query reads the first token alone (``medical_front``)."""


def partition_of(way: str, partition: Partition) -> Partition:
    """The partition with which a way is measured, to stand in the tables of ``partition``.

    A central way has all records of each label however they were dealt out: it is measured once.
    """
    return partition if WAYS[way].kind == "federated" else "iid"


def chooser_of(way: str) -> str:
    """The way whose learning rate a way takes.

    A sealed way takes that of its twin, and one in other arithmetic that of the way in float32.
    """
    how = WAYS[way]
    if how.twin is not None:
        return chooser_of(how.twin)
    return how.rate_of or way


def cell(way: str, task: Task) -> Told:
    """Train and measure one cell of the table.

    Args:
        way: One of ``WAYS``.
        task: Its records and settings.
    """
    how = WAYS[way]
    if how.kind == "words":
        return _words(task)
    trained = {"federated": _federated, "central": _central, "cut": _cut}[how.kind]
    clock = Clock()
    states, told = trained(task, how)
    told |= clock.told()
    recipe = task.recipe(_peft(how), task.settings.steps)
    rule = how.rule if how.rule in ("exact", "ffa") else "fedavg"
    inside: Arithmetic = "int8" if how.arithmetic == "pads" else how.arithmetic
    with _standing(task, inside) as (made, _):
        judge = Judge(task, recipe, rule, made())
        found = judge.chosen_within(states, (task.settings.steps, states[-1][0]))
    return told | dict(zip(("at_steps", "at_records"), found, strict=True)) | {
        "states": digest_of_states(states),
        "measuring": clock.told()["cpu"] - told["cpu"],
    }  # fmt: skip


def _words(task: Task) -> Told:
    clock = Clock()
    records = task.records
    found = chosen_tfidf(records.train, records.validation, records.test)
    return {"at_records": found, "at_steps": found, "bytes": 0, "steps": 0} | clock.told()


def _federated(task: Task, how: Way) -> tuple[States, Told]:
    """Every round of a federation."""
    settings = task.settings
    rule = how.rule if how.rule in ("exact", "ffa") else "fedavg"
    recipe = task.recipe(_peft(how), settings.steps)
    plan = Plan(settings.rounds, settings.local_steps, rule)
    with _standing(task, how.arithmetic) as (made, moved):
        learners = {
            name: task.learner(recipe, plan, name, plain=not how.sealed, standins=made())
            for name in task.names
        }
        gc.freeze()  # the trainer of each round collects garbage, over all of these models
        start = next(iter(learners.values())).initial()
        if how.sealed:
            carried = federated(recipe, rule, learners, settings.rounds, start)
            merged, crossed = carried.states, carried.bytes
        else:
            merged = list(_in_the_clear(task, how.rule, learners, start))
            crossed = 2 * len(learners) * sum(map(len, merged))
        told = {"steps": settings.steps, "bytes": crossed + moved()}
    return [(number * settings.local_steps, entry) for number, entry in enumerate(merged, 1)], told


def _in_the_clear(
    task: Task, rule: str, learners: Mapping[str, Any], start: bytes
) -> Iterator[bytes]:
    """The merged adapter after each round, with no channel and no lead."""
    state = start
    server = _fedadam(learners, start, task.server) if task.server is not None else None
    for number in range(1, task.settings.rounds + 1):
        given = {name: learner.learn(number, state) for name, learner in learners.items()}
        form = next(iter(learners.values())).form
        previous = decode_state(state, form)
        updates = [
            Update(party=name, weight=argument.records, state=decode_state(argument.state, form))
            for name, argument in sorted(given.items())
        ]
        if server is not None:
            merged = server(number, updates)
        elif rule == "fedavg":
            merged = _mean(updates)
        else:
            rank = LORA["r"] if rule == "exact" else None
            merged = merge(rule, updates, previous, rank=rank)  # type: ignore[arg-type]
        state = encode_state(merged)
        yield state


def _mean(updates: list[Update]) -> dict[str, torch.Tensor]:
    """FedAvg as its paper has it: the mean weighted by records; added in float64."""
    total = sum(update.weight for update in updates)
    return {
        name: sum(
            (update.state[name].double() * (update.weight / total) for update in updates[1:]),
            start=updates[0].state[name].double() * (updates[0].weight / total),
        ).float()
        for name in updates[0].state
    }


def _fedadam(
    learners: Mapping[str, Any], start: bytes, rate: float
) -> Callable[[int, list[Update]], dict[str, torch.Tensor]]:
    """Flower's FedAdam on the adapters."""
    from flwr.common import (
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.server.strategy import FedAdam

    form = decode_state(start, next(iter(learners.values())).form)
    names = sorted(form)
    arrays = [form[name].numpy() for name in names]
    strategy = FedAdam(initial_parameters=ndarrays_to_parameters(arrays), eta=rate, tau=SERVER_TAU)

    def merged(number: int, updates: list[Update]) -> dict[str, torch.Tensor]:
        results: list[Any] = [
            (
                None,
                FitRes(
                    status=Status(Code.OK, ""),
                    parameters=ndarrays_to_parameters(
                        [update.state[name].numpy() for name in names]
                    ),
                    num_examples=update.weight,
                    metrics={},
                ),
            )
            for update in updates
        ]
        parameters, _ = strategy.aggregate_fit(number, results, [])
        if parameters is None:
            raise RuntimeError("Flower merged nothing")
        found = parameters_to_ndarrays(parameters)
        return {
            name: torch.from_numpy(value).float() for name, value in zip(names, found, strict=True)
        }

    return merged


def _central(task: Task, how: Way) -> tuple[States, Told]:
    """All records in one guest, through the product's own training."""
    recipe = task.recipe(_peft(how), task.settings.pooled_steps(task.parties))
    with _standing(task, how.arithmetic) as (made, moved):
        sources = task.sources(*task.names, plain=not how.sealed)
        states = _trained(task, recipe, sources, made(), None)
        return states, {"steps": states[-1][0], "bytes": task.sealed_bytes + moved()}


def _cut(task: Task, how: Way) -> tuple[States, Told]:
    """Frozen front at the parties, which send activations; the back learns in one guest."""
    settings = {
        "kind": "cut",
        "policy": "policy.json",
        "layers": LAYERS,
        "spf_share": 0.0,
        "wire": "bfloat16",
    }
    steps = task.settings.pooled_steps(task.parties)
    recipe = task.recipe(_peft(how), steps, collaboration=settings)
    reading, learning = RecordEncoding.of(recipe, task.package), Learning(recipe, task.package)
    front: Any = _kept_rows(task)
    reading = replace(reading, front=front)
    wire = learning.expected if how.sealed else None
    sent = {name: _Activations(reading, wire, task.rows[name]) for name in task.names}
    sources = [replace(source, dataset=sent[source.owner]) for source in task.sources(*task.names)]
    states = _trained(task, recipe, sources, _Layers(first_token_only), learning.train)
    return states, {"steps": states[-1][0], "bytes": sum(answer.bytes for answer in sent.values())}


def _trained(task: Task, recipe: Any, sources: Any, standins: _Layers, phase: Any) -> States:
    """One training; its adapter as often as a federation of the same records merges."""
    states: States = []
    every = task.settings.local_steps

    def keep(step: int, _values: Any) -> None:
        if step % (every * task.parties) == 0 or step == task.settings.steps:
            states.append((step, encode_state(standins.adapter())))

    train(
        recipe,
        run_id=_NO_RUN,
        inputs=Inputs(base_dir=task.package, sources=sources),
        reporting=Reporting(on_metrics=keep),
        standins=standins,
        phase=phase,
    )
    return states


def _peft(how: Way) -> Told:
    return LORA if how.peft == "lora" else PREFIX


def _kept_rows(task: Task) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The front of a cut model, with the activations that every way uses."""

    def rows(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        pairs = zip(input_ids, attention_mask, strict=True)
        found = [task.front.of(ids[mask == 1]) for ids, mask in pairs]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    return rows


def _quantised(model: Any) -> None:
    quantise(model, shared=_SHARED)


class _Layers:
    """Stand-ins: the kept front, and above it layers of the way's arithmetic."""

    def __init__(self, *changes: Callable[[Any], Any]) -> None:
        self._changes = changes
        self._model: Any = None

    def put_in(self, model: Any) -> None:
        """Swap them in."""
        for change in self._changes:
            change(model)
        self._model = model

    def take_out(self, model: Any) -> None:
        """Frozen layers of the trained weights; no model is exported here."""
        restore(model)

    def adapter(self) -> dict[str, torch.Tensor]:
        """What trains, by name, as it is now."""
        return {
            name: tensor.detach()
            for name, tensor in self._model.named_parameters()
            if tensor.requires_grad
        }


@contextmanager
def _standing(
    task: Task, arithmetic: Arithmetic
) -> Iterator[tuple[Callable[[], _Layers], Callable[[], int]]]:
    """What makes stand-ins, one for each model; and bytes that accelerators were sent and gave."""
    with ExitStack() as stack:
        engines: list[Any] = []
        limits = Limits(connections=task.parties + 1)  # each guest's, and that of who measures
        there = (
            stack.enter_context(start_accelerator(limits=limits)) if arithmetic == "pads" else None
        )

        def made() -> _Layers:
            if there is not None:
                accelerator = RemoteAccelerator(there.host, there.port)
                stack.callback(accelerator.close)
                return _Layers(
                    task.front.put_in,
                    lambda model: engines.append(
                        protect(model, accelerator, shared=_SHARED).engine
                    ),
                )
            front = partial(task.front.put_in, rounded=arithmetic == "bfloat16")
            return _Layers(front, *([_quantised] if arithmetic == "int8" else []))

        def moved() -> int:
            return sum(engine.spent.bytes_out + engine.spent.bytes_in for engine in engines)

        yield made, moved


class _Activations:
    """One party's records as activations, in one dataset.

    Attributes:
        bytes: Of the messages that carried them; 0 without a wire.

    Args:
        reading: Makes activations.
        wire: What the server expects of messages; ``None`` for no messages.
        rows: Of the party.
    """

    dataset_id, root = "00" * 32, "00" * 32

    def __init__(self, reading: RecordEncoding, wire: Expected | None, rows: Rows) -> None:
        self.bytes = 0
        self._batches = []
        for at in range(0, len(rows), _SENT_TOGETHER):
            made = reading.rows(rows[at : at + _SENT_TOGETHER])
            if wire is not None:
                message = encode(made)
                self.bytes += len(message)
                made = decode(message, wire, rows=len(made))
            self._batches.append(batch_of(made))
        self.schema = self._batches[0].schema
        self.batch_rows = tuple(batch.num_rows for batch in self._batches)

    def batch(self, number: int) -> Any:
        """Record batch ``number``."""
        return self._batches[number]
