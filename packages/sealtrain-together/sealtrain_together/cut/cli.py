"""A cut model's server, by its run ticket, and ``split client``, the front with a data owner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sealtrain.base.hostport import host_and_port
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runoptions import ANYWHERE, surround_alone
from sealtrain.cli.train import show_outcome

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings

_WAIT_SECONDS: Final = 3600
_PATIENCE_SECONDS: Final = 600

Patience = Annotated[
    float,
    typer.Option(
        click_type=Duration("s", least=1, most=86400, whole=False),
        help="How long the other side may be silent, or gone.",
    ),
]


def serve_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Train the back of a cut model in a guest, on activations that owners' clients send.

    Brokers are asked for the owners' approvals; no key is released. Ends with the manifest. A
    server whose folder holds a run goes on with it.
    """
    from sealtrain.guest.settings import read_held_run
    from sealtrain_together.cut.guest.serve import resume_server, serve

    play = serve if read_held_run(settings.out) is None else resume_server
    outcome = play(
        settings,
        host_and_port(ticket.listen or ANYWHERE),
        surround_alone(),
        wait=max(_WAIT_SECONDS, ticket.wait_seconds),  # owners may come days later
        patience=_PATIENCE_SECONDS,
        ready=lambda place: say(f"cut server ready at {place}"),
        progress=True,
    )
    show_outcome(outcome, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOwnerOptions:
    """The owner, their consortium and their sealed data."""

    identity: Annotated[Path, typer.Option(help="Your private identity file.")]
    consortium: Annotated[Path, typer.Option(help="Your consortium's file.")]
    data: Annotated[
        list[Path], typer.Option(help="Your sealed dataset, or a folder of them; repeat.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How long the owner waits for the server."""

    patience: Patience = _PATIENCE_SECONDS
    wait: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=0, most=86400, whole=False),
            help="How long to call a server that is not there.",
        ),
    ] = 60


def client(
    deployment: Annotated[Path, typer.Option(help="app-compose.json that you approved.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")],
    owner: CutOwnerOptions,
    out: Annotated[Path, typer.Option(help="Folder for the run's manifest.")],
    *,
    base: Annotated[
        Path | None,
        typer.Option(help="Folder the recipe's paths start from [the deployment's]."),
    ] = None,
    calling: CallOptions,
    as_json: Json = False,
) -> None:
    """Send activations of your records to a guest you approved; the records stay with you.

    Your machine runs the front of the model. The guest proves itself first; you sign a consent to
    this one run. A reader of activations can guess at the text: they are for that guest alone.
    """
    from sealtrain.client.connection import own_key
    from sealtrain.consortium.members import Consortium
    from sealtrain.keys.identity import Identity
    from sealtrain.manifest.trainedrecords import records_in_words
    from sealtrain_together.cut.guest.send import Sending, send

    me = Identity.load(owner.identity)
    sending = Sending(
        deployment=deployment,
        server=host_and_port(server),
        me=me,
        consortium=Consortium.load(owner.consortium),
        data=tuple(owner.data),
        base=base or deployment.parent,
        out=out,
        key_of=lambda folder: own_key(folder, me),
        patience=calling.patience,
        wait=calling.wait,
    )
    sent = send(
        sending,
        ready=lambda: say("the server proved itself; records are open"),
        on_sent=_SentCounter(),
    )
    emit(
        as_json,
        sent.to_dict(),
        [
            f"run          {sent.run_id}",
            f"sent         {sent.bytes} bytes of activations",
            *(
                f"records      {name}: {records_in_words({name: counts}, name)}"
                for name, counts in sent.records.items()
            ),
            f"manifest     {sent.manifest}",
            "check it with: sealtrain verify",
        ],
    )


class _SentCounter:
    """Says now and then how much was sent."""

    def __init__(self) -> None:
        self._sent = 0
        self._said = 0

    def __call__(self, size: int) -> None:
        self._sent += size
        if self._sent - self._said >= 64 << 20:
            self._said = self._sent
            say(f"{self._sent >> 20} MiB of activations sent")
