"""How a guest learns the key of a dealer: from the dealer's own guest (spec/one-time-pads.md §6).

Both sides prove what they run. The guest then seals its pad secret to a key that only the measured
code of the dealer holds, and a dealer works for guests of its own deployment.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from sealtrain.collab.channel.channel import accept, connect
from sealtrain.collab.channel.handshake import Conversation
from sealtrain.collab.channel.proofs import Acceptance, Peer, Proof
from sealtrain.errors import ChannelBroken
from sealtrain.sealing.hpke import PUBLIC_KEY_BYTES, HpkePublicKey

__all__ = ["PURPOSE", "introduce", "introduced"]

PURPOSE: Final = "pads-dealer"

Random = Callable[[int], bytes]


def introduced(
    address: tuple[str, int],
    *,
    run_id: str,
    proof: Proof,
    accept_dealer: Acceptance,
    random: Random,
    seconds: float,
) -> tuple[HpkePublicKey, Peer]:
    """The key of the dealer at an address, and what it proved.

    Args:
        address: Where it listens.
        run_id: 32 hex digits; both proofs cover it.
        proof: Proves this guest.
        accept_dealer: What the dealer must be.
        random: Source of ephemeral keys and nonces.
        seconds: To connect and between bytes.

    Raises:
        PeerUnreachable: Nobody answers there.
        Refused: It is not the dealer to trust, by the class of the first check that fails.
        ChannelBroken: It told no key.
        DataInvalid: What it told is no key.
    """
    told = Conversation(
        purpose=PURPOSE,
        context={"run_id": run_id},
        proof=proof,
        accept=accept_dealer,
        random=random,
    )
    with connect(address, told, timeout=seconds) as channel:
        raw = channel.receive(max_bytes=PUBLIC_KEY_BYTES)
        if raw is None:
            raise ChannelBroken("the dealer told no key", check="dealer")
        return HpkePublicKey(raw), channel.peer


def introduce(
    connection: socket.socket,
    key: HpkePublicKey,
    *,
    proof: Proof,
    accept_guest: Acceptance,
    random: Random,
    seconds: float,
) -> None:
    """Be the dealer in a conversation that a guest began.

    Args:
        connection: Connected; closed afterwards.
        key: The dealer's own.
        proof: Proves the dealer's guest.
        accept_guest: Whom it deals for.
        random: Source of ephemeral keys and nonces.
        seconds: Between bytes.

    Raises:
        Refused: The other side is nobody to deal for.
        PeerUnreachable: It does not go on.
    """
    told = Conversation(
        purpose=PURPOSE, context=None, proof=proof, accept=accept_guest, random=random
    )
    with accept(connection, told, timeout=seconds) as channel:
        channel.send(key.raw)
