"""Rounds that keep each patient's privacy: parties clip, the lead adds noise once.

A round is one step of gradient descent over all parties (spec/federated.md §5). Each party draws
every one of its patients by a secret coin, takes the mean gradient of a drawn patient's records,
cuts it to ``max_norm`` and gives the *sum*. The lead adds the parties' sums and Gaussian noise for
one patient, once, whatever the number of parties: parties that did not trust it would each have to
add as much. Only the merged adapter ever leaves the lead, so that is what epsilon is about.

What is hidden is all that one party holds of one patient; a patient of two parties counts as two.
How many patients a party has is public, which of them took part is not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.digests import sha256_hex
from sealtrain.base.process_state import OneProcess
from sealtrain.errors import UsageError
from sealtrain.recipe.collaborations.patients import PatientPrivacy
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.checkpoints.kernels import deterministic
from sealtrain.training.checkpoints.randomness import pause_training
from sealtrain.training.data.stream import read_all
from sealtrain.training.errors import PrivacyBroken
from sealtrain.training.inputs.classifier import text_encoder
from sealtrain.training.inputs.learnable import has_texts
from sealtrain.training.privacy.accounting import epsilon_of, smallest_noise
from sealtrain.training.privacy.clipping import ClippedSums
from sealtrain.training.privacy.determinism import require_apart, without_draws
from sealtrain.training.privacy.noise import round_to_grid
from sealtrain.training.privacy.steps import record_losses
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.update import State, encode_state

if TYPE_CHECKING:
    from torch import Tensor

    from sealtrain.training.data.sources import Source
    from sealtrain.training.privacy.noise import NoiseSource
    from sealtrain_together.federated.learner import Learner

_MARGIN: Final = 2.0**-12
"""Share of the norm kept for rounding a sum to float32: enough for 2000 drawn patients a party."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientPlan:
    """Settings of the mechanism, fixed before the first round.

    Attributes:
        privacy: What is promised.
        rate: Probability of a patient to take part in a round.
        rounds: How many at most.
        noise_multiplier: Deviation of the noise over the norm of a patient's gradient.
    """

    privacy: PatientPrivacy
    rate: float
    rounds: int
    noise_multiplier: float

    def epsilon(self, rounds: int) -> float:
        """Spent after so many rounds, at the plan's delta."""
        mechanism = self.privacy.mechanism()
        return epsilon_of(mechanism, self.noise_multiplier, self.rate, rounds)


def plan_rounds(privacy: PatientPrivacy, *, patients: int, rounds: int) -> PatientPlan:
    """Choose the noise.

    Args:
        privacy: What is promised.
        patients: Of all parties together.
        rounds: How many at most.

    Raises:
        PrivacyBroken: More would take part than there are, or no noise keeps the promise.
    """
    if privacy.patients_a_round > patients:
        raise PrivacyBroken(
            "a round would take more patients than there are",
            check="sampling",
            got=privacy.patients_a_round,
            expected=f"at most {patients}",
            hint="lower patients_a_round, or wait until more parties have joined",
        )
    rate = privacy.patients_a_round / patients
    noise = privacy.noise_multiplier or smallest_noise(privacy.mechanism(), rate, rounds)
    plan = PatientPlan(privacy=privacy, rate=rate, rounds=rounds, noise_multiplier=noise)
    spent = plan.epsilon(rounds)
    if not spent <= privacy.target_epsilon:
        raise PrivacyBroken(
            "the noise is too small for the promised epsilon",
            check="patient_privacy.noise_multiplier",
            got=f"epsilon {spent:.4g}",
            expected=f"at most {privacy.target_epsilon:g}",
            hint="raise noise_multiplier or leave it out; or do fewer rounds",
        )
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientBound:
    """What one patient may contribute.

    Attributes:
        patient: Column that says whose a record is.
        records_a_patient: Most records of one patient; those first in the data.
        max_norm: L2 norm that a patient's gradient is cut to, > 0.
    """

    patient: str
    records_a_patient: int
    max_norm: float


class PatientRounds:
    """A party's side.

    Args:
        learner: The party's, of phase ``classify`` on text.
        recipe: Of the learner.
        sources: Its training data, opened.
        promised: What a patient may contribute.
        noise: Secret coins, of this party and run alone.
        at_once: Most records in a pass, but for a patient with more.

    Raises:
        RecipeInvalid: Another phase, or other columns.
        RecordInvalid: A record says of nobody that it is theirs, or does not fit the recipe.
    """

    def __init__(
        self,
        learner: Learner,
        recipe: Any,
        sources: Sequence[Source],
        *,
        promised: PatientBound,
        noise: NoiseSource,
        at_once: int = 16,
    ) -> None:
        if recipe.phase != "classify" or recipe.columns.kind != "text":
            raise RecipeInvalid(
                "rounds private to patients train classifiers of text", check="phase"
            )
        self._learner, self._recipe, self._at_once = learner, recipe, at_once
        self._max_norm = promised.max_norm
        self._given: dict[int, tuple[str, float]] = {}
        self._process = OneProcess("the coins of rounds")
        self._noise = noise.derive("patients")
        self._encode = text_encoder(recipe, learner.tokenizer)
        by_patient: dict[str, Rows] = {}
        train = [source for source in sources if source.role == "train"]
        for batch in read_all(train, [*recipe.columns.names, promised.patient]):
            for row in read_rows(batch):
                whose = row.pop(promised.patient)
                if whose is None or str(whose) == "":
                    raise RecordInvalid("a record names no patient", check="patient")
                if has_texts(row, (recipe.columns.text,)):
                    by_patient.setdefault(str(whose), []).append(row)
        self._patients = [
            by_patient[name][: promised.records_a_patient] for name in sorted(by_patient)
        ]
        for records in self._patients:
            self._encode(records)  # a fault shows now, and not in the round that draws its patient
        if self._patients:
            anyones = self._patients[0][0]
            short, long = (anyones | {recipe.columns.text: "0 " * n} for n in (5, 37))
            require_apart(learner.model, self._losses, short, long)

    @property
    def patients(self) -> int:
        """How many have records here: public."""
        return len(self._patients)

    def learn(self, round_number: int, state: bytes, rate: float) -> bytes:
        """The clipped sum of a round.

        Args:
            round_number: From 1; of a run each once, or the same again.
            state: The merged adapter.
            rate: Probability of a patient to take part, as all parties have it.

        Returns:
            A sum of gradients in the adapter's form, as ``update.encode_state`` writes it.

        Raises:
            PrivacyBroken: The round was given for another adapter or rate: its coins are used.
            ForkRefused: Another process learns.
        """
        self._process.require()
        import numpy as np
        import torch

        asked = (sha256_hex(state), rate)
        if self._given.setdefault(round_number, asked) != asked:
            raise PrivacyBroken(
                "a party was asked for a second sum of one round",
                check="round",
                got=round_number,
                expected="the adapter and the rate that it was asked with before",
            )
        model = self._learner.model
        self._learner.load(state)
        chance = min(int(rate * 2.0**64), (1 << 64) - 1)
        thresholds = np.full(self.patients, chance, dtype=np.uint64)
        drawn = self._noise.choose(thresholds, "drawn", round_number)
        sums = ClippedSums(model, self._max_norm * (1 - _MARGIN))
        try:
            with (
                pause_training(model),
                torch.enable_grad(),
                deterministic(),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # as training.run does
                for patients in self._parts(drawn.tolist()):
                    self._take(sums, patients)
            total = sums.pop()
        finally:
            sums.detach()
        form = self._learner.form
        return encode_state({name: total.get(name, torch.zeros_like(form[name])) for name in form})

    def _take(self, sums: ClippedSums, patients: list[Rows]) -> None:
        import torch

        rows = [row for records in patients for row in records]
        units = [number for number, records in enumerate(patients) for _ in records]
        model = self._learner.model
        with without_draws(model):
            total: Any = self._losses(rows).sum()
            total.backward()
        sums.take(len(rows), torch.tensor(units, device=model.device))

    def _losses(self, rows: Rows) -> Any:
        """Loss of each record, float (records,)."""
        model = self._learner.model
        batch = {name: tensor.to(model.device) for name, tensor in self._encode(rows).items()}
        return record_losses(model, batch, self._recipe.trainer.label_smoothing_factor)

    def _parts(self, drawn: list[int]) -> Iterator[list[Rows]]:
        """Drawn patients, whole, so many at a time that memory holds their records."""
        part: list[Rows] = []
        for number in drawn:
            records = self._patients[number]
            if part and sum(map(len, part)) + len(records) > self._at_once:
                yield part
                part = []
            part.append(records)
        if part:
            yield part


class PrivateMerging:
    """The lead's side: adds sums and noise, and takes a step of AdamW.

    Args:
        plan: Of all parties.
        noise: Of this run alone; no other process may know its secret.
        learning_rate: Highest; it falls to zero in a line over the plan's rounds.
    """

    def __init__(self, plan: PatientPlan, noise: NoiseSource, *, learning_rate: float) -> None:
        self._plan, self._noise = plan, noise.derive("patients")
        self._rate = learning_rate
        self._optimizer: Any = None
        self._weights: dict[str, Tensor] = {}
        self._last = 0
        self._process = OneProcess("noise of rounds")

    def merge(
        self,
        round_number: int,
        sums: Mapping[str, State],
        previous: State,
        *,
        patients: Mapping[str, int],
    ) -> dict[str, Tensor]:
        """The adapter after a round.

        Args:
            round_number: Above every earlier one: noise that is used twice hides nothing.
            sums: Of each party that took part, decoded against ``previous``.
            previous: What they were made from.
            patients: How many each of these parties has.

        Raises:
            PrivacyBroken: A round that was merged, or one beyond the plan.
            UpdateRefused: A sum that no clipped gradients can have.
            UsageError: No party took part.
            ForkRefused: Another process merges.
        """
        self._process.require()
        import torch

        plan = self._plan
        if not self._last < round_number <= plan.rounds:
            raise PrivacyBroken(
                "noise would be drawn for a round that had its own",
                check="round",
                got=round_number,
                expected=f"{self._last + 1} to {plan.rounds}",
                hint="begin a new run",
            )
        if not sums:
            raise UsageError("no sum to merge was given")
        for party, state in sums.items():
            refuse_unclipped(plan.privacy, party, state, patients[party])
        self._last = round_number
        deviation = plan.noise_multiplier * plan.privacy.max_patient_norm
        expected = plan.rate * sum(patients[party] for party in sums)
        if self._optimizer is None:
            self._weights = {name: tensor.clone() for name, tensor in previous.items()}
            self._optimizer = torch.optim.AdamW(self._weights.values(), weight_decay=0.0)
        for name, weight in self._weights.items():
            drawn = self._noise.gaussian_noise(weight.numel(), deviation, round_number, name)
            total = drawn.reshape(tuple(weight.shape))
            for party in sorted(sums):
                total = total + sums[party][name].double().numpy()
            weight.copy_(previous[name])
            weight.grad = torch.from_numpy(round_to_grid(total, deviation) / expected).float()
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * (1 - (round_number - 1) / plan.rounds)
        self._optimizer.step()
        return {name: tensor.detach().clone() for name, tensor in self._weights.items()}


def refuse_unclipped(privacy: PatientPrivacy, party: str, state: State, patients: int) -> None:
    """See that clipped gradients of so many patients can have this sum.

    Raises:
        UpdateRefused: It is longer.
    """
    most = patients * privacy.max_patient_norm
    norm = math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in state.values()))
    if not norm <= most:
        raise UpdateRefused(
            "a sum is longer than all of a party's patients could make it",
            owner=party,
            check="norm",
            got=f"{norm:.4g}",
            expected=f"at most {most:.4g}",
        )
