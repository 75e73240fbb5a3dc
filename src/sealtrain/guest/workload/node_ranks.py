"""The ranks of several nodes as a workload sees them: connected, proven and handed to it.

The keeper meets the other nodes and connects every rank of this one (``guest.fellows``). A rank
asks it for each connection, once, and goes on with it: socket, and the key and the number of the
next frame in each direction. So this process has no key of its node, no address, and no network.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import NodeLost
from sealtrain.guest.workload.channel import AskingEnd
from sealtrain.guest.workload.messages import TakeLink
from sealtrain.training.distributed.ranks import ANSWER_SECONDS
from sealtrain.training.distributed.wire.frames import Position
from sealtrain.training.distributed.wire.link import HandedLink
from sealtrain.training.errors import RankLost

if TYPE_CHECKING:
    from sealtrain.training.distributed.wire.meeting import Wire


class KeptCompany:
    """``training.distributed.ranks.Company`` whose connections a keeper hands over.

    Attributes:
        first: Global number of this node's first rank.
        world: Number of all ranks, of all nodes.
    """

    def __init__(
        self, *, first: int, world: int, links: Callable[[int], Sequence[HandedLink]]
    ) -> None:
        """Connect nothing yet.

        Args:
            first: As the attribute.
            world: As the attribute.
            links: Gives the connections of the rank with this global number.
        """
        self.first, self.world = first, world
        self._links = links
        self._wire: Wire | None = None

    def connect(self, rank: int) -> None:
        """As ``Company``."""
        from sealtrain.training.distributed.wire.group import join
        from sealtrain.training.distributed.wire.meeting import Wire

        self._wire = Wire.taken_over(self._links(rank), rank=rank, world=self.world)
        join(self._wire, timeout_s=ANSWER_SECONDS)

    def leave(self) -> None:
        """As ``Company``; the other ranks learn that it was meant."""
        if self._wire is not None:
            from sealtrain.training.distributed.wire.group import leave

            leave()

    def blamed(self) -> NodeLost | None:
        """The end of the connections, if that is why training failed in this process."""
        if self._wire is None or self._wire.failure is None:
            return None
        return NodeLost(
            "another node of the run ended, or the network between nodes did",
            check="node",
            hint="the run goes on from its last checkpoint when all nodes have joined again",
        )


def links_of(rank: int, world: int, control: AskingEnd) -> list[HandedLink]:
    """Ask the keeper for a rank's connection to each other rank.

    Args:
        rank: Its global number.
        world: Number of all ranks.
        control: This rank's end.

    Raises:
        RankLost: An answer carries none.
    """
    return [_link(peer, *control.ask(TakeLink(rank=peer))) for peer in range(world) if peer != rank]


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
