"""``approvals watch``: an owner's watcher, which calls a webhook when an approval is pending."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock
from sealtrain.cli.brokers import BrokerFiles, failures
from sealtrain.cli.durations import Duration
from sealtrain.cli.ledgermemory import ConsortiumFile
from sealtrain.cli.output import Json, emit, require_name, say
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.errors import Unreachable
from sealtrain.owner import owner_files
from sealtrain.owner.pending_approvals import open_told, pending_at
from sealtrain.owner.webhook import read_webhook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sealtrain.owner.pending_approvals import Told, ToldApprovals
    from sealtrain.owner.webhook import Webhook


def watch(
    owner: Annotated[str, typer.Argument(help="Name of the owner whose approval may be pending.")],
    brokers: BrokerFiles,
    webhook: Annotated[
        Path, typer.Option(help="File with the webhook's URL: https, or http on this machine.")
    ],
    *,
    memory: Annotated[Path, typer.Option(help="File that remembers what was told.")],
    consortium: ConsortiumFile = Path("consortium.json"),
    every: Annotated[
        float, typer.Option(click_type=Duration("s", least=10), help="How often to look.")
    ] = 60,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Call a webhook when a submitted run waits for an owner's approval, until Ctrl-C.

    The call has no content: no recipe, no hash, no name. Each pending approval is told of once,
    also over restarts. It needs no key and approves nothing; read the recipe and decide with
    sealtrain approve. Which runs are submitted is the broker's word.
    """
    require_name(owner, "OWNER")
    members, target = Consortium.load(consortium), read_webhook(webhook)
    members.owner(owner)
    with open_told(memory) as told:
        if once:
            count, state = _look(brokers, members, owner, told, target)
            emit(as_json, {"pending": count, "state": state}, [f"{count} pending, {state}"])
            return
        say("watcher ready; end it with Ctrl-C")
        with suppress(KeyboardInterrupt):
            while True:
                try:
                    count, state = _look(brokers, members, owner, told, target)
                except Unreachable as error:
                    say(f"{error.label} [{error.code}]: {error.message}")
                else:
                    if state != "nothing-new":
                        emit(
                            as_json,
                            {"pending": count, "state": state},
                            [f"{count} pending, {state}"],
                        )
                time.sleep(every)


def _look(
    brokers: Sequence[Path],
    consortium: Consortium,
    owner: str,
    told: ToldApprovals,
    webhook: Webhook,
) -> tuple[int, Told]:
    """Look at every broker, and call for what is new."""

    def at(path: Path) -> list[str]:
        with BrokerClient.at(load_pin(path)) as client:
            return list(pending_at(client, consortium, owner, now=system_clock()))

    found = failures(owner_files.at_each(tuple(brokers), at))
    pending = {digest for digests in found.done.values() for digest in digests}
    return len(pending), told.tell(sorted(pending), webhook.call)
