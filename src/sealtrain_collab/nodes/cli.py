"""``join``: another node of a run that several guests train together."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.hostport import host_and_port
from sealtrain.cli.alone import alone
from sealtrain.cli.output import Json, emit
from sealtrain.cli.runoptions import (
    ANYWHERE,
    FileOptions,
    GuestOptions,
    InputOptions,
    Listen,
    LockFile,
    run_settings,
    served_alone,
)
from sealtrain.cli.train import WaitForLease, say_waiting

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.guestrun import Stored
    from sealtrain.guest.settings import RunSettings

__all__ = ["join", "join_by_ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The node, and where it and its lead are."""

    lead: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the run's first node listens.")
    ]
    node: Annotated[int, typer.Option(min=1, max=255, help="Number of this node, from 1.")]
    listen: Listen = ANYWHERE


def join(
    lock: LockFile,
    guest: GuestOptions,
    inputs: InputOptions,
    place: NodeOptions,
    out: Annotated[Path, typer.Option(help="Folder of this node.")],
    *,
    files: FileOptions,
    wait_for_lease: WaitForLease = None,
    as_json: Json = False,
) -> None:
    """Be another node of a run: prove this guest to the lead, and train a part of each step.

    The lead is the guest that runs: sealtrain train … --listen HOST:PORT.
    """
    alone()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave as with Ctrl-C
    settings = run_settings(lock, guest, files, brokers=inputs.brokers, data=inputs.data, out=out)
    if wait_for_lease is None:
        _show(_joined(settings, place), as_json)
        return
    from sealtrain.guest.supervision import Beside, Endurance, supervised

    class Saying(Beside):
        def waits(self, error: SealtrainError, seconds: float) -> None:
            say_waiting(error, seconds)

    def work(_: Stored | None) -> None:
        _show(_joined(settings, place), as_json)

    endures = Endurance(seconds=wait_for_lease, before_run=True)
    supervised(work, work, out=out, endures=endures, beside=Saying())


def join_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be a node of a deployment document (``cli.guest``)."""
    if ticket.node is None:
        raise AssertionError("a node's ticket names its number")
    ticket.peer("lead")
    place = NodeOptions(
        lead=ticket.peers["lead"], node=ticket.node, listen=ticket.listen or ANYWHERE
    )
    _show(_joined(settings, place), as_json)


def _joined(settings: RunSettings, place: NodeOptions) -> dict[str, Any]:
    from sealtrain_collab.nodes.guest.join import Joining
    from sealtrain_collab.nodes.guest.join import join as join_run

    return join_run(
        settings,
        Joining(
            node=place.node,
            lead=host_and_port(place.lead),
            listen=host_and_port(place.listen),
        ),
        served_alone(stages=True),
    )


def _show(done: dict[str, Any], as_json: bool) -> None:
    emit(as_json, done, [f"run          {done['run_id']}", f"node         {done['node']}"])
