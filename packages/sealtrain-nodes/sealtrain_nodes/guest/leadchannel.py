"""A node's side of the conversation with its lead (spec/nodes.md §3).

Its methods are called in this order: ``dial``, ``welcome``, ``introduce``, ``take_checkpoint``;
``tell`` for whatever the node has to say while it trains; ``why`` and ``close`` when it ends. What
the lead says out of turn, or otherwise than the recipe, ends the node.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import atomic_writer
from sealtrain.errors import NodeLost, SealtrainError
from sealtrain.sealing.datakey import KEY_BYTES
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable
from sealtrain_nodes.company import RankPlace
from sealtrain_nodes.errors import NodeRefused
from sealtrain_nodes.messages import (
    PURPOSE,
    FromLead,
    ListeningRank,
    SentCheckpoint,
    Welcome,
    explain_loss,
    raise_if_cut,
    receive,
    send,
)
from sealtrain_together.channel.channel import AttestedChannel, open_over
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.streams import dial

if TYPE_CHECKING:
    from sealtrain.sealing.store import SealedStore
    from sealtrain_nodes.company import NodeCompany
    from sealtrain_together.channel.proofs import Acceptance, Proof

_TICK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 30.0
"""Longest wait for why a run ended: the lead may still seal or clear up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """What a node learns when all nodes are ready.

    Attributes:
        places: Of every rank, in order.
        secret: The run's training secret, 32 bytes.
        checkpoint_key: Of its checkpoints, 32 bytes.
    """

    places: Sequence[RankPlace]
    secret: bytes
    checkpoint_key: bytes


class LeadChannel:
    """See the module. Made by ``dial``."""

    def __init__(
        self, line: socket.socket, channel: AttestedChannel, *, host: str, seconds: float
    ) -> None:
        self._line = line
        self._channel = channel
        self._host = host
        self._seconds = seconds

    @classmethod
    def dial(
        cls,
        lead: tuple[str, int],
        *,
        node: int,
        proof: Proof,
        accept: Acceptance,
        seconds: float,
        source: str | None = None,
    ) -> Self:
        """Prove this node to the lead, and the lead to this node.

        Args:
            lead: Host and port.
            node: Number of this node.
            proof: Makes this node's proof.
            accept: Verifies the lead's.
            seconds: Longest silence of the lead until training begins.
            source: Address of this machine to call from, at which others then reach this node.

        Raises:
            NodeLost: The lead does not answer.
            Refused: A proof does not hold.
        """
        conversation = ChannelTerms(
            purpose=PURPOSE,
            context={"version": 1, "node": node},
            proof=proof,
            accept=accept,
            random=os.urandom,
        )
        try:
            line = dial(lead, timeout=seconds, source=source)
            channel = open_over(line, conversation)
        except (PeerUnreachable, ChannelCut) as error:
            raise NodeLost(
                "the lead of the run does not answer",
                check="node",
                got=error.got or error.code,
                hint="start the first node; name the address that it shows in the ticket "
                "(--peer lead=), and one of this machine that others reach (--listen)",
            ) from error
        return cls(line, channel, host=lead[0], seconds=seconds)

    def welcome(self, *, nodes: Collection[int], ranks: Collection[int]) -> Welcome:
        """The run and its session.

        Args:
            nodes: Numbers of nodes that the recipe lets train.
            ranks: Numbers of ranks of each that it lets train.

        Raises:
            NodeRefused: The lead counts otherwise.
        """
        found: Welcome = self._read().welcome or _other_word()
        if found.nodes not in nodes or found.ranks not in ranks:
            raise NodeRefused(
                "the lead counts other nodes or ranks than the recipe",
                check="nodes",
                got=f"{found.nodes} nodes of {found.ranks} ranks",
                expected=f"{_any_of(nodes)} nodes of {_any_of(ranks)} ranks",
            )
        return found

    def introduce(
        self,
        mine: NodeCompany,
        releases: Sequence[dict[str, Any]],
        *,
        since: int,
        world: int,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Introduced:
        """Tell the lead where this node's ranks are, and learn where all others are.

        Args:
            mine: This node's ranks.
            releases: Its receipts, as JSON.
            since: When it was released its keys.
            world: Number of all ranks.
            meanwhile: Called now and then while other nodes are awaited.

        Raises:
            NodeRefused: The lead lists this node otherwise than it is, or other ranks.
            SealtrainError: What ``meanwhile`` raises.
        """
        key = to_base64(mine.public_key)
        self.tell(
            "ready",
            {
                "ports": list(mine.ports),
                "public_key": key,
                "releases": list(releases),
                "from": to_rfc3339(since),
            },
        )
        self._await(meanwhile)
        members: tuple[ListeningRank, ...] = self._read().members or _other_word()
        secret, checkpoint_key = self._bytes(KEY_BYTES), self._bytes(KEY_BYTES)
        own = range(mine.first, mine.first + len(mine.ports))
        listed = {
            rank: member.port for rank, member in enumerate(members) if member.public_key == key
        }
        if len(members) != world or listed != dict(zip(own, mine.ports, strict=True)):
            raise NodeRefused("the lead lists this node otherwise than it is", check="members")
        places = [
            RankPlace(
                host=member.host or self._host,
                port=member.port,
                public_key=from_base64(member.public_key),
            )
            for member in members
        ]
        mine.watch({"the lead": self._line})
        return Introduced(places=places, secret=secret, checkpoint_key=checkpoint_key)

    def take_checkpoint(
        self, store: SealedStore, receive: Callable[[BinaryIO, int], object]
    ) -> CheckpointRef | None:
        """Wait for the word to begin; what it begins from is in the store then.

        Args:
            store: For the checkpoint, sealed as it comes.
            receive: Writes so many bytes of node 0 to a file.

        Raises:
            NodeLost: The lead is gone.
            SealtrainError: What ``receive`` raises.
        """
        begin = self._read().begin or _other_word()
        sent: SentCheckpoint | None = begin.checkpoint
        if sent is None:
            return None
        ref = CheckpointRef(
            counter=sent.counter, step=sent.step, digest=sent.digest, previous=sent.previous
        )
        blobs = [(ref.name, sent.size)]
        for shard in sent.shards:
            held = ShardRef(
                counter=sent.counter, step=sent.step, number=shard.number, count=shard.count
            )
            blobs.append((held.name, shard.size))
        for name, size in blobs:
            path = store.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_writer(path, mode=0o600, overwrite=True) as file:
                receive(file, size)
        return ref

    def tell(self, name: str, value: Any) -> None:
        """Send one message. Raises ``NodeLost`` where the lead does not take it."""
        send(self._channel, name, value)

    def await_word(self, seconds: float = _GRACE_SECONDS) -> None:
        """Wait until the lead says something or ends the conversation; nothing is read."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.poll(1000 * seconds)

    def why(self, error: NodeLost) -> SealtrainError:
        """What the run ended with, where the lead says so in time; else the error."""
        self._line.settimeout(_GRACE_SECONDS)
        try:
            self._read()
        except (ChannelBroken, NodeLost):
            return error
        except SealtrainError as said:
            return said
        return error

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()

    def _await(self, meanwhile: Callable[[], object]) -> None:
        """Wait until the lead says something, no longer than it may be silent."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        until = time.monotonic() + self._seconds
        while time.monotonic() < until and not poll.poll(1000 * _TICK_SECONDS):
            meanwhile()

    def _read(self) -> FromLead:
        """The lead's next message; raises what it refused with."""
        found: FromLead | None = receive(self._channel, FromLead)
        if found is None:
            raise explain_loss(ChannelCut("the lead ended the conversation", check="channel"))
        if found.refused is not None:
            raise found.refused.error()
        return found

    def _bytes(self, size: int) -> bytes:
        with raise_if_cut():
            found = self._channel.expect(max_bytes=size)
        if len(found) != size:
            raise ChannelBroken("the lead sent other bytes than it announced", check="message")
        return found


def _any_of(numbers: Collection[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _other_word() -> Any:
    raise ChannelBroken("the lead said something else than was due", check="message")
