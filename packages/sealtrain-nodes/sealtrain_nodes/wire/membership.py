"""Which ranks a run has: their addresses, their nodes' public keys, and sockets to meet at.

The membership comes from elsewhere, fixed by evidence. An address only says where to look for a
rank; that the process there is the rank is proven by its key and its statement (``handshake``).
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from sealtrain.errors import UsageError

Address = tuple[str, int]

KEY_BYTES: Final = 32
MAX_WORLD: Final = 4096
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class RankPeer:
    """A rank as the others see it.

    Attributes:
        address: Host and port where the rank listens.
        public_key: The node's Ed25519 key, 32 bytes. Ranks of one node share it.
    """

    address: Address
    public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_BYTES:
            raise UsageError(
                "a peer's public key has another length",
                check="membership",
                got=len(self.public_key),
                expected=KEY_BYTES,
            )


@dataclass(frozen=True)
class Membership:
    """All ranks of a run; the index is the rank."""

    peers: tuple[RankPeer, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.peers) <= MAX_WORLD:
            raise UsageError(
                "a membership has too few or too many ranks",
                check="membership",
                got=len(self.peers),
                expected=f"1 to {MAX_WORLD}",
            )

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.peers)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the keys of all ranks in their order, in hex (spec §3)."""
        keys = b"".join(peer.public_key for peer in self.peers)
        return hashlib.sha256(b"sealtrain/node-wire/v1 membership" + keys).hexdigest()

    def elsewhere(self, rank: int) -> tuple[int, ...]:
        """The ranks of other nodes than this rank's, which are those that it is connected to."""
        own = self.peer(rank).public_key
        return tuple(other for other, peer in enumerate(self.peers) if peer.public_key != own)

    def peer(self, rank: int) -> RankPeer:
        """The peer with this rank.

        Raises:
            UsageError: There is no such rank.
        """
        if not 0 <= rank < self.world:
            raise UsageError(
                "no such rank", check="membership", got=rank, expected=f"0 to {self.world - 1}"
            )
        return self.peers[rank]


class Listener:
    """A bound socket at which one rank waits for its peers; a fork inherits it."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    @classmethod
    def open(cls, host: str, port: int = 0) -> Self:
        """Bind and listen.

        Args:
            host: Address of this node that its peers reach.
            port: 0 for any free one.

        Raises:
            UsageError: The address cannot be bound.
        """
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return cls(socket.create_server((host, port), family=family, backlog=_BACKLOG))
        except OSError as error:
            raise UsageError(
                "this node cannot listen at the address",
                check="listener",
                got=f"{host}:{port}, {type(error).__name__}",
                hint="name an address of this machine and a free port",
            ) from error

    @property
    def address(self) -> Address:
        """Host and port that it is bound to."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
