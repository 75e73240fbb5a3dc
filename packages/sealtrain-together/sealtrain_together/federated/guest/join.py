"""A party of a federated run: its records stay in this guest, only adapters go to the lead.

1. as ``parties.party``: admit, find, attest and obtain, open, for one owner's datasets;
2. listen for the relay, and build the model, its frozen layers under pads where the recipe says so;
3. learn what a proven lead asks, round for round, as long as the lease lasts.

A party that was interrupted joins again: it needs its keys anew, and nothing of the rounds before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sealtrain.errors import SealtrainError
from sealtrain.guest.guest import Surroundings, run_secluded
from sealtrain.guest.helper_machines import addresses, expect_helpers
from sealtrain.manifest.checks.collaborations.sessions import SessionSpent
from sealtrain.recipe.collaborations.patients import patient_privacy_of
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.errors import PrivacyBroken
from sealtrain_together.federated.guest.terms import conversation_of, terms_of
from sealtrain_together.federated.mailbox import Mailbox
from sealtrain_together.federated.messages import (
    MAX_HEADER_BYTES,
    Asked,
    LearnedMessage,
    PartyJoined,
    SealedState,
)
from sealtrain_together.federated.party_server import PartyService
from sealtrain_together.federated.states import SHARE_PURPOSE
from sealtrain_together.pads.guest.protected_model import OutsideProducts, ReachedMachines
from sealtrain_together.parties.party import Participation, PartyRun

if TYPE_CHECKING:
    from sealtrain.guest.settings import RunSettings
    from sealtrain.training.data.sources import Source
    from sealtrain_together.channel.answers import Done
    from sealtrain_together.federated.learner import Learner
    from sealtrain_together.federated.private import PatientRounds


def join(
    settings: RunSettings,
    part: Participation,
    relay: Path,
    around: Surroundings,
    *,
    begun: Callable[[], None],
    progress: bool,
) -> dict[str, Any]:
    """Take part in a federated run until its lead says that all is done.

    Args:
        settings: Where everything is; ``out`` is the party's own folder.
        part: The party, and the run as the lead told it.
        relay: Unix socket to make, which the relay's ClientApp connects to.
        around: What else the guest is given.
        begun: Called when a lead may talk to it.
        progress: Tell of each round.

    Returns:
        What it did: party, run id, rounds.

    Raises:
        UsageError: The recipe is for no federation, names no data of this owner, or needs a machine
            that is not named.
        ProductAltered, AcceleratorUnreachable, PadsRefused: Of the machines that multiply.
        LeaseStale: Its keys must not be used any longer.
        SealtrainError: Whatever else fails.
    """
    expect_helpers(settings)
    with Mailbox(relay) as mailbox:  # a socket that cannot be made leaves no folder
        run = PartyRun.begin(settings, part, around)
        try:
            terms_of(run)
            begun()
            return run_secluded(
                run,
                lambda terminal: _PartyWork(run, terminal, progress=progress).perform(mailbox),
                peers=addresses(settings),
            )
        finally:
            run.close()


class _PartyWork:
    """What is done while the process holds keys."""

    def __init__(self, run: PartyRun, terminal: TextIO, *, progress: bool) -> None:
        self._run = run
        self._terminal = terminal
        self._progress = progress
        self._rounds: list[int] = []
        self._sealed: SealedState | None = None
        self._outside: OutsideProducts | None = None
        if terms_of(run).products is not None:
            self._outside = OutsideProducts(run.recipe, ReachedMachines(run, run.asked_as))

    def perform(self, mailbox: Mailbox) -> dict[str, Any]:
        from sealtrain_together.federated.learner import Learner

        run = self._run
        with run.lease_keeper, self._outside or nullcontext():
            run.count_records(self._write)
            sources = run.sources
            self._learner: Learner = Learner(
                run.recipe, run.base, sources, party=run.name, standins=self._outside
            )
            self._patients = self._patients_of(sources)
            anchor = run.grant.latest_checkpoint
            if anchor is not None:
                self._sealed = SealedState(counter=anchor.counter, digest=anchor.digest)
            PartyService(
                mailbox,
                conversation_of(run, run.run_id),
                self._join,
                self,
                may_go_on=run.lease.require,
                patience=float(terms_of(run).party_patience),
                largest=len(self._learner.initial()) + MAX_HEADER_BYTES,
                on_refused=lambda error: self._say(f"a conversation ended: {error.code}"),
            ).run()
        return {"party": run.name, "run_id": run.run_id, "rounds": self._rounds}

    def _join(self) -> PartyJoined:
        run = self._run
        return PartyJoined(
            party=run.name,
            records=self._learner.records,
            countable=all(dataset.manifest.records is not None for dataset in run.sealed_datasets),
            patients=None if self._patients is None else self._patients.patients,
            share=None if self._patients is not None else run.share(SHARE_PURPOSE).hex(),
            sealed=self._sealed,
            products=None if self._outside is None else self._outside.report_begun(),
        )

    def learn(self, asked: Asked, state: bytes) -> Done:
        """As ``federated.holding.Work``."""
        self._say(f"round {asked.round}")
        try:
            self._know(asked)
            if self._patients is None:
                learned = self._learner.learn(asked.round, state)
                steps, loss, update = learned.steps, learned.loss, learned.state
            else:
                # No loss: it would be a figure of training records that no noise covers.
                steps, loss = 1, None
                update = self._patients.learn(asked.round, state, _rate(asked))
        except SealtrainError as error:
            raise self._run.lease_keeper.explain_end(error) from None
        self._rounds.append(asked.round)
        report = self._run.report(self._run.now())
        words = LearnedMessage(
            round=asked.round,
            records=self._learner.records,
            steps=steps,
            loss=loss,
            report=report.to_dict(),
            products=self._state_spent(),
        )
        return words.to_dict(), update

    def _state_spent(self) -> SessionSpent | None:
        outside = self._outside
        if outside is None:
            return None
        return SessionSpent(session=outside.session, **outside.report_spent().to_dict())

    def _know(self, asked: Asked) -> None:
        """Have brokers anchor the lead's newest state, before anything is learned after it.

        Raises:
            CheckpointRefused: This party, or its brokers, knew a newer one, or another one.
        """
        from sealtrain.training.checkpoints.checkpoint import CheckpointRef

        known, sealed = self._sealed, asked.sealed
        if sealed == known:
            return
        if known is not None and (sealed is None or sealed.counter <= known.counter):
            raise CheckpointRefused(
                "the lead goes on from another sealed state than the one that it told of",
                check="sealed state",
                got="none" if sealed is None else f"{sealed.counter} {sealed.digest}",
                expected=f"{known.counter} {known.digest}, or a higher counter",
            )
        self._sealed = sealed
        if sealed is not None:
            lease_keeper = self._run.lease_keeper
            steps = (asked.round - 1) * terms_of(self._run).local_steps
            lease_keeper.anchor_checkpoint(
                CheckpointRef(counter=sealed.counter, step=steps, digest=sealed.digest)
            )
            if lease_keeper.refused is not None:
                raise lease_keeper.refused

    def _patients_of(self, sources: Sequence[Source]) -> PatientRounds | None:
        """What makes sums that hide patients, where the recipe promises that."""
        promised = patient_privacy_of(self._run.recipe)
        if promised is None:
            return None
        from sealtrain.training.privacy.noise import NoiseSource
        from sealtrain_together.federated.private import PatientBound, PatientRounds

        return PatientRounds(
            self._learner,
            self._run.recipe,
            sources,
            promised=PatientBound(
                patient=promised.patient,
                records_a_patient=promised.records_a_patient,
                max_norm=promised.max_patient_norm,
            ),
            noise=NoiseSource(self._run.secret),
            at_once=self._run.recipe.trainer.per_device_train_batch_size,
        )

    def finish(self, state: bytes) -> Done:
        """As ``federated.holding.Work``."""
        return self._learner.evaluate(state), b""

    def failure(self) -> SealtrainError | None:
        """As ``federated.holding.Work``: after a wrong product no other one is made."""
        return None if self._outside is None else self._outside.failure

    def _say(self, words: str) -> None:
        if self._progress:
            self._write(f"{self._run.name}: {words}")

    def _write(self, line: str) -> None:
        self._terminal.write(f"{line}\n")
        self._terminal.flush()


def _rate(asked: Asked) -> float:
    if asked.rate is None:
        raise PrivacyBroken("the lead asks for a sum without a rate", check="rate", got="none")
    return asked.rate
