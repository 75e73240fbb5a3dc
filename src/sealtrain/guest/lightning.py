"""``SealedLightning`` of a script: the callback for Lightning's trainer, attached to the run.

By itself, because it imports Lightning, which a recipe pins under ``packages``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.guest.script import running
from sealtrain.training.checkpoints import lightning
from sealtrain.training.distributed.ranks import place

if TYPE_CHECKING:
    from sealtrain.training.data.hugging import Positioned


class SealedLightning(lightning.RunLightning):
    """Callback of this run: sealed checkpoints, exact resume, released metrics."""

    def __init__(self) -> None:
        """Attach to the run.

        Raises:
            UsageError: Not inside a run, or in one of several ranks.
        """
        script = running()
        if place().world > 1:
            raise UsageError(
                "Lightning's trainer is not for several ranks of a run",
                check="ranks",
                got=place().world,
                expected="backend.ranks: 1",
                hint="lock the recipe with one rank, or train with Transformers or Accelerate",
            )
        super().__init__(script.context, self._stream)
        script.callback = self
        self._script = script

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Try whether the module could be sealed, then restore the checkpoint if there is one.

        A part of it that a library saves may be what the script seals in the end.
        """
        self._script.try_saving(pl_module, None)
        for part in pl_module.children():
            if hasattr(part, "save_pretrained"):
                self._script.try_saving(part, None)
        super().on_fit_start(trainer, pl_module)

    def _stream(self) -> Positioned:
        streams = self._script.streams
        if len(streams) != 1:
            raise UsageError(
                "Lightning's data position is that of one sealed stream",
                check="loader",
                got=f"{len(streams)} calls of unwrap_dataset() for training data",
                expected="1, without map_style",
            )
        return streams[0]
