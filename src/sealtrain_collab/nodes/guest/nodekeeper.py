"""The keeper's side of the workload of a node but the lead: it gives records, and keeps nothing.

Its ranks ask for records, for the base model, for the checkpoint to begin from and for their
connections, once each. Measurements, checkpoints, counts and the model are node 0's: a question
about one of them ends this node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from sealtrain.errors import NodeLost
from sealtrain.guest.desk import RankDesk
from sealtrain.guest.workload.channel import Reply
from sealtrain.guest.workloadkeeper import KeptGuest, WorkloadKeeper, lost

if TYPE_CHECKING:
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.guest.workload.messages import Failed, RankReady
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain_collab.nodes.company import NodeCompany

__all__ = ["NodeKeeper"]


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
    ) -> None:
        """Answer nothing yet.

        Args:
            guest: Holds the keys of this node.
            workload: Waits until it is given something.
            company: Has the connections to the ranks of other nodes.
            resume: Checkpoint to begin from, which the lead sent.
            await_lead: Returns once the lead says why it stopped the run, or says nothing in time.
        """
        super().__init__(guest, workload, fellows=company, resume=resume, served={})
        self._await_lead = await_lead

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
            raise lost(self._workload.status)

    def begin(self, _rank: int, _ready: RankReady) -> Reply:
        """Answer a rank that is ready with what it may ask for."""
        return Reply(self._stated(leads=False, anchored=0))

    def stopped(self) -> NoReturn:
        """End with the others once the lead says why: what they sent it last is under way."""
        self._await_lead()
        raise NodeLost("the lead stopped the run", check="node", got="lease-stale")

    def failed(self, question: Failed) -> None:
        """Take the workload's word for what ended it, as far as that is known here."""
        self._guest.tally.add(question.counts)
        self.fail(self._judged(question))
