"""A run that was submitted to a broker, from any machine: watched, awaited, stopped, fetched.

The objects behind are those of ``sealtrain run`` (``client.runs``). What decides is proven under
the key of the broker file; ``look`` alone is the broker's word as it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.filenames import slug
from sealtrain.client.ticket import RunTicket, load_ticket
from sealtrain.keys.identity import Identity
from sealtrain.owner.fetching import fetch_outputs
from sealtrain.owner.run import Run
from sealtrain.owner.runs import Completed, Waiting, desk, name_by_content

if TYPE_CHECKING:
    from sealtrain.recipe.lock import LockedRecipe
    from sealtrain.release.run_control import ShownSubmission

WITHIN_SECONDS: Final = 7 * 24 * 3600
"""How long a runner may take to claim a submission, unless its submitter says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRun:
    """A submission at one broker, by its name or id.

    Attributes:
        broker: Broker file.
        name: Name of the submission, or its id of 32 hex digits.
        clock: Time of signing.
    """

    broker: Path
    name: str
    clock: Clock = system_clock

    @classmethod
    def submit(  # what is asked for, of whom and by whom
        cls,
        locked: LockedRecipe,
        ticket: RunTicket | Path,
        *,
        broker: Path,
        identity: Identity | Path,
        name: str | None = None,
        within: int = WITHIN_SECONDS,
        clock: Clock = system_clock,
    ) -> Self:
        """Ask for a run, once: asking again with the same name, recipe and ticket is the same run.

        It approves nothing: keys are released while enough owners approve.

        Args:
            locked: What is run.
            ticket: For its guest, or the file.
            broker: Broker file.
            identity: Of an owner or of a submitter of the broker, or the private file.
            name: Of the submission, as an owner's; from recipe and ticket when ``None``.
            within: Seconds after which nothing is started that no runner has claimed.
            clock: Time of signing.

        Raises:
            SubmissionConflict: Another submission has this name.
            TicketInvalid: The file is no ticket, or a broker's.
            Refused: The broker does not take it otherwise.
            Unreachable: It does not answer.
        """
        given = ticket if isinstance(ticket, RunTicket) else load_ticket(ticket)
        stem = slug(locked.recipe.name, "run")
        chosen = name or name_by_content(stem, locked.target, given)
        with desk(broker, _identity(identity).signer, clock=clock) as asked:
            asked.submit(
                target=locked.target, name=chosen, ticket=given, not_after=clock() + within
            )
        return cls(broker=broker, name=chosen, clock=clock)

    def look(self) -> ShownSubmission:
        """Where the run stands: the runner's word, and the broker's record, both unproven.

        Raises:
            SubmissionUnknown: The broker has no such submission.
            Unreachable: It does not answer.
        """
        with desk(self.broker, clock=self.clock) as asked:
            return asked.find(self.name)

    @property
    def state(self) -> str:
        """``state`` of ``look``, such as ``waiting``, ``started`` or ``completed``."""
        return self.look().state

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_change: Callable[[ShownSubmission], None] = lambda _shown: None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Completed:
        """Wait until the run has completed; what it left, proven to be in the ledger.

        Args:
            timeout: Seconds; ``None`` for as long as it takes.
            on_change: Called with each new state.
            monotonic: Seconds that never go back.
            sleep: Waits so many seconds.

        Raises:
            WaitOver: It has not ended in time; it goes on.
            RunNotCompleted: It failed, or was stopped, skipped or never claimed.
            RunUnconfirmed: Only the runner says that it completed.
            Refused: What the broker shows is not in its ledger.
        """
        with desk(self.broker, clock=self.clock) as asked:
            waiting = Waiting(desk=asked, monotonic=monotonic, sleep=sleep, on_change=on_change)
            return asked.require_completed(waiting.until_ended(self.name, timeout))

    def stop(self, identity: Identity | Path) -> None:
        """Have the run end: its guest seals a checkpoint, and no runner starts it again.

        It withdraws no approval: ``Owner.revoke`` does.

        Args:
            identity: Of its submitter or of an owner, or the private file.

        Raises:
            Refused: It is neither, or the run has ended.
        """
        with desk(self.broker, _identity(identity).signer, clock=self.clock) as asked:
            asked.stop(asked.find(self.name).submission_id)

    def download(self, out: Path, *, store: str | None = None) -> Run:
        """Fetch manifest and sealed model of the completed run, each the one of the ledger.

        Args:
            out: Folder to make; it appears whole or not at all.
            store: URL of the output store; that of the submitted ticket when ``None``.

        Raises:
            RunNotCompleted: It waits, goes on, or ended otherwise.
            RunUnconfirmed: Only the runner says that it completed.
            UsageError: The ticket named no store.
            OutputStoreInvalid: The store holds something else.
            AlreadyExists: ``out`` is there.
        """
        with desk(self.broker, clock=self.clock) as asked:
            shown = asked.find(self.name)
            completed = asked.require_completed(shown)
            url = store or asked.store_of(shown)
        fetch_outputs(url, shown.compose_hash, completed, out)
        return Run(folder=out)


def _identity(given: Identity | Path) -> Identity:
    return Identity.load(given) if isinstance(given, Path) else given
