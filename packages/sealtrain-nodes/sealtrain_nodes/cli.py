"""Another node of a run that several guests train together, by its run ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sealtrain.base.hostport import host_and_port
from sealtrain.cli.output import emit
from sealtrain.cli.runoptions import ANYWHERE, surround_alone

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings


def join_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be another node of a run: prove this guest to the lead, and train a part of each step.

    The lead is the guest of role ``train`` whose ticket says where it listens.
    """
    from sealtrain_nodes.guest.join import Joining, join

    if ticket.node is None:
        raise AssertionError("a node's ticket names its number")
    joining = Joining(
        node=ticket.node,
        lead=ticket.peer("lead"),
        listen=host_and_port(ticket.listen or ANYWHERE),
    )
    done = join(settings, joining, surround_alone(stages=True))
    emit(as_json, done, [f"run          {done['run_id']}", f"node         {done['node']}"])
