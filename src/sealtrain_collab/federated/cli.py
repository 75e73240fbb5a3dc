"""``federate``: several parties train one adapter, each on data that stay in its own guest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.alone import alone
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runoptions import (
    BrokerFiles,
    FileOptions,
    GuestOptions,
    InputOptions,
    LockFile,
    broker_missed,
    run_settings,
)
from sealtrain.cli.train import show_outcome

__all__ = ["join", "lead", "relay"]

Relay = Annotated[
    Path, typer.Option(help="Unix socket to make; the relay's Flower app connects to it.")
]


def lead(
    lock: LockFile,
    guest: GuestOptions,
    brokers: BrokerFiles,
    relay: Relay,
    out: Annotated[Path, typer.Option(help="Folder for model and manifest.")],
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Merge what parties learn, seal the adapter, sign the manifest. Holds no data and no key."""
    alone()
    from sealtrain_collab.federated.guest.lead import lead as lead_run

    settings = run_settings(
        lock,
        guest,
        files,
        brokers=brokers,
        out=out,
    )
    outcome = lead_run(
        settings,
        relay,
        on_failure=broker_missed,
        begun=lambda run_id: say(f"federation ready, run {run_id}"),
        progress=True,
        alone=True,
    )
    show_outcome(outcome, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyOptions:
    """The party, its run and the way to its lead."""

    party: Annotated[str, typer.Option(help="Owner whose data this guest holds.")]
    run: Annotated[str, typer.Option(help="Id of the run, as its lead told it.")]
    relay: Relay


def join(
    lock: LockFile,
    guest: GuestOptions,
    inputs: InputOptions,
    joined: PartyOptions,
    out: Annotated[Path, typer.Option(help="Folder of this party.")],
    *,
    again: Annotated[
        bool, typer.Option("--again", help="It took part before and was interrupted.")
    ] = False,
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Attest, get the keys of one owner's data, and learn what a proven lead asks."""
    alone()
    from sealtrain_collab.federated.guest.join import join as join_run
    from sealtrain_collab.parties.party import Part

    settings = run_settings(
        lock,
        guest,
        files,
        brokers=inputs.brokers,
        data=inputs.data,
        out=out,
    )
    done = join_run(
        settings,
        Part(party=joined.party, run_id=joined.run, resume=again),
        joined.relay,
        on_failure=broker_missed,
        begun=lambda: say(f"party ready, {joined.party}"),
        progress=True,
        alone=True,
    )
    rounds = ", ".join(map(str, done["rounds"])) or "none"
    emit(as_json, done, [f"party        {joined.party}", f"rounds       {rounds}"])


def relay(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    as_json: Json = False,
) -> None:
    """Write the Flower app that carries messages between lead and parties, for: flwr run."""
    from sealtrain_collab.federated.app import FLWR_VERSION, write_app

    write_app(out)
    emit(
        as_json,
        {"app": str(out), "flwr": FLWR_VERSION},
        [f"app          {out}", f"flwr         {FLWR_VERSION}"],
    )
