"""The lead of a federated run: merges the parties' updates and never sees their records.

1. as ``parties.lead``: admit, and have the brokers prove themselves;
2. tell the run's id, for parties to join under, and listen for the relay;
3. build the model, and go through the rounds (``federated.federation``), sealing its state after
   each to the parties (``federated.states``);
4. seal the merged adapter to its recipients, and write the manifest (``parties.joint``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sealtrain.errors import AlreadyExists, DataInvalid, SealtrainError
from sealtrain.guest.guest import Surroundings, run_secluded
from sealtrain.guest.settings import load_run, save_run
from sealtrain.recipe.collaboration import holders_of
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.training.errors import PeerUnreachable, PrivacyBroken
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.federation import Federation, Merged, Rounds
from sealtrain_together.federated.guest.merging import merging_of
from sealtrain_together.federated.guest.terms import conversation_of, terms_of
from sealtrain_together.federated.states import FederationStanding, LeadStates, present_after
from sealtrain_together.parties.joint import close_joint
from sealtrain_together.parties.lead import LeadRun

if TYPE_CHECKING:
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.training.model_files import Trained
    from sealtrain_together.federated.learner import Learner
    from sealtrain_together.federated.messages import SealedState

_STATES = "states"


def lead(
    settings: RunSettings,
    relay: Path,
    around: Surroundings,
    *,
    begun: Callable[[str], None],
    progress: bool,
) -> Outcome:
    """Lead a federated run from its beginning to its manifest.

    Args:
        settings: Where everything is; ``data`` is not read.
        relay: Unix socket to make, which the relay's ServerApp connects to.
        around: What else the guest is given.
        begun: Given the run's id.
        progress: Tell of each round.

    Raises:
        UsageError: The recipe is for no federation.
        TooFewParties: A round had too few updates in its time.
        SealtrainError: Whatever else fails.
    """
    with Carrier(relay) as carrier:  # a socket that cannot be made leaves no folder
        run = LeadRun.begin(settings, around)
        save_run(settings, run.run_id)
        return _lead_rounds(run, carrier, begun=begun, progress=progress)


def resume_lead(
    settings: RunSettings,
    relay: Path,
    around: Surroundings,
    *,
    begun: Callable[[str], None],
    progress: bool,
) -> Outcome:
    """Go on with a run whose lead ended, from its newest sealed state (spec §8).

    Arguments as ``lead``.

    Raises:
        UsageError: The folder holds no federated run.
        AlreadyExists: The run ended with a manifest.
        PrivacyBroken: Its rounds hide patients: the noise of a lead that ended is lost.
        CheckpointRefused: No state is whole, it is not of this run, or an older one than a party
            knows.
        TooFewParties: Too few came to open it.
        SealtrainError: As ``lead``.
    """
    out = settings.out
    _, run_id = load_run(out)
    if (out / RUN_MANIFEST).exists():
        raise AlreadyExists("the run is complete", got=str(out / RUN_MANIFEST))
    with Carrier(relay) as carrier:
        run = LeadRun.again(settings, run_id, around)
        try:
            if terms_of(run).patient_privacy is not None:
                raise PrivacyBroken(
                    "a lead whose rounds hide patients cannot be resumed",
                    check="resume",
                    hint="begin a new run; the spent epsilon stays spent",
                )
        except SealtrainError:
            run.close()
            raise
        save_run(settings, run_id)
        return _lead_rounds(run, carrier, begun=begun, progress=progress)


def _lead_rounds(
    run: LeadRun, carrier: Carrier, *, begun: Callable[[str], None], progress: bool
) -> Outcome:
    try:
        terms = terms_of(run)
        begun(run.run_id)
        return run_secluded(
            run,
            lambda terminal: _LeadWork(
                run, terms, carrier, terminal if progress else None
            ).perform(),
        )
    finally:
        run.close()


class _LeadWork:
    """What is done while parties may be connected."""

    def __init__(
        self, run: LeadRun, terms: Federated, carrier: Carrier, terminal: TextIO | None
    ) -> None:
        from sealtrain.training.telemetry.metric_gate import MetricGate

        self._run, self._terms, self._carrier = run, terms, carrier
        self._terminal = terminal
        self._gate = MetricGate(run.recipe.release_policy, run.keep_metrics, self._show)
        self._last: dict[str, float] = {}
        self._states: LeadStates | None = None
        if terms.patient_privacy is None:
            self._states = LeadStates(
                run.settings.out / _STATES,
                run.run_id,
                min_parties=terms.min_parties,
                journal=lambda: run.journal.to_dict() | {"wall_s": round(run.wall(), 3)},
                take_up=self._take_up,
            )
        waits = self._states is not None and self._states.waiting
        if not waits and not run.journal.log.entries:  # nothing was sealed: it begins again
            run.begin_log()

    def perform(self) -> Outcome:
        from sealtrain.manifest.checks.collaborations.padfacts import layer_counts
        from sealtrain_together.federated.learner import Learner
        from sealtrain_together.pads.protect import IntegerWeights

        run, terms = self._run, self._terms
        self._carrier.serve()
        rounded = None if terms.products is None else IntegerWeights(terms.products.skip)
        learner = Learner(run.recipe, run.base, (), party="lead", standins=rounded)
        self._merging = merging_of(run, terms, learner.form)
        if rounded is not None:
            self._merging.sessions.layers = layer_counts(rounded.layers)
        federation = Federation(
            Rounds(
                rule=terms.aggregation,
                rounds=terms.rounds,
                min_parties=terms.min_parties,
                round_seconds=terms.round_seconds,
                joining_seconds=terms.joining_seconds,
                parties=holders_of(run.recipe),
            ),
            self._carrier,
            conversation_of(run, run.run_id),
            self._merging,
            record=run.record,
            on_merged=self._note_merge,
            states=self._states,
        )
        merged = federation.run(learner.initial())
        reports = [report for _party, report in sorted(merged.reports.items())]
        return close_joint(run, self._train(learner, merged), reports)

    def _take_up(
        self, journal: dict[str, Any], sealed: SealedState, standing: FederationStanding
    ) -> None:
        """Go on with the journal of a lead that ended; its parties were lost with it."""
        run = self._run
        run.take_up(journal)
        steps = standing.round * self._terms.local_steps
        run.record_resume(sealed.counter, steps, sealed.digest)
        self._merging.sessions.recount(run.journal.log.entries)
        for party in present_after(run.journal.log.entries):
            run.record("party.left", {"party": party, "code": PeerUnreachable.code})
        if standing.loss is not None:
            self._last = {"loss": standing.loss}

    def _note_merge(self, number: int, loss: float | None) -> None:
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

    def _train(self, learner: Learner, merged: Merged) -> Trained:
        from sealtrain.training.finite import refuse_not_finite
        from sealtrain.training.model_files import Trained
        from sealtrain.training.telemetry.facts import accelerators, environment
        from sealtrain_together.federated.learner import pool_counts

        try:
            measured = pool_counts([counts for _party, counts in sorted(merged.counts.items())])
        except (KeyError, TypeError, ValueError) as error:
            raise DataInvalid("a party's counts are invalid", check="counts") from error
        refuse_not_finite(self._run.recipe.trainer.max_steps, measured)
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        return Trained(
            files=learner.export(merged.state),
            steps=self._run.recipe.trainer.max_steps,
            samples_seen=self._merging.samples(merged.steps),
            tokens=None,
            metrics=self._gate.filter({**self._last, **finite}),
            environment=environment(),
            accelerators=accelerators(),
            withheld=dict(self._gate.withheld),
            privacy=self._merging.privacy(tuple(merged.reports)),
        )
