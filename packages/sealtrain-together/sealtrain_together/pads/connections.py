"""Connections of a guest to its accelerator and its dealer, without a library that multiplies.

The process that connects, and proves and verifies, need not be the one that multiplies: the keeper
of a run loads no training library (spec/workload-channel.md §7).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import AcceleratorUnreachable, DataInvalid, LimitExceeded
from sealtrain.training.errors import ChannelCut, PeerUnreachable
from sealtrain_together.channel.channel import reach
from sealtrain_together.channel.handshake import ChannelKeys, ChannelTerms
from sealtrain_together.channel.proofs import Acceptance, Proof
from sealtrain_together.channel.streams import Address, dial
from sealtrain_together.errors import DealerUnreachable

PURPOSE: Final = "pads"
SECONDS: Final = 120.0
"""For each answer of accelerator and dealer."""


def conversation(
    run_id: str | None, *, proof: Proof, accept: Acceptance, random: Any
) -> ChannelTerms:
    """How a guest and a dealer talk.

    Args:
        run_id: 32 hex digits, covered by both proofs; ``None`` at the dealer, for guests of any.
        proof: Proves this end.
        accept: What the other end must be.
        random: Source of ephemeral keys and nonces.
    """
    context: dict[str, JsonValue] | None = None if run_id is None else {"run_id": run_id}
    return ChannelTerms(purpose=PURPOSE, context=context, proof=proof, accept=accept, random=random)


def reach_accelerator(address: Address, *, seconds: float) -> socket.socket:
    """A connection to an accelerator.

    Args:
        address: Host and port.
        seconds: To connect.

    Raises:
        AcceleratorUnreachable: Nothing listens there.
    """
    with accelerator_reached(write_host_and_port(*address)):
        return dial(address, timeout=seconds)


def reach_dealer(
    address: Address, conversation: ChannelTerms, *, seconds: float
) -> tuple[socket.socket, ChannelKeys]:
    """A connection to a dealer that proved itself, with the keys of its channel.

    Args:
        address: Host and port.
        conversation: How this guest proves itself, and what the dealer must be.
        seconds: To connect, and between bytes.

    Raises:
        DealerUnreachable: No dealer answers there, or it did not let this guest in.
        Refused: It is not the dealer to trust, by the class of the first check that fails.
    """
    with dealer_reached(write_host_and_port(*address)):
        return reach(address, conversation, timeout=seconds)


@contextmanager
def accelerator_reached(place: str) -> Iterator[None]:
    """Name the accelerator that is gone, or does not keep to the protocol."""
    try:
        yield
    except (PeerUnreachable, ChannelCut) as error:
        raise accelerator_gone("the accelerator does not answer", place) from error
    except LimitExceeded as error:
        raise accelerator_gone("the accelerator does not keep to the protocol", error.got) from (
            error
        )


def accelerator_gone(problem: str, got: object) -> AcceleratorUnreachable:
    """The error of an accelerator that does not do its part."""
    return AcceleratorUnreachable(
        problem, got=got, hint="see that it runs at that address, or resume with another one"
    )


@contextmanager
def dealer_reached(place: str) -> Iterator[None]:
    """Name the dealer that does not do its part. Altered records stay ``ChannelBroken``."""
    try:
        yield
    except (PeerUnreachable, ChannelCut) as error:
        raise dealer_gone("the dealer does not answer, or ended the session", place) from error
    except (DataInvalid, LimitExceeded) as error:
        raise dealer_gone(
            "the dealer refused a request", f"{error.code}: {error.message}"
        ) from error


def dealer_gone(problem: str, got: object) -> DealerUnreachable:
    """The error of a dealer that does not do its part."""
    return DealerUnreachable(
        problem,
        got=got,
        hint="check the dealer's output and address, or resume with another dealer",
    )
