"""A run whose frozen layers are multiplied by a machine that nobody trusts (recipe kind ``pads``).

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from sealtrain.base.hostport import host_and_port
from sealtrain.errors import UsageError
from sealtrain.guest.settings import RunSettings
from sealtrain.recipe.collaboration import Pads, of_kind
from sealtrain.recipe.lock import load_lock
from sealtrain.recipe.recipe import Recipe

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain_collab.pads.pads import Supplier
    from sealtrain_collab.pads.pool import OwnPool
    from sealtrain_collab.pads.protect import Protected

__all__ = ["Outsourcing", "addresses", "expect_helpers"]

POOL_FILE: Final = "pads.pool"
_POOL_BYTES: Final = 1 << 30
_LOT_STEPS: Final = 8
_LONG: Final = 1024
"""Tokens of a record where the recipe sets no limit."""
_SECONDS: Final = 120.0


def expect_helpers(settings: RunSettings) -> None:
    """See that a run is told of the machines its recipe needs, before it asks for keys.

    Raises:
        UsageError: One is missing, or named for a recipe that has no use for it.
        LockInvalid: The lock is malformed.
    """
    how = load_lock(settings.lock).recipe.collaboration
    wanted = {
        "accelerator": isinstance(how, Pads),
        "dealer": isinstance(how, Pads) and how.pads == "dealer",
    }
    for name, needed in wanted.items():
        given = getattr(settings, name)
        if needed:
            _expected(name, given)
        if given is not None and not needed:
            raise UsageError(
                f"the recipe has no use for a {name}",
                got=given,
                hint="collaboration in the recipe says where products and pads are made",
            )
        if given is not None:
            host_and_port(given)


def addresses(settings: RunSettings) -> tuple[str, ...]:
    """URLs of the machines that multiply and deal, for the borders of the process."""
    named = (settings.accelerator, settings.dealer)
    return tuple(f"tcp://{one}" for one in named if one is not None)


class Outsourcing:
    """The ``StandIns`` of one process of a run; connections last as long as the block.

    Args:
        run: Its recipe is of kind ``pads``.
    """

    def __init__(self, run: GuestRun) -> None:
        self._run = run
        self._stack = ExitStack()
        self._protected: Protected | None = None

    @classmethod
    @contextmanager
    def of(cls, run: GuestRun) -> Iterator[Outsourcing | None]:
        """That of a run, ``None`` where its recipe has all products made in the guest."""
        if not isinstance(run.recipe.collaboration, Pads):
            yield None
            return
        with cls(run) as standins:
            yield standins

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        place = _place(self._run.settings, "accelerator")
        accelerator = RemoteAccelerator(*place, seconds=_SECONDS)
        self._stack.callback(accelerator.close)
        supplier, dealer = self._supplier(how)
        protected = protect(model, accelerator, supplier=supplier, checks=how.checks, skip=how.skip)
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
        """Who makes pads, and what the run log says of a dealer."""
        if how.pads == "own":
            return None, None
        if how.pads == "pool":
            pool = _pool(self._run.settings.out / POOL_FILE, self._run.recipe)
            self._stack.callback(pool.close)
            return pool, None
        from sealtrain_collab.pads.dealer import RemoteDealer, conversation

        run = self._run
        dealer = RemoteDealer(
            *_place(run.settings, "dealer"),
            conversation(run.run_id, proof=run.proof, accept=run.accepts, random=os.urandom),
            seconds=_SECONDS,
        )
        self._stack.callback(dealer.close)
        return dealer, {"simulated": dealer.peer.simulated}


def _place(settings: RunSettings, name: Literal["accelerator", "dealer"]) -> tuple[str, int]:
    return host_and_port(_expected(name, getattr(settings, name)))


def _expected(name: str, given: str | None) -> str:
    if given is None:
        raise UsageError(
            f"the recipe uses pads, but --{name} is missing",
            expected=f"--{name} HOST:PORT",
            hint=f"start one: sealtrain split {name}",
        )
    return given


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
