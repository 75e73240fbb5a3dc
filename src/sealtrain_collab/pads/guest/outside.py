"""The frozen layers of one process's model, multiplied by an untrusted machine under pads.

A guest that trains alone (``pads.guest.stand_ins``) and a party of a federation
(``federated.guest.join``) use it alike: it connects to the accelerator and to a dealer, protects
the model, and says what it did in the words of a run log (``pads.facts``). Each one is one session:
its pads are in the memory of this process, and none of them outlives it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.guest.helper_machines import place_of
from sealtrain.recipe.recipe import Recipe
from sealtrain_collab.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_collab.pads.facts import PadsBegun, PadsSpent, layer_counts
from sealtrain_collab.pads.recipe import ProductSettings, product_settings

if TYPE_CHECKING:
    from sealtrain.guest.guest import AttestedGuest
    from sealtrain_collab.pads.pads import Supplier
    from sealtrain_collab.pads.pool import OwnPool
    from sealtrain_collab.pads.protect import Protected

__all__ = ["POOL_FILE", "OutsideProducts"]

POOL_FILE: Final = "pads.pool"
_POOL_BYTES: Final = 1 << 30
_LOT_STEPS: Final = 8
_LONG: Final = 1024
"""Tokens of a record where the recipe sets no limit."""
_SECONDS: Final = 120.0


class OutsideProducts:
    """The ``StandIns`` of one process; connections last as long as the block.

    Args:
        guest: Its recipe has products made under pads, and its settings name the machines.
        run_id: Under which the guest is known to a dealer: a party's is its own.
        seconds: For each answer of accelerator and dealer.
    """

    def __init__(self, guest: AttestedGuest, run_id: str, *, seconds: float = _SECONDS) -> None:
        self._guest, self._run_id, self._seconds = guest, run_id, seconds
        self._how: ProductSettings = product_settings(guest.recipe)
        self._stack = ExitStack()
        self._protected: Protected | None = None
        self._dealer: dict[str, Any] | None = None

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

        how = self._how
        accelerator = RemoteAccelerator(*self._place("accelerator"), seconds=self._seconds)
        self._stack.callback(accelerator.close)
        supplier = self._supplier()
        protected = protect(model, accelerator, supplier=supplier, checks=how.checks, skip=how.skip)
        self._stack.callback(protected.engine.close)  # first, before what it asks is closed
        self._protected = protected

    def take_out(self, model: Any) -> None:
        """As ``StandIns.take_out``: the int8 model that was trained."""
        from sealtrain_collab.pads.protect import restore

        restore(model)

    @property
    def failure(self) -> SealtrainError | None:
        """What went wrong outside: this process makes no product any more."""
        return None if self._protected is None else self._protected.engine.failure

    @property
    def session(self) -> str:
        """Name of the session (spec/one-time-pads.md §4)."""
        return self._begun().engine.session

    def begun(self) -> PadsBegun:
        """What left the guest, and who makes the pads."""
        how, layers = self._how, self._begun().layers
        return PadsBegun.model_validate(
            {
                "pads": how.pads,
                "checks": how.checks,
                "skip": how.skip,
                "layers": layer_counts(layers),
                "products": len(layers),
                "dealer": self._dealer,
            }
        )

    def spent(self) -> PadsSpent:
        """What was accepted since the session began."""
        spent = self._begun().engine.spent
        return PadsSpent(
            products=spent.products,
            rows=spent.rows,
            bytes_out=spent.bytes_out,
            bytes_in=spent.bytes_in,
        )

    def _begun(self) -> Protected:
        if self._protected is None:
            raise UsageError("no model was put under pads")
        return self._protected

    def _place(self, name: str) -> tuple[str, int]:
        how = self._guest.recipe.collaboration
        if how is None:
            raise AssertionError("a collaboration asked for the products")
        return place_of(self._guest.settings, name, how)

    def _supplier(self) -> Supplier | None:
        """The source of pads; ``None`` for the guest itself."""
        guest, how = self._guest, self._how
        if how.pads == "own":
            return None
        if how.pads == "pool":
            pool = _pool(guest.settings.out / POOL_FILE, guest.recipe)
            self._stack.callback(pool.close)
            return pool
        from sealtrain_collab.pads.dealer import RemoteDealer, conversation

        dealer = RemoteDealer(
            *self._place("dealer"),
            conversation(
                self._run_id,
                proof=ProveGuest.of(guest),
                accept=AcceptGuest.of(guest),
                random=os.urandom,
            ),
            seconds=self._seconds,
        )
        self._stack.callback(dealer.close)
        self._dealer = {"simulated": dealer.peer.simulated}
        return dealer


def _pool(path: Path, recipe: Recipe) -> OwnPool:
    """A pool for some steps at a time, filled anew by the guest whenever it is used up."""
    from sealtrain_collab.pads.exact import backend
    from sealtrain_collab.pads.pool import OwnPool

    trainer = recipe.trainer
    longest = getattr(trainer, "max_length", None) or _LONG
    lot = _LOT_STEPS * trainer.per_device_train_batch_size * longest
    return OwnPool(path, exact=backend("fastest", "cpu"), lot=lot, room=_POOL_BYTES)
