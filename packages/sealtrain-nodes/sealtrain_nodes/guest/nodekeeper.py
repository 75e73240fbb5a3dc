"""The keeper's side of the workload of a node but the lead: it gives records, and keeps nothing.

Its ranks ask for records, for the base model, for the checkpoint to begin from and for their
connections, once each. Measurements, checkpoints, counts and the model are node 0's: a question
about one of them ends this node. So does the end of the lead, a while later: the run is over, and a
workload that lives on would have this node's lease renewed for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from sealtrain.errors import NodeLost
from sealtrain.guest.rank_connection import RankDesk
from sealtrain.guest.workload.channel import Reply
from sealtrain.guest.workloadkeeper import KeptGuest, WorkloadKeeper, lose_workload

if TYPE_CHECKING:
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.guest.workload.messages import Failed, RankReady
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain_nodes.company import NodeCompany

_LEAVING_SECONDS: Final = 30.0


class NodeKeeper(WorkloadKeeper):
    """Keeps the workload of one node. ``keep`` is all of it."""

    def __init__(
        self,
        guest: KeptGuest,
        workload: WorkloadProcess,
        company: NodeCompany,
        *,
        resume: CheckpointRef | None,
        await_lead: Callable[[], object] = lambda: None,
        leaving_seconds: float = _LEAVING_SECONDS,
    ) -> None:
        """Answer nothing yet.

        Args:
            guest: Holds the keys of this node.
            workload: Waits until it is given something.
            company: Has the connections to the ranks of other nodes.
            resume: Checkpoint to begin from, which the lead sent.
            await_lead: Returns once the lead says why it stopped the run, or says nothing in time.
            leaving_seconds: For the workload to end once the lead is gone.
        """
        super().__init__(guest, workload, fellows=company, resume=resume, served={})
        self._company, self._await_lead = company, await_lead
        self._leaving_seconds = leaving_seconds
        self._ends_at: float | None = None

    def keep(self) -> None:
        """Answer until this node's ranks are done; the workload is gone afterwards.

        Raises:
            Restated: What ended the training in this node.
            NodeLost: The lead stopped the run.
            RankLost: The workload ended without a word.
            SealtrainError: What ended this node here.
        """
        self.answer_all([RankDesk(self, rank) for rank in range(len(self._workload.ends))])
        if not self._ended:
            raise lose_workload(self._workload.status)

    def _must_end(self) -> bool:
        if self._ends_at is None and self._company.find_gone() is not None:
            self._ends_at = time.monotonic() + self._leaving_seconds
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self.fail(NodeLost("the lead of the run ended", check="node", got="no word"))
        return super()._must_end()

    def begin(self, _rank: int, _ready: RankReady) -> Reply:
        """Answer a rank that is ready with what it may ask for."""
        return Reply(self._state(leads=False, anchored=0))

    def end_training(self) -> NoReturn:
        """End with the others once the lead says why: what they sent it last is under way."""
        self._await_lead()
        raise NodeLost("the lead stopped the run", check="node", got="lease-stale")

    def note_failure(self, question: Failed) -> None:
        """Take the workload's word for what ended it, as far as that is known here."""
        self._guest.tally.add(question.counts)
        self.fail(self._judge(question))
