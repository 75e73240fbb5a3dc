"""The workload of a run whose frozen layers an untrusted machine multiplies (recipe kind ``pads``).

The workload keeps records, adapters and everything that is trained; ``pads`` hides and checks
what leaves. Its keeper reached accelerator and dealer, and passes it each connection, the dealer's
with the keys of the session (spec/workload-channel.md §7). Events of the run log, numbers only, are
the keeper's to write (``pads.guest.keeper``):

| event | when | says |
|---|---|---|
| `pads.begun` | layers were replaced, in each process of the run | how pads are made, layers |
| `pads.spent` | at each checkpoint and at the end, since ``pads.begun`` | products, rows, bytes |
"""

from __future__ import annotations

import shutil
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    HelperName,
    ProductsBegun,
    ProductsMade,
)
from sealtrain.training.errors import RankLost
from sealtrain_together.channel.channel import go_on
from sealtrain_together.channel.handshake import ChannelKeys
from sealtrain_together.channel.proofs import Peer
from sealtrain_together.channel.streams import prepare
from sealtrain_together.pads.connections import SECONDS
from sealtrain_together.pads.guest.protected_model import OutsideProducts

if TYPE_CHECKING:
    from sealtrain.guest.workload.stubs import WorkloadRun
    from sealtrain_together.pads.accelerator import ConnectedAccelerator
    from sealtrain_together.pads.dealer import ConnectedDealer

_POOL_BYTES: Final = 1 << 30
_POOL_SHARE: Final = 4
"""A pool may take this part of free memory: two files of it lie there while one replaces another,
and its rows once more while they are made."""
_KEY_BYTES: Final = 32


class PassedMachines:
    """The ``Machines`` of a workload: connections that its keeper passes.

    Args:
        run: As the workload sees it.
        seconds: For each answer of accelerator and dealer.
    """

    proved: dict[str, Any] | None = None
    """A dealer proves itself to the keeper."""

    def __init__(self, run: WorkloadRun, *, seconds: float = SECONDS) -> None:
        self._run, self._seconds = run, seconds
        self.folder = run.memory
        self.room = min(_POOL_BYTES, shutil.disk_usage(run.memory).free // _POOL_SHARE)

    def accelerator(self) -> ConnectedAccelerator:
        """As ``Machines``."""
        from sealtrain_together.pads.accelerator import ConnectedAccelerator

        connection, _ = self._take_passed("accelerator")
        return ConnectedAccelerator(connection, "accelerator", seconds=self._seconds)

    def dealer(self) -> ConnectedDealer:
        """As ``Machines``; it proved itself to the keeper."""
        from sealtrain_together.pads.dealer import ConnectedDealer

        connection, fields = self._take_passed("dealer")
        initiator, responder, export = (
            Secret(from_base64(fields[name], length=_KEY_BYTES))
            for name in ("initiator", "responder", "export")
        )
        keys = ChannelKeys(
            initiator=initiator,
            responder=responder,
            export=export,
            peer=Peer(kind="evidence"),
            context={},
        )
        return ConnectedDealer(go_on(connection, keys), "dealer")

    def _take_passed(self, name: HelperName) -> tuple[socket.socket, dict[str, Any]]:
        fields, descriptor = self._run.control.ask(ConnectHelper(name=name))
        if descriptor is None:
            raise RankLost("the keeper passed no connection", check="keeper")
        return prepare(socket.socket(fileno=descriptor), self._seconds), fields


class PadStandIns:
    """The ``StandIns`` of a workload; connections last as long as the block.

    Args:
        run: Its recipe is of kind ``pads``.
    """

    def __init__(self, run: WorkloadRun) -> None:
        self._run = run
        self._outside = OutsideProducts(run.recipe, PassedMachines(run))
        self._noting = threading.Lock()
        self._is_begun = False
        run.store.before_seal = self.note

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.__exit__(None)

    def put_in(self, model: Any) -> None:
        """As ``OutsideProducts.put_in``."""
        outside = self._outside
        outside.put_in(model)
        self._run.ask(ProductsBegun(layers=outside.layers, products=outside.products))
        self._is_begun = True

    def note(self) -> None:
        """Tell the keeper what was made elsewhere since this process began."""
        if not self._is_begun:
            return
        with self._noting:  # counts rise from one message to the next, whichever thread sends them
            spent = self._outside.report_spent()
            self._run.ask(
                ProductsMade(
                    products=spent.products,
                    rows=spent.rows,
                    bytes_out=spent.bytes_out,
                    bytes_in=spent.bytes_in,
                )
            )

    def take_out(self, model: Any) -> None:
        """As ``StandIns.take_out``: the int8 model that was trained."""
        self.note()
        self._outside.take_out(model)
