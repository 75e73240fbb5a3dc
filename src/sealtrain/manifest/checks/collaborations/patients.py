"""Check that the log of rounds that hide patients keeps the recipe's promise to them.

Pure rules beside those of ``rounds``, which reads the log (spec/federated-rounds.md §6):

7. each party joins with a number of patients, always the same;
8. before the first round the noise is planned once: from the patients of exactly the parties that
   are there, at the rate that the recipe means, with the recipe's noise where it names one;
9. the plan spends no more than the recipe promises, and says no less than this verifier's own
   computation for such rounds (``manifest.accounting``);
10. every round is merged under the plan's noise, and no figure of any update is told;
11. the manifest's section on privacy is what recipe, plan and parties come to.

Where the recipe promises nothing, the log says nothing of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import AllowInfNan, Field

from sealtrain.base.models import OwnerName, StrictModel
from sealtrain.manifest.accounting import TOLERANCE, epsilon_of_rounds
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import PatientTraining, Predicate
from sealtrain.recipe.collaborations.patients import PatientPrivacy

_Count = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]
_Number = Annotated[float, AllowInfNan(False)]


class PlannedFields(StrictModel):
    """Fields of ``federation.planned``."""

    patients: dict[OwnerName, _Count] = Field(min_length=1, max_length=256)
    rate: Annotated[_Number, Field(gt=0, le=1)]
    noise_multiplier: Annotated[_Number, Field(ge=1e-3, le=1e6)]
    epsilon: Annotated[_Number, Field(ge=0, le=1e6)]


class Breach(NamedTuple):
    """What an entry of the log breaks."""

    field: str
    what: str


@dataclass
class Hiding:
    """The log as far as it was read. Each method tells what is wrong, ``None`` for nothing.

    Attributes:
        promised: By the recipe; ``None`` for nothing.
        rounds: The recipe's.
        patients: Of each party that joined.
        plan: Once it was made.
    """

    promised: PatientPrivacy | None
    rounds: int
    patients: dict[str, int] = field(default_factory=dict)
    plan: PlannedFields | None = None

    def join(self, party: str, patients: int | None) -> Breach | None:
        """A party joined with so many patients."""
        if (patients is None) != (self.promised is None):
            return Breach(
                "patients", f"{party} joined, and the log and the recipe do not agree on patients"
            )
        if patients is not None and self.patients.setdefault(party, patients) != patients:
            return Breach("patients", f"{party} came again with another number of patients")
        return None

    def make(self, plan: PlannedFields, there: Iterable[str]) -> Breach | None:
        """The plan was made while these parties were there."""
        promised = self.promised
        if promised is None or self.plan is not None:
            return Breach("event", "noise was planned again, or for a recipe that promises none")
        if plan.patients != {party: self.patients[party] for party in there}:
            return Breach(
                "patients",
                "noise was planned for other patients than those of the parties that were there",
            )
        if plan.rate != promised.patients_a_round / sum(plan.patients.values()):
            return Breach("rate", "noise was planned for another rate than the recipe means")
        if promised.noise_multiplier not in (None, plan.noise_multiplier):
            return Breach("noise_multiplier", "other noise was planned than the recipe names")
        if plan.epsilon > promised.target_epsilon:
            return Breach("target_epsilon", "the plan spends more than the recipe promises")
        spent = epsilon_of_rounds(
            noise=plan.noise_multiplier,
            rate=plan.rate,
            rounds=self.rounds,
            delta=promised.delta,
        )
        if plan.epsilon < (1 - TOLERANCE) * spent:
            return Breach("epsilon", "the plan spends more than it states")
        self.plan = plan
        return None

    def begin_round(self) -> Breach | None:
        """A round begins."""
        if self.promised is not None and self.plan is None:
            return Breach("event", "a round began before its noise was planned")
        return None

    def give(self, party: str, *, told: Iterable[object]) -> Breach | None:
        """A party gave an update, of which the log tells this."""
        if any((figure is None) != (self.promised is not None) for figure in told):
            return Breach(
                "norm", f"the log tells other figures of an update of {party} than it may"
            )
        return None

    def merge(self, noise_multiplier: float | None) -> Breach | None:
        """A round was merged under such noise."""
        planned = None if self.plan is None else self.plan.noise_multiplier
        if noise_multiplier != planned:
            return Breach(
                "noise_multiplier", "a round was merged under other noise than was planned"
            )
        return None


def privacy_is(predicate: Predicate, hiding: Hiding) -> str:
    """(11) The manifest's section is what the log came to.

    Returns:
        What was kept, for the reader; empty where the recipe promises nothing.

    Raises:
        ClaimContradicted: It is another.
    """
    promised, plan, claimed = hiding.promised, hiding.plan, predicate.privacy
    if promised is None or plan is None:
        return ""
    collaboration = predicate.collaboration
    parties = () if collaboration is None else collaboration.parties
    came: Mapping[str, Any] = {
        "dp": "patients",
        "epsilon": plan.epsilon,
        "delta": promised.delta,
        "accountant": promised.accountant,
        "noise_multiplier": plan.noise_multiplier,
        "max_patient_norm": promised.max_patient_norm,
        "records_a_patient": promised.records_a_patient,
        "sampling": "poisson",
        "unit": "patient",
        "sample_rate": plan.rate,
        "rounds": hiding.rounds,
        "parties": [
            {"name": member.name, "patients": hiding.patients[member.name]}
            for member in sorted(parties, key=lambda party: party.name)
        ],
    }
    said = claimed.to_dict() if isinstance(claimed, PatientTraining) else {"dp": claimed.dp}
    for name, expected in came.items():
        if said.get(name) != expected:
            raise ClaimContradicted(
                "the manifest claims other privacy than its rounds had",
                check="privacy",
                got=f"{name}: {said.get(name)}",
                expected=f"{name}: {expected}",
            )
    return f"; epsilon {plan.epsilon:.4g} at delta {promised.delta:g} for one patient of one party"
