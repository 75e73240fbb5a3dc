"""An accelerator as a guest: no data, no keys, no way out but the two ports it listens on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sealtrain.base.collector import pause_collection
from sealtrain.base.hostport import write_host_and_port
from sealtrain.guest.guest import AttestedGuest, Surroundings, run_secluded
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.travelling import Travelling, program_of
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import bind
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE, LentAccelerator
from sealtrain_together.travelling.trainer_program import Training

if TYPE_CHECKING:
    from sealtrain.guest.settings import RunSettings

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where an accelerator listens, and how patiently.

    Attributes:
        control: For orchestrators.
        writes: For holders.
        patience: Seconds an orchestrator may be silent.
        timeout: Seconds a holder may be silent within a write.
    """

    control: Address
    writes: Address
    patience: float
    timeout: float


def accelerate(
    settings: RunSettings,
    ports: Ports,
    around: Surroundings,
    *,
    threads: int,
    ready: Callable[[str, str], None],
) -> None:
    """Be an accelerator until the process is told to end.

    Args:
        settings: Lock, guest and collateral; brokers and data are not asked for.
        ports: Where to listen.
        around: What else the guest is given.
        threads: It computes with, on the CPU.
        ready: Called with control port and the write port.

    Raises:
        UsageError: The recipe does not travel, or an address cannot be bound.
        Refused: This guest did not measure this lock.
        Unreachable: The guest API did not answer.
    """
    guest = AttestedGuest(settings, around, shared_out=True).admit()
    with pause_collection():  # nor does a trip wait for a look at all of it
        import torch
        import transformers

        transformers.GPT2LMHeadModel  # noqa: B018  # imported now: so that no trip waits for it
    torch.set_num_threads(threads)
    how = of_kind(guest.recipe, Travelling)
    accelerator = LentAccelerator(
        how.buffer_bytes,
        patience=ports.patience,
        program=program_of(guest.recipe),
        training=Training(recipe=guest.recipe, base_dir=guest.base),
    )
    talk = ChannelTerms(
        purpose=CONTROL_PURPOSE,
        context=None,
        proof=ProveGuest.of(guest),
        accept=AcceptGuest.of(guest),
        random=around.random,
    )
    with ExitStack() as stack:
        control = stack.enter_context(bind(ports.control, what="orchestrators"))
        writes = stack.enter_context(bind(ports.writes, what="holders"))
        ready(
            write_host_and_port(*control.getsockname()[:2]),
            write_host_and_port(*writes.getsockname()[:2]),
        )

        def work(_terminal: object) -> None:
            with accelerator.listening(
                control, writes, talk, holders=len(guest.recipe.owners), timeout=ports.timeout
            ):
                threading.Event().wait()  # a signal ends the process, and its memory with it

        run_secluded(guest, work)
