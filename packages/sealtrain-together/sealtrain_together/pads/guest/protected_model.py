"""The frozen layers of one process's model, multiplied by an untrusted machine under pads.

The workload of a run (``pads.guest.workload``) and a party of a federation
(``federated.guest.join``) use it alike: it gets connections to the accelerator and to a dealer,
protects the model, and says what it did in the words of a run log (``padfacts``). Each one is one
session: its pads are in the memory of this process, and none of them outlives it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.guest.helper_machines import place_of
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun, PadsSpent, layer_counts
from sealtrain.recipe.collaborations.pads import ProductSettings, product_settings
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.pads.connections import SECONDS, conversation

if TYPE_CHECKING:
    from sealtrain.guest.guest import AttestedGuest
    from sealtrain_together.pads.accelerator import ConnectedAccelerator
    from sealtrain_together.pads.dealer import ConnectedDealer
    from sealtrain_together.pads.pads import Supplier
    from sealtrain_together.pads.pool import OwnPool
    from sealtrain_together.pads.protect import Protected

POOL_FILE: Final = "pads.pool"
_POOL_BYTES: Final = 1 << 30
_LOT_STEPS: Final = 8
_LONG: Final = 1024
"""Tokens of a record where the recipe sets no limit."""


class Machines(Protocol):
    """The machines that this process uses, and where it may keep a pool.

    Attributes:
        folder: For the pool.
        room: Bytes that a pool may take of it.
        proved: What the dealer proved to this process; ``None`` where it proved nothing to it.
    """

    folder: Path
    room: int
    proved: dict[str, Any] | None

    def accelerator(self) -> ConnectedAccelerator:
        """Connect to the accelerator. Called once.

        Raises:
            AcceleratorUnreachable: Nothing answers.
        """

    def dealer(self) -> ConnectedDealer:
        """Connect to a dealer that proved itself. Called once, where the recipe has one.

        Raises:
            DealerUnreachable: Nothing answers.
            Refused: It is not the dealer that the owners' policy allows.
        """


class ReachedMachines:
    """The ``Machines`` of a guest that reaches and proves by itself.

    Args:
        guest: Its recipe has products made under pads, and its settings name the machines.
        run_id: Under which the guest is known to a dealer: a party's is its own.
        seconds: For each answer of accelerator and dealer.
    """

    room = _POOL_BYTES

    def __init__(self, guest: AttestedGuest, run_id: str, *, seconds: float = SECONDS) -> None:
        self._guest, self._run_id, self._seconds = guest, run_id, seconds
        self.folder = guest.settings.out
        self.proved: dict[str, Any] | None = None

    def accelerator(self) -> ConnectedAccelerator:
        """As ``Machines``."""
        from sealtrain_together.pads.accelerator import RemoteAccelerator

        return RemoteAccelerator(*self._place("accelerator"), seconds=self._seconds)

    def dealer(self) -> ConnectedDealer:
        """As ``Machines``."""
        from sealtrain_together.pads.dealer import RemoteDealer

        guest = self._guest
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
        self.proved = {"simulated": dealer.peer.simulated}
        return dealer

    def _place(self, name: str) -> tuple[str, int]:
        how = self._guest.recipe.collaboration
        if how is None:
            raise AssertionError("a collaboration asked for the products")
        return place_of(self._guest.settings, name, how)


class OutsideProducts:
    """The ``StandIns`` of one process; connections last as long as the block.

    Args:
        recipe: Has products made under pads.
        machines: That make them.
    """

    def __init__(self, recipe: PhaseRecipe, machines: Machines) -> None:
        self._recipe, self._machines = recipe, machines
        self._how: ProductSettings = product_settings(recipe)
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
        from sealtrain_together.pads.protect import protect

        how = self._how
        accelerator = self._machines.accelerator()
        self._stack.callback(accelerator.close)
        supplier = self._supplier()
        protected = protect(model, accelerator, supplier=supplier, checks=how.checks, skip=how.skip)
        self._stack.callback(protected.engine.close)  # first, before what it asks is closed
        self._protected = protected

    def take_out(self, model: Any) -> None:
        """As ``StandIns.take_out``: the int8 model that was trained."""
        from sealtrain_together.pads.protect import restore

        restore(model)

    @property
    def failure(self) -> SealtrainError | None:
        """What went wrong outside: this process makes no product any more."""
        return None if self._protected is None else self._protected.engine.failure

    @property
    def session(self) -> str:
        """Name of the session (spec/one-time-pads.md §4)."""
        return self._begin().engine.session

    @property
    def layers(self) -> dict[str, int]:
        """Layers whose products leave the guest, counted by their names in a run log."""
        return layer_counts(self._begin().layers)

    @property
    def products(self) -> int:
        """Products of one pass forward."""
        return len(self._begin().layers)

    def report_begun(self) -> PadsBegun:
        """What left the guest, and who makes the pads, of a process that reached them itself."""
        how = self._how
        return PadsBegun.model_validate(
            {
                "pads": how.pads,
                "checks": how.checks,
                "skip": how.skip,
                "layers": self.layers,
                "products": self.products,
                "dealer": self._machines.proved,
            }
        )

    def report_spent(self) -> PadsSpent:
        """What was accepted since the session began."""
        spent = self._begin().engine.spent
        return PadsSpent(
            products=spent.products,
            rows=spent.rows,
            bytes_out=spent.bytes_out,
            bytes_in=spent.bytes_in,
        )

    def _begin(self) -> Protected:
        if self._protected is None:
            raise UsageError("no model was put under pads")
        return self._protected

    def _supplier(self) -> Supplier | None:
        """The source of pads; ``None`` for the guest itself."""
        how, machines = self._how, self._machines
        if how.pads == "own":
            return None
        if how.pads == "pool":
            pool = _pool(machines.folder / POOL_FILE, self._recipe, room=machines.room)
            self._stack.callback(pool.close)
            return pool
        dealer = machines.dealer()
        self._stack.callback(dealer.close)
        return dealer


def _pool(path: Path, recipe: PhaseRecipe, *, room: int) -> OwnPool:
    """A pool for some steps at a time, filled anew by the guest whenever it is used up."""
    from sealtrain_together.pads.exact_products import backend
    from sealtrain_together.pads.pool import OwnPool

    trainer = recipe.trainer
    longest = getattr(trainer, "max_length", None) or _LONG
    lot = _LOT_STEPS * trainer.per_device_train_batch_size * longest
    return OwnPool(path, exact=backend("fastest", "cpu"), lot=lot, room=room)
