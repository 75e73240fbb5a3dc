"""A run whose frozen layers are multiplied by an untrusted machine (recipe kind ``pads``).

The guest keeps data, adapters and everything that is trained; ``pads`` hides and checks
what leaves. Events of the run log, numbers only:

| event | when | says |
|---|---|---|
| `pads.begun` | layers were replaced, in each process of the run | how pads are made, layers |
| `pads.spent` | at each checkpoint and at the end, since ``pads.begun`` | products, rows, bytes |
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.guest.helper_machines import place_of
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.recipe import Recipe
from sealtrain_collab.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_collab.pads.recipe import Pads

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain_collab.pads.pads import Supplier
    from sealtrain_collab.pads.pool import OwnPool
    from sealtrain_collab.pads.protect import Protected

__all__ = ["PadStandIns"]

POOL_FILE: Final = "pads.pool"
_POOL_BYTES: Final = 1 << 30
_LOT_STEPS: Final = 8
_LONG: Final = 1024
"""Tokens of a record where the recipe sets no limit."""
_SECONDS: Final = 120.0


class PadStandIns:
    """The ``StandIns`` of one process of a run; connections last as long as the block.

    Args:
        run: Its recipe is of kind ``pads``.
    """

    def __init__(self, run: GuestRun) -> None:
        self._run = run
        self._stack = ExitStack()
        self._protected: Protected | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def put_in(self, model: Any) -> None:
        """As ``StandIns.put_in``.

        Raises:
            AcceleratorUnreachable, DealerUnreachable: Accelerator or dealer do not answer.
            Refused: The dealer is not the one that the owners' policy allows.
            ModelInvalid: No layer can be replaced, or a layer to skip is not there.
        """
        from sealtrain_collab.pads.accelerator import RemoteAccelerator
        from sealtrain_collab.pads.protect import protect

        how = of_kind(self._run.recipe, Pads)
        place = place_of(self._run.settings, "accelerator", how)
        accelerator = RemoteAccelerator(*place, seconds=_SECONDS)
        self._stack.callback(accelerator.close)
        supplier, dealer = self._supplier(how)
        protected = protect(model, accelerator, supplier=supplier, checks=how.checks, skip=how.skip)
        self._stack.callback(protected.engine.close)  # first, before what it asks is closed
        leaves = Counter(_leaf(name) for stack in protected.layers for name in stack)
        self._run.record(
            "pads.begun",
            {
                "pads": how.pads,
                "checks": how.checks,
                "skip": list(how.skip),
                "layers": dict(sorted(leaves.items())),
                "products": len(protected.layers),
                "dealer": dealer,
            },
        )
        self._protected = protected

    def checkpointed(self, ref: CheckpointRef) -> None:
        """As ``GuestRun.checkpointed``, and first ``note``: the journal is kept with each one."""
        self.note()
        self._run.checkpointed(ref)

    def note(self) -> None:
        """Keep in the run log what was made elsewhere since this process began."""
        if self._protected is None:
            return
        spent = self._protected.engine.spent
        names = ("products", "rows", "bytes_out", "bytes_in")
        self._run.record("pads.spent", {name: getattr(spent, name) for name in names})

    def take_out(self, model: Any) -> None:
        """As ``StandIns.take_out``: the int8 model that was trained."""
        from sealtrain_collab.pads.protect import restore

        self.note()
        restore(model)

    def _supplier(self, how: Pads) -> tuple[Supplier | None, dict[str, Any] | None]:
        """The source of pads, and the run log's entry about a dealer."""
        if how.pads == "own":
            return None, None
        if how.pads == "pool":
            pool = _pool(self._run.settings.out / POOL_FILE, self._run.recipe)
            self._stack.callback(pool.close)
            return pool, None
        from sealtrain_collab.pads.dealer import RemoteDealer, conversation

        run = self._run
        dealer = RemoteDealer(
            *place_of(run.settings, "dealer", how),
            conversation(
                run.run_id,
                proof=ProveGuest.of(run),
                accept=AcceptGuest.of(run),
                random=os.urandom,
            ),
            seconds=_SECONDS,
        )
        self._stack.callback(dealer.close)
        return dealer, {"simulated": dealer.peer.simulated}


def _leaf(name: str) -> str:
    """What a layer is called in its block: ``q_proj`` of ``…layers.3.self_attn.q_proj``."""
    return name.removesuffix(".base_layer").rpartition(".")[2]


def _pool(path: Path, recipe: Recipe) -> OwnPool:
    """A pool for some steps at a time, filled anew by the guest whenever it is used up."""
    from sealtrain_collab.pads.exact import backend
    from sealtrain_collab.pads.pool import OwnPool

    trainer = recipe.trainer
    longest = getattr(trainer, "max_length", None) or _LONG
    lot = _LOT_STEPS * trainer.per_device_train_batch_size * longest
    return OwnPool(path, exact=backend("fastest", "cpu"), lot=lot, room=_POOL_BYTES)
