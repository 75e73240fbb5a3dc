"""A party of a federated run: its records stay in this guest, only adapters go to the lead.

1. as ``runner.party``: admit, find, attest and obtain, open, for one owner's datasets;
2. listen for the relay, and build the model;
3. learn what a proven lead asks, round for round, as long as the lease lasts.

A party that was interrupted joins again: it needs its keys anew, and nothing of the rounds before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sealtrain.collab.federated.holding import Holding
from sealtrain.collab.federated.messages import Joined, Learned
from sealtrain.collab.federated.post import Post
from sealtrain.errors import SealtrainError
from sealtrain.runner.federated.terms import conversation_of, terms_of
from sealtrain.runner.party import PartyRun
from sealtrain.runner.seclusion import secluded

if TYPE_CHECKING:
    from sealtrain.collab.channel.answers import Done
    from sealtrain.collab.federated.learner import Learner
    from sealtrain.release.quorum import Told
    from sealtrain.runner.settings import RunSettings

__all__ = ["join"]

_SILENT_ROUNDS = 3


def join(
    settings: RunSettings,
    party: str,
    run_id: str,
    relay: Path,
    *,
    told: Told,
    begun: Callable[[], None],
    progress: bool,
    again: bool = False,
    alone: bool = False,
) -> dict[str, Any]:
    """Take part in a federated run until its lead says that all is done.

    Args:
        settings: Where everything is; ``out`` is the party's own folder.
        party: Owner whose data it holds.
        run_id: As the lead told it.
        relay: Unix socket to make, which the relay's ClientApp connects to.
        told: Hears of each broker that did not help while others suffice.
        begun: Called when a lead may talk to it.
        progress: Tell of each round.
        again: It took part before and was interrupted.
        alone: This process is for the run only: lock it down for good (``runner.lockdown``).

    Returns:
        What it did: party, run id, rounds.

    Raises:
        UsageError: The recipe is for no federation, or names no data of this owner.
        LeaseStale: Its keys must not be used any longer.
        SealtrainError: Whatever else fails.
    """
    run = PartyRun.begin(settings, party, run_id, told=told, resume=again)
    try:
        terms_of(run)
        with Post(relay) as post:
            begun()
            return secluded(
                run,
                lambda terminal: _Work(run, terminal if progress else None).done(post),
                alone=alone,
            )
    finally:
        run.close()


class _Work:
    """What is done while the process holds keys."""

    def __init__(self, run: PartyRun, terminal: TextIO | None) -> None:
        self._run = run
        self._terminal = terminal
        self._rounds: list[int] = []

    def done(self, post: Post) -> dict[str, Any]:
        from sealtrain.collab.federated.learner import Learner

        run = self._run
        with run.keeper:
            self._learner: Learner = Learner(
                run.recipe, run.settings.base, run.sources, party=run.name
            )
            Holding(
                post,
                conversation_of(run, run.run_id),
                Joined(
                    party=run.name,
                    records=self._learner.records,
                    countable=all(one.manifest.records is not None for one in run.found),
                ),
                self,
                may_go_on=run.lease.require,
                patience=float(_SILENT_ROUNDS * terms_of(run).round_seconds),
                told=lambda error: self._say(f"a conversation ended: {error.code}"),
            ).run()
        return {"party": run.name, "run_id": run.run_id, "rounds": self._rounds}

    def learn(self, number: int, state: bytes) -> Done:
        """As ``collab.federated.holding.Work``."""
        self._say(f"round {number}")
        try:
            learned = self._learner.learn(number, state)
        except SealtrainError as error:
            raise self._run.keeper.lapsed(error) from None
        self._rounds.append(number)
        report = self._run.report(self._run.now())
        words = Learned(
            round=number,
            records=learned.records,
            steps=learned.steps,
            loss=learned.loss,
            report=report.to_dict(),
        )
        return words.to_dict(), learned.state

    def finish(self, state: bytes) -> Done:
        """As ``collab.federated.holding.Work``."""
        return self._learner.evaluate(state), b""

    def _say(self, words: str) -> None:
        if self._terminal is not None:
            self._terminal.write(f"{self._run.name}: {words}\n")
            self._terminal.flush()
