"""A run whose frozen layers are multiplied by an untrusted machine (recipe kind ``pads``).

The guest keeps data, adapters and everything that is trained; ``pads`` hides and checks
what leaves. Events of the run log, numbers only:

| event | when | says |
|---|---|---|
| `pads.begun` | layers were replaced, in each process of the run | how pads are made, layers |
| `pads.spent` | at each checkpoint and at the end, since ``pads.begun`` | products, rows, bytes |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from sealtrain_collab.pads.guest.outside import OutsideProducts

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef

__all__ = ["PadStandIns"]


class PadStandIns:
    """The ``StandIns`` of one process of a run; connections last as long as the block.

    Args:
        run: Its recipe is of kind ``pads``.
    """

    def __init__(self, run: GuestRun) -> None:
        self._run = run
        self._outside = OutsideProducts(run, run.run_id)
        self._is_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.__exit__(None)

    def put_in(self, model: Any) -> None:
        """As ``OutsideProducts.put_in``."""
        self._outside.put_in(model)
        self._run.record("pads.begun", self._outside.begun().to_dict())
        self._is_begun = True

    def checkpointed(self, ref: CheckpointRef) -> None:
        """As ``GuestRun.checkpointed``, and first ``note``: the journal is kept with each one."""
        self.note()
        self._run.checkpointed(ref)

    def note(self) -> None:
        """Keep in the run log what was made elsewhere since this process began."""
        if self._is_begun:
            self._run.record("pads.spent", self._outside.spent().to_dict())

    def take_out(self, model: Any) -> None:
        """As ``StandIns.take_out``: the int8 model that was trained."""
        self.note()
        self._outside.take_out(model)
