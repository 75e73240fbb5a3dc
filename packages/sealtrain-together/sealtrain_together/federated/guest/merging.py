"""The lead's mathematics: adapters merged by the recipe's rule, or sums of gradients under noise.

``Merge`` is what most federations do. ``StrategyMerge`` gives the updates to one of Flower's
strategies (``federated.engine``). ``PatientMerge`` keeps what the recipe promises patients
(spec/federated.md §5): it plans the noise once, from the patients of all parties that have joined,
adds it once a round and tells the log what it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import load_model
from sealtrain.errors import PadsRefused
from sealtrain.manifest.checks.collaborations.sessions import PadSessions
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.adapters import Lora
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain.recipe.collaborations.patients import PatientPrivacy
from sealtrain.recipe.collaborations.strategies import StrategySettings
from sealtrain.training.errors import PrivacyBroken
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.mathematics import Merging, Taken
from sealtrain_together.federated.messages import LearnedMessage, PartyJoined
from sealtrain_together.parties.joint import check_report
from sealtrain_together.parties.lead import LeadRun
from sealtrain_together.parties.party import PartyReport

if TYPE_CHECKING:
    from torch import Tensor

    from sealtrain_together.federated.private import PatientPlan, PrivateMerging


def merging_of(run: LeadRun, terms: Federated, form: Mapping[str, Tensor]) -> Merge:
    """Merges the updates of a run.

    Args:
        run: The lead's.
        terms: Of its recipe.
        form: The adapter before the first round.
    """
    if terms.strategy is not None:
        return StrategyMerge(run, terms, form, terms.strategy)
    kind = Merge if terms.patient_privacy is None else PatientMerge
    return kind(run, terms, form)


class Merge(Merging):
    """Merges by the recipe's rule. Arguments as ``merging_of``.

    Attributes:
        sessions: Of pads, where an accelerator multiplies for the parties.
    """

    def __init__(self, run: LeadRun, terms: Federated, form: Mapping[str, Tensor]) -> None:
        self._run, self._terms, self._form = run, terms, form
        self.sessions = PadSessions(terms.products, terms.local_steps)

    def admit(self, joined: PartyJoined) -> dict[str, JsonValue]:
        """How a party's session of pads began, for the log, where the recipe has products outside.

        Raises:
            UpdateRefused: It is not as the recipe asks for, or for other layers than the lead's.
        """
        breach = self.sessions.join(joined.party, joined.products)
        if breach is not None:
            raise UpdateRefused(breach.what, owner=joined.party, check=breach.field)
        return {} if joined.products is None else {"products": joined.products.to_dict()}

    def outside(self, party: str, learned: LearnedMessage) -> dict[str, JsonValue]:
        """What a party's session of pads came to, for the log.

        Raises:
            PadsRefused: Pads were used twice or by two parties, or were not used.
        """
        breach = self.sessions.give(party, learned.products)
        if breach is not None:
            raise PadsRefused(breach.what, owner=party, check=breach.field)
        return {} if learned.products is None else {"products": learned.products.to_dict()}

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        """Read an update to ``state``. Raises ``UpdateRefused`` for other bytes."""
        from sealtrain_together.federated.update import Update, change_norm, decode_state

        previous = decode_state(state, self._form)
        read = Update(
            party=party, weight=records, state=decode_state(update, self._form, party=party)
        )
        return Taken(
            party=party, records=records, norm=change_norm(read.state, previous), value=read
        )

    def read_report(self, party: str, document: dict[str, Any]) -> PartyReport:
        """A party's report. Raises ``ClaimContradicted`` when it is another's, or none."""
        report = load_model(PartyReport, document, ClaimContradicted, "a party's report")
        if report.name != party:
            raise ClaimContradicted(
                "a party reports under another name", check="party", got=report.name, expected=party
            )
        return check_report(self._run, report)

    def merge(
        self, number: int, taken: Sequence[Taken], state: bytes
    ) -> tuple[bytes, dict[str, JsonValue]]:
        """The adapter after round ``number``; the log needs no more."""
        from sealtrain_together.federated.merging import merge
        from sealtrain_together.federated.update import decode_state, encode_state

        peft, rule = self._run.recipe.peft, self._terms.aggregation
        merged = merge(
            rule,
            [part.value for part in taken],
            decode_state(state, self._form),
            rank=peft.r if rule == "exact" and isinstance(peft, Lora) else None,
            trim=self._terms.trim,
            max_norm=self._terms.max_update_norm,
        )
        return encode_state(merged), {}

    def privacy(self, parties: Sequence[str]) -> dict[str, Any]:
        """The manifest's section on privacy, of a run whose rounds were merged of these parties."""
        return {"dp": "none"}

    def samples(self, steps: int) -> int:
        """Training rows behind so many optimizer steps of all parties together."""
        trainer = self._run.recipe.trainer
        return int(
            steps * trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps
        )


class StrategyMerge(Merge):
    """Merges by one of Flower's strategies. Arguments as ``merging_of``, and its settings."""

    def __init__(
        self,
        run: LeadRun,
        terms: Federated,
        form: Mapping[str, Tensor],
        settings: StrategySettings,
    ) -> None:
        from sealtrain_together.federated.engine import FlowerStrategy

        super().__init__(run, terms, form)
        self._samples = settings.samples
        self.needed = settings.needed
        self._strategy = FlowerStrategy(settings, seed=run.recipe.trainer.seed)

    def choose(self, number: int, present: Sequence[str], state: bytes) -> tuple[str, ...] | None:
        """As ``Merging``; where all are asked, those that come later are asked, too."""
        from sealtrain_together.federated.update import decode_state

        decoded = decode_state(state, self._form)
        arrays = {name: tensor.numpy() for name, tensor in decoded.items()}
        chosen = self._strategy.choose(number, present, arrays)
        return chosen if self._samples else None

    def memory(self) -> bytes:
        """As ``Merging``."""
        return self._strategy.memory()

    def recall(self, memory: bytes) -> None:
        """As ``Merging``."""
        self._strategy.recall(memory)

    def merge(
        self, number: int, taken: Sequence[Taken], state: bytes
    ) -> tuple[bytes, dict[str, JsonValue]]:
        """The adapter after round ``number``, as the strategy makes it of the updates."""
        from torch import from_numpy

        from sealtrain_together.federated.engine import PartyUpdate
        from sealtrain_together.federated.merging import bound
        from sealtrain_together.federated.update import decode_state, encode_state

        most = self._terms.max_update_norm
        previous = decode_state(state, self._form)
        given = []
        for part in taken:
            update = part.value.state
            if most is not None:
                update = {
                    name: tensor.float() for name, tensor in bound(update, previous, most).items()
                }
            arrays = {name: tensor.numpy() for name, tensor in update.items()}
            given.append(PartyUpdate(party=part.party, records=part.records, arrays=arrays))
        merged = self._strategy.merge(number, given)
        return encode_state({name: from_numpy(array) for name, array in merged.items()}), {}


class PatientMerge(Merge):
    """Adds clipped sums and noise. Arguments as ``merging_of``; the recipe promises privacy."""

    def __init__(self, run: LeadRun, terms: Federated, form: Mapping[str, Tensor]) -> None:
        super().__init__(run, terms, form)
        if terms.patient_privacy is None:
            raise TypeError("the recipe promises patients nothing")
        self._promised: PatientPrivacy = terms.patient_privacy
        self._patients: dict[str, int] = {}
        self._plan: PatientPlan | None = None
        self._adding: PrivateMerging | None = None

    def admit(self, joined: PartyJoined) -> dict[str, JsonValue]:
        """How many patients a party has, for the log.

        Raises:
            UpdateRefused: It does not say, or has another number than before: then its coins are
                others, and a round that it gave already would be drawn anew.
        """
        patients, before = joined.patients, self._patients.get(joined.party)
        if patients is None or before not in (None, patients):
            raise UpdateRefused(
                "a party has another number of patients than it joined with",
                owner=joined.party,
                check="patients",
                got=patients if patients is not None else "none",
                expected="how many it has" if before is None else before,
            )
        self._patients[joined.party] = patients
        return {"patients": patients}

    def plan(self, present: Sequence[str]) -> dict[str, JsonValue]:
        """Choose the noise from the patients of the parties that are there, for all rounds.

        A party that joins later takes part at the same rate and under the same noise, at the same
        cost for its patients; a party that leaves costs the others nothing (spec/federated.md §5).

        Raises:
            PrivacyBroken: No noise keeps the promise, or there are too few patients.
        """
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.training.privacy.noise import NoiseSource
        from sealtrain_together.federated.private import PrivateMerging, plan_rounds

        patients: dict[str, JsonValue] = {party: self._patients[party] for party in present}
        rounds = self._terms.rounds
        self._plan = plan = plan_rounds(
            self._promised,
            patients=sum(self._patients[party] for party in present),
            rounds=rounds,
        )
        # A key that only this run ever has: a lead that ends does not go on.
        noise = NoiseSource(DataKey.generate())
        rate = self._run.recipe.trainer.learning_rate
        self._adding = PrivateMerging(plan, noise, learning_rate=rate)
        self.rate = plan.rate
        return {
            "patients": patients,
            "rate": plan.rate,
            "noise_multiplier": plan.noise_multiplier,
            "epsilon": plan.epsilon(rounds),
        }

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        """Read a sum. Raises ``UpdateRefused`` when its patients cannot have it."""
        from sealtrain_together.federated.private import refuse_unclipped
        from sealtrain_together.federated.update import decode_state

        given = decode_state(update, self._form, party=party)
        refuse_unclipped(self._promised, party, given, self._patients[party])
        return Taken(party=party, records=records, norm=None, value=given)

    def merge(
        self, number: int, taken: Sequence[Taken], state: bytes
    ) -> tuple[bytes, dict[str, JsonValue]]:
        """The adapter after round ``number``, and the noise that is in it."""
        from sealtrain_together.federated.update import decode_state, encode_state

        plan, adding = self._plan_merge()
        merged = adding.merge(
            number,
            {part.party: part.value for part in taken},
            decode_state(state, self._form),
            patients=self._patients,
        )
        return encode_state(merged), {"noise_multiplier": plan.noise_multiplier}

    def privacy(self, parties: Sequence[str]) -> dict[str, Any]:
        """As ``Merge``: what all rounds spent of each patient of these parties, at most."""
        plan, _adding = self._plan_merge()
        promised = self._promised
        return {
            "dp": "patients",
            "epsilon": plan.epsilon(plan.rounds),
            "delta": promised.delta,
            "accountant": promised.accountant,
            "noise_multiplier": plan.noise_multiplier,
            "max_patient_norm": promised.max_patient_norm,
            "records_a_patient": promised.records_a_patient,
            "sampling": "poisson",
            "unit": "patient",
            "sample_rate": plan.rate,
            "rounds": plan.rounds,
            "parties": [
                {"name": party, "patients": self._patients[party]} for party in sorted(parties)
            ],
        }

    def samples(self, steps: int) -> int:
        """As ``Merge``, as planned: the number of drawn patients is not published."""
        return self._promised.patients_a_round * self._terms.rounds

    def _plan_merge(self) -> tuple[PatientPlan, PrivateMerging]:
        if self._plan is None or self._adding is None:
            raise PrivacyBroken("rounds began before their noise was planned", check="plan")
        return self._plan, self._adding
