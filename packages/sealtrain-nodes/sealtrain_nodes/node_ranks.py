"""The ranks of several nodes as a workload sees them: connected, proven and handed to it.

1. The ranks of this guest connect to each other over loopback, by the engine's own transport
   (``wire.guest_groups``); then the border closes.
2. The keeper meets the other nodes and connects every rank of this one to theirs
   (``guest.fellows``). A rank asks it for each connection, once, and goes on with it: socket, and
   the key and the number of the next frame in each direction.

So this process has no key of its node, no address, and no network.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import NodeLost
from sealtrain.guest.workload.channel import AskingEnd
from sealtrain.guest.workload.messages import TakeLink
from sealtrain.training.distributed.ranks import ANSWER_SECONDS
from sealtrain.training.errors import RankLost
from sealtrain_nodes.wire.frames import Position
from sealtrain_nodes.wire.link import HandedLink
from sealtrain_nodes.wire.openfiles import allow_files

if TYPE_CHECKING:
    from sealtrain_nodes.wire.guest_groups import GuestGroups
    from sealtrain_nodes.wire.meeting import Wire


class KeptCompany:
    """``training.distributed.ranks.Company`` whose connections a keeper hands over.

    Attributes:
        first: Global number of this node's first rank.
        ranks: Number of this node's ranks, as of every other.
        world: Number of all ranks, of all nodes.
    """

    def __init__(
        self,
        *,
        first: int,
        ranks: int,
        world: int,
        line: Callable[[int], AskingEnd],
        prepare: Callable[[], None],
    ) -> None:
        """Connect nothing yet.

        Args:
            first: As the attribute.
            ranks: As the attribute.
            world: As the attribute.
            line: The channel to the keeper of the rank with this number within the node.
            prepare: Called in each rank once this node's are connected, before it asks its keeper.
        """
        self.first, self.ranks, self.world = first, ranks, world
        self._line, self._prepare = line, prepare
        self._memory = os.memfd_create("sealtrain-ranks")
        self._wire: Wire | None = None

    def connect(self, rank: int) -> None:
        """As ``Company``. The ranks of this guest connect first: ``prepare`` closes the border."""
        from sealtrain_nodes.wire.joining import join
        from sealtrain_nodes.wire.meeting import Wire

        beside = range(self.first, self.first + self.ranks)
        guest = self._connect_guest(rank) if self.ranks > 1 else None
        allow_files(self.world)
        self._prepare()
        links = links_of(beside, self.world, self._line(rank - self.first))
        self._wire = Wire.taken_over(links, rank=rank, world=self.world, beside=beside)
        join(self._wire, timeout_s=ANSWER_SECONDS, guest=guest)

    def _connect_guest(self, rank: int) -> GuestGroups:
        import torch

        from sealtrain_nodes.wire.guest_groups import GuestGroups

        own = rank - self.first
        return GuestGroups(
            own,
            self.ranks,
            first=self.first,
            memory=self._memory,
            timeout_s=ANSWER_SECONDS,
            device=torch.device("cuda", own) if torch.cuda.is_available() else None,
        )

    def leave(self) -> None:
        """As ``Company``; the other ranks learn that it was meant."""
        if self._wire is not None:
            from sealtrain_nodes.wire.joining import leave

            leave()
        with suppress(OSError):
            os.close(self._memory)

    def explain_failure(self, error: BaseException) -> NodeLost | None:
        """The end of the connections, if that is why training failed in this process.

        Args:
            error: What it failed with. A rank of this guest that is gone ends the run as one of
                another node does: it goes on from its checkpoint.
        """
        if self._wire is None:
            return None
        if self._wire.failure is None and not _is_lost(error):
            return None
        return NodeLost(
            "a rank of the run ended, or the network between nodes did",
            check="node",
            hint="the run goes on from its last checkpoint when all nodes have joined again",
        )


def _is_lost(error: BaseException) -> bool:
    from sealtrain_nodes.wire.guest_groups import is_of_transport

    return isinstance(error, RankLost) or is_of_transport(error)


def links_of(beside: Collection[int], world: int, control: AskingEnd) -> list[HandedLink]:
    """Ask the keeper for a rank's connection to each rank of another node.

    Args:
        beside: Global numbers of the ranks of this node.
        world: Number of all ranks.
        control: This rank's end.

    Raises:
        RankLost: An answer carries none.
    """
    others = [peer for peer in range(world) if peer not in beside]
    return [_link(peer, *control.ask(TakeLink(rank=peer))) for peer in others]


def _link(peer: int, answer: dict[str, Any], descriptor: int | None) -> HandedLink:
    if descriptor is None:
        raise RankLost("the keeper passed no connection", check="keeper")
    return HandedLink(
        rank=peer,
        sock=socket.socket(fileno=descriptor),
        sends=_position(answer["sends"]),
        receives=_position(answer["receives"]),
    )


def _position(stated: dict[str, Any]) -> Position:
    return Position(key=Secret(from_base64(stated["key"])), number=int(stated["number"]))
