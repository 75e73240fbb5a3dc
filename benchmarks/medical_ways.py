"""Ways to train one classifier on the records of three parties, for ``medical.py``.

Every way reads the same records, starts from the same encoder, sees the same number of records in
training and is measured on the same test records. Adapters are LoRA of rank 8 on
queries and values, or P-tuning v2; the head trains with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medical_sets import Rows
from medical_task import LORA, PARTIES, PREFIX, Clock, Data, Plan, Settings, Task, Told, measured
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.privacy.noise import NoiseSource
from sealtrain.training.run import Inputs, train
from sealtrain_collab.cut.activations import Expected, batch_of, decode, encode
from sealtrain_collab.cut.front import Reading
from sealtrain_collab.cut.learning import Learning
from sealtrain_collab.federated.merging import merge
from sealtrain_collab.federated.patients import PatientPrivacy
from sealtrain_collab.federated.private import (
    PatientBound,
    PatientRounds,
    PrivateMerging,
    plan_rounds,
)
from sealtrain_collab.federated.update import Update, decode_state, encode_state
from sealtrain_collab.pads.protect import protect, quantise, restore

MASKED_STEPS = 2
CUT_LAYERS = 3
SPF_SHARE = 0.02
EPSILON, DELTA = 8.0, 1e-4
PATIENTS_A_ROUND, RECORDS_A_PATIENT, PATIENT_NORM = 300, 1, 1.0
PRIVATE_ROUNDS, PRIVATE_RATE = 30, 0.05
PRIVATE_LORA = LORA | {"r": 2, "lora_alpha": 4}
"""Noise goes into every number that trains, so the fewer the better; many patients, few rounds."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one cell is trained.

    Attributes:
        title: In the table.
        train: Trains and measures: recipe settings, data and seed to what was found.
        kind: ``plain``: nothing hidden; ``secure``: one of ours; ``alone``: no collaboration.
    """

    title: str
    train: Callable[[Task], Told]
    kind: str


def _federated(task: Task, rule: str, peft: Told, *, plain: bool, rate: float = 1.0) -> Told:
    """Every round of a federation, in one process; what travels is what would."""
    settings = task.settings
    plan = Plan(settings.rounds, settings.local_steps, rule)
    recipe = task.recipe(peft, settings.steps, rate=rate)
    parties = {name: task.learner(recipe, plan, name, plain=plain) for name in PARTIES}
    lead = task.learner(recipe, plan, "test")
    state, form, moved = lead.initial(), lead.form, 0
    rank = peft["r"] if rule == "exact" else None
    clock = Clock()
    for number in range(1, plan.rounds + 1):
        updates = []
        for name, one in parties.items():
            learned = one.learn(number, state)
            moved += len(state) + len(learned.state)
            given = decode_state(learned.state, form, party=name)
            updates.append(Update(party=name, weight=learned.records, state=given))
        state = encode_state(merge(rule, updates, decode_state(state, form), rank=rank))
    return clock.told() | {"bytes": moved} | measured(lead, state)


def _one_guest(task: Task, standins: Any = None) -> Told:
    """All records in one guest."""
    steps = len(PARTIES) * task.settings.steps
    recipe = task.recipe(LORA, steps)
    names = (*PARTIES, "test")
    one = task.learner(recipe, Plan(1, steps, "fedavg"), *names, standins=standins)
    clock = Clock()
    learned = one.learn(1, one.initial())
    told = clock.told() | {"bytes": task.data.bytes, "steps": steps}
    restore(one.model)
    return told | measured(one, learned.state)


def _alone(task: Task) -> Told:
    """Every party by itself; metrics are means over the parties."""
    settings = task.settings
    found = []
    for name in PARTIES:
        recipe = task.recipe(LORA, settings.steps)
        one = task.learner(recipe, Plan(1, settings.steps, "fedavg"), name, "test")
        clock = Clock()
        learned = one.learn(1, one.initial())
        found.append(clock.told() | measured(one, learned.state))
    sums = {key: sum(one[key] for one in found) for key in found[0]}
    means = {key: sums[key] / len(found) for key in ("accuracy", "f1")}
    return sums | means | {"bytes": 0}


def masked(task: Task) -> Told:
    """A few steps under pads beside the same without an accelerator: equal, and what they cost."""
    from sealtrain_collab.pads.accelerator import RemoteAccelerator
    from sealtrain_collab.pads.serving import served

    recipe = task.recipe(LORA, MASKED_STEPS)
    plan = Plan(1, MASKED_STEPS, "fedavg")
    states, clocks, engines = [], [], []
    with served() as there:
        accelerator = RemoteAccelerator(there.host, there.port)
        for change in (quantise, lambda model: engines.append(protect(model, accelerator))):
            one = task.learner(recipe, plan, *PARTIES, standins=_StandIns(change))
            clock = Clock()
            states.append(one.learn(1, one.initial()).state)
            clocks.append(clock.told())
        spent = engines[0].engine.spent
        accelerator.close()
    if states[0] != states[1]:
        raise SystemExit("what was learned under pads differs from what was learned without")
    return {
        "steps": MASKED_STEPS,
        "equal": True,
        "bytes_a_step": round((spent.bytes_out + spent.bytes_in) / MASKED_STEPS),
        "guest_seconds_a_step": round(clocks[1]["cpu"] / MASKED_STEPS, 3),
        "inside_seconds_a_step": round(clocks[0]["cpu"] / MASKED_STEPS, 3),
    }


def _private(task: Task) -> Told:
    """Federated, private to patients: one step of many patients a round."""
    data, rounds = task.data, PRIVATE_ROUNDS
    recipe = task.recipe(PRIVATE_LORA, rounds, rate=PRIVATE_RATE / task.settings.learning_rate)
    plan = Plan(rounds, 1, "ffa")
    secret = DataKey(hashlib.sha256(b"benchmark %d" % task.seed).digest())
    parties = {
        name: PatientRounds(
            task.learner(recipe, plan, name),
            recipe,
            data.sources(name),
            promised=PatientBound(
                patient="patient", records_a_patient=RECORDS_A_PATIENT, max_norm=PATIENT_NORM
            ),
            noise=NoiseSource(secret).derive(name),
            seed=recipe.trainer.seed,
        )
        for name in PARTIES
    }
    patients = {name: one.patients for name, one in parties.items()}
    promised = PatientPrivacy(
        patient="patient",
        records_a_patient=RECORDS_A_PATIENT,
        patients_a_round=min(PATIENTS_A_ROUND, sum(patients.values()) // 4),
        target_epsilon=EPSILON,
        delta=DELTA,
        max_patient_norm=PATIENT_NORM,
    )
    how = plan_rounds(promised, patients=sum(patients.values()), rounds=rounds)
    lead = task.learner(recipe, plan, "test")
    rate = recipe.trainer.learning_rate
    merging = PrivateMerging(how, NoiseSource(secret).derive("lead"), learning_rate=rate)
    state, form, moved = lead.initial(), lead.form, 0
    clock = Clock()
    for number in range(1, rounds + 1):
        given = {name: one.learn(number, state, how.rate) for name, one in parties.items()}
        moved += sum(len(state) + len(one) for one in given.values())
        sums = {name: decode_state(one, form, party=name) for name, one in given.items()}
        merged = merging.merge(number, sums, decode_state(state, form), patients=patients)
        state = encode_state(merged)
    told = clock.told() | {"bytes": moved, "epsilon": how.epsilon(rounds), "delta": DELTA}
    return told | {"noise_multiplier": how.noise_multiplier} | measured(lead, state)


def _cut(task: Task, share: float) -> Told:
    """Frozen front at the parties, which send activations; the back learns in one guest."""
    how = {
        "kind": "cut",
        "policy": "policy.json",
        "layers": CUT_LAYERS,
        "spf_share": share,
        "wire": "bfloat16",
    }
    steps = len(PARTIES) * task.settings.steps
    recipe = task.recipe(LORA, steps, collaboration=how)
    clock = Clock()
    reading, learning = Reading.of(recipe, task.package), Learning(recipe, task.package)
    datasets = {
        name: Activations(reading, learning.expected, task.data.rows[name])
        for name in (*PARTIES, "test")
    }
    trained = train(
        recipe,
        run_id="00" * 16,
        inputs=Inputs(
            base_dir=task.package,
            sources=[
                replace(one, dataset=datasets[one.owner])
                for one in task.data.sources(*PARTIES, "test")
            ],
        ),
        phase=learning.train,
    )
    moved = sum(datasets[name].bytes for name in PARTIES)
    metrics = {name: trained.metrics[name] for name in ("accuracy", "f1")}
    return clock.told() | {"bytes": moved, "entries": learning.entries} | metrics


class Activations:
    """One party's records as activations that went over the wire, in one record batch.

    Attributes:
        bytes: Of the messages.
    """

    dataset_id, root = "00" * 32, "00" * 32

    def __init__(self, reading: Reading, expected: Expected, rows: Rows) -> None:
        sent = [encode(reading.rows(rows[at : at + 64])) for at in range(0, len(rows), 64)]
        counts = [min(64, len(rows) - at) for at in range(0, len(rows), 64)]
        self.bytes = sum(map(len, sent))
        self._batches = [
            batch_of(decode(message, expected, rows=count))
            for message, count in zip(sent, counts, strict=True)
        ]
        self.schema = self._batches[0].schema
        self.batch_rows = tuple(counts)

    def batch(self, number: int) -> Any:
        """Record batch ``number``."""
        return self._batches[number]


class _StandIns:
    """Layers of int8, whoever multiplies."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def put_in(self, model: Any) -> None:
        """Swap them in."""
        self._change(model)

    def take_out(self, model: Any) -> None:
        """And back."""
        restore(model)


WAYS = {
    "alone": Way("each party alone, LoRA", _alone, "alone"),
    "pooled": Way("all records in one guest, LoRA", _one_guest, "secure"),
    "fedavg": Way(
        "FedAvg, LoRA, in the clear",
        lambda task: _federated(task, "fedavg", LORA, plain=True),
        "plain",
    ),
    "fedavg-prefix": Way(
        "FedAvg, P-tuning v2, in the clear",
        lambda task: _federated(task, "fedavg", PREFIX, plain=True, rate=5.0),
        "plain",
    ),
    "exact": Way(
        "federated, exact low-rank",
        lambda task: _federated(task, "exact", LORA, plain=False),
        "secure",
    ),
    "ffa": Way(
        "federated, FFA-LoRA",
        lambda task: _federated(task, "ffa", LORA, plain=False, rate=2.0),
        "secure",
    ),
    "private": Way(
        f"federated, FFA-LoRA, ε = {EPSILON:g} for each patient",
        _private,
        "private",
    ),
    "cut": Way(
        f"split 2: {CUT_LAYERS} of 6 layers at the parties, LoRA",
        lambda task: _cut(task, 0.0),
        "secure",
    ),
    "cut-spf": Way(
        f"split 2: the same with LoRA and SPF of {SPF_SHARE:.0%}",
        lambda task: _cut(task, SPF_SHARE),
        "secure",
    ),
    "int8": Way(
        "everything in the guest, int8 arithmetic",
        lambda task: _one_guest(task, _StandIns(quantise)),
        "secure",
    ),
}
"""By name. Split method 1 has the accuracy of ``int8``: the same bits, as ``masked`` shows."""


def masked_line(int8: Told, shown: Told) -> Told:
    """The line of split method 1, from that of ``int8`` and what ``masked`` measured.

    Accuracy is the same because every bit is; bytes and seconds are those of a step, times steps.
    """
    steps = int8["steps"]
    return int8 | {
        "way": "pads",
        "title": "split 1: frozen layers elsewhere under pads †",
        "cpu": steps * shown["guest_seconds_a_step"],
        "seconds": steps * shown["guest_seconds_a_step"],
        "bytes": steps * shown["bytes_a_step"],
        "masked_steps": shown["steps"],
    }


def cell(
    way: str,
    settings: Settings,
    seed: int,
    read: Callable[[], tuple[Rows, Rows]],
    package: Path,
    folder: Path,
) -> Told:
    """Train and measure one cell of the table.

    Args:
        way: One of ``WAYS``, or ``masked``.
        settings: Of the collection.
        seed: Of everything random.
        read: Gives training and test rows.
        package: Folder that holds the encoder as ``model``.
        folder: Empty, for sealed files.
    """
    task = Task(settings, Data(read, settings, seed, folder), seed, package)
    found = masked(task) if way == "masked" else WAYS[way].train(task)
    return {"settings": asdict(settings), **found}
