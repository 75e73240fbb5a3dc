"""After each step, training asks the lease keeper whether to stop; all ranks get the same answer.

The lease keeper is all that training knows of leases. The last step's checkpoint is sealed as any
other, and then the lease keeper raises the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from sealtrain.training.distributed.agreement import flag_of_first
from sealtrain.training.distributed.ranks import place

if TYPE_CHECKING:
    from sealtrain.training.checkpoints.saver import CheckpointSaver


class LeaseKeeping(Protocol):
    """The lease keeper, as training sees it."""

    @property
    def anchored(self) -> int:
        """Counter of the newest anchored checkpoint, 0 for none."""

    def must_stop(self, step: int, *, ahead: int, span: int, sealing: float | None) -> bool:
        """Whether training ends after this step. Called by rank 0 only.

        Args:
            step: Optimizer steps done.
            ahead: Calls until the next step that is a better place to stop; 0 for this step.
            span: Calls from here to the next such step after this one, at least 1.
            sealing: Seconds that the last checkpoint took, ``None`` before the first.

        Raises:
            SealtrainError: Training ends now, without a checkpoint.
        """

    def end_training(self) -> NoReturn:
        """Raise the reason why training ended; its checkpoint is sealed."""


def stops_here(
    lease_keeper: LeaseKeeping | None,
    saver: CheckpointSaver | None,
    step: int,
    *,
    ahead: int = 0,
    span: int = 1,
) -> bool:
    """Whether training ends after this step. All ranks ask, and get rank 0's answer.

    Args:
        lease_keeper: Says when to stop, ``None`` without a lease.
        saver: Of rank 0.
        step: As for ``must_stop``, like the rest.
        ahead: See there.
        span: See there.
    """
    if lease_keeper is None:
        return False
    sealing = None if saver is None else saver.seconds
    mine = place()
    wanted = mine.leads and lease_keeper.must_stop(step, ahead=ahead, span=span, sealing=sealing)
    return wanted if mine.world == 1 else flag_of_first(wanted)
