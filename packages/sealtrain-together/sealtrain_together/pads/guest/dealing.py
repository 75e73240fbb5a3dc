"""A guest that makes pads for others: it has no data and no keys, and holds pad secrets.

It is the same measured deployment as the guest that trains. It deals for guests that proved
themselves and verified this one, each in a session that is one attested channel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import UsageError
from sealtrain.guest.guest import AttestedGuest, Surroundings, run_secluded
from sealtrain.guest.sandbox.border import saying
from sealtrain.recipe.collaborations.pads import product_settings
from sealtrain_together.channel.ports import bind, listening
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest

if TYPE_CHECKING:
    from sealtrain.guest.settings import RunSettings


def deal(
    settings: RunSettings,
    listen: tuple[str, int],
    around: Surroundings,
    *,
    device: str,
    threads: int,
    ready: Callable[[str], object],
) -> None:
    """Be a dealer until the process is told to end.

    Args:
        settings: Lock, guest and collateral; brokers and data are not asked for, and ``out`` is a
            folder that nothing is expected in.
        listen: Host and port; port 0 for any.
        around: What else the guest is given.
        device: Where it multiplies: ``cpu``, ``cuda``.
        threads: It multiplies with, on the CPU.
        ready: Called with address that was bound.

    Raises:
        UsageError: The recipe has no dealer, or the address cannot be bound.
        Refused: This guest did not measure this lock.
        Unreachable: The guest API did not answer.
    """
    guest = AttestedGuest(settings, around).admit()
    import torch

    from sealtrain_together.pads.dealer import Dealer, conversation
    from sealtrain_together.pads.multiplying import Device, Limits

    if (how := product_settings(guest.recipe)).pads != "dealer":
        raise UsageError(
            "the recipe has no dealer",
            check="collaboration",
            got=f"pads: {how.pads}",
            expected="pads: dealer",
        )
    torch.set_num_threads(threads)
    limits = Limits()
    dealer = Dealer(
        conversation(
            None, proof=ProveGuest.of(guest), accept=AcceptGuest.of(guest), random=around.random
        ),
        Device(device, "fastest"),
        limits,
    )
    with bind(listen, what="guests") as listener:
        ready(write_host_and_port(*listener.getsockname()[:2]))

        def work(terminal: TextIO) -> None:
            with listening(
                listener,
                dealer.serve,
                what="guests",
                connections=limits.connections,
                say=saying(terminal),
            ):
                threading.Event().wait()

        run_secluded(guest, work)
