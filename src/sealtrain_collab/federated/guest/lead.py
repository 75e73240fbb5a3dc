"""The lead of a federated run: merges the parties' updates and never sees their records.

1. as ``parties.lead``: admit, and have the brokers prove themselves;
2. tell the run's id, for parties to join under, and listen for the relay;
3. build the model, and go through the rounds (``federated.federation``);
4. seal the merged adapter to its recipients, and write the manifest (``parties.joint``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from sealtrain.errors import DataInvalid
from sealtrain.guest.guest import secluded
from sealtrain.recipe.collaboration import holders_of
from sealtrain_collab.federated.carrier import Carrier
from sealtrain_collab.federated.federation import Federation, Merged, Rounds
from sealtrain_collab.federated.guest.merging import merging_of
from sealtrain_collab.federated.guest.terms import conversation_of, terms_of
from sealtrain_collab.federated.recipe import Federated
from sealtrain_collab.parties.joint import close_joint
from sealtrain_collab.parties.lead import LeadRun

if TYPE_CHECKING:
    from sealtrain.client.quorum import OnBrokerFailure
    from sealtrain.guest.closing import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.training.trained import Trained
    from sealtrain_collab.federated.learner import Learner

__all__ = ["lead"]


def lead(
    settings: RunSettings,
    relay: Path,
    *,
    on_failure: OnBrokerFailure,
    begun: Callable[[str], None],
    progress: bool,
    alone: bool = False,
) -> Outcome:
    """Lead a federated run from its beginning to its manifest.

    Args:
        settings: Where everything is; ``data`` is not read.
        relay: Unix socket to make, which the relay's ServerApp connects to.
        on_failure: Called for each broker that did not help while others suffice.
        begun: Given the run's id.
        progress: Tell of each round.
        alone: This process is for the run only: it gives up for good what it gives up
            (``sandbox.border``).

    Raises:
        UsageError: The recipe is for no federation.
        TooFewParties: A round had too few updates in its time.
        SealtrainError: Whatever else fails.
    """
    run = LeadRun.begin(settings, on_failure=on_failure, alone=alone)
    terms = terms_of(run)
    try:
        with Carrier(relay) as carrier:
            begun(run.run_id)
            return secluded(
                run,
                lambda terminal: _Work(run, terms, carrier, terminal if progress else None).done(),
                alone=alone,
            )
    finally:
        run.close()


class _Work:
    """What is done while parties may be connected."""

    def __init__(
        self, run: LeadRun, terms: Federated, carrier: Carrier, terminal: TextIO | None
    ) -> None:
        from sealtrain.training.telemetry.released import MetricGate

        self._run, self._terms, self._carrier = run, terms, carrier
        self._terminal = terminal
        self._gate = MetricGate(run.recipe.release_policy, run.released_metrics, self._show)
        self._last: dict[str, float] = {}

    def done(self) -> Outcome:
        from sealtrain_collab.federated.learner import Learner

        run, terms = self._run, self._terms
        self._carrier.serve()
        learner = Learner(run.recipe, run.base, (), party="lead")
        self._merging = merging_of(run, terms, learner.form)
        federation = Federation(
            Rounds(
                rule=terms.aggregation,
                rounds=terms.rounds,
                min_parties=terms.min_parties,
                round_seconds=terms.round_seconds,
                parties=holders_of(run.recipe),
            ),
            self._carrier,
            conversation_of(run, run.run_id),
            self._merging,
            record=run.record,
            on_merged=self._merged_once,
        )
        merged = federation.run(learner.initial())
        reports = [report for _party, report in sorted(merged.reports.items())]
        return close_joint(run, self._trained(learner, merged), reports)

    def _merged_once(self, number: int, loss: float | None) -> None:
        # Where rounds hide patients parties tell no loss, and none would be told.
        if loss is not None and self._terms.patient_privacy is None:
            self._last = {"loss": loss}
            self._gate.offer(number * self._terms.local_steps, self._last)

    def _show(self, step: int, values: dict[str, float | None]) -> None:
        if self._terminal is not None:
            shown = " · ".join(f"{name} {value}" for name, value in values.items())
            of = self._terms.rounds
            self._terminal.write(f"round {step // self._terms.local_steps} of {of} · {shown}\n")
            self._terminal.flush()

    def _trained(self, learner: Learner, merged: Merged) -> Trained:
        from sealtrain.training.telemetry.facts import accelerators, environment
        from sealtrain.training.trained import Trained
        from sealtrain_collab.federated.learner import pooled

        try:
            measured = pooled([one for _party, one in sorted(merged.counts.items())])
        except (KeyError, TypeError, ValueError) as error:
            raise DataInvalid("a party's counts are invalid", check="counts") from error
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        return Trained(
            files=learner.export(merged.state),
            steps=self._run.recipe.trainer.max_steps,
            samples_seen=self._merging.samples(merged.steps),
            tokens=None,
            metrics=self._gate.filtered({**self._last, **finite}),
            environment=environment(),
            accelerators=accelerators(),
            withheld=dict(self._gate.withheld),
            privacy=self._merging.privacy(tuple(merged.reports)),
        )
