"""``nitro run``: the parent instance's side of an enclave."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.signals import Ending
from sealtrain.errors import UsageError
from sealtrain.guest.enclave.handedfiles import MAX_FILES_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from sealtrain.guest.enclave.launch import EnclaveLaunch
    from sealtrain.guest.enclave.parent import EnclaveStage

_MAX_BYTES: Final = 2 << 30


def run(
    eif: Annotated[
        Path, typer.Argument(metavar="EIF", help="Enclave image file, by sealtrain image eif.")
    ],
    deployment: Annotated[
        Path, typer.Option(help="app-compose.json of a recipe or a broker, for platform nitro.")
    ],
    ticket: Annotated[Path, typer.Option(help="Run ticket, by sealtrain deploy ticket.")],
    reach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A server that the enclave may reach besides the ticket's, such as a KMS. "
            "Repeat it.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A file that a broker's document names below /run-data: database, a KMS's "
            "ciphertext, collateral. Repeat it.",
        ),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option(help="Listen at the document's ports on all of this machine's addresses."),
    ] = False,
    nitro_cli: Annotated[str, typer.Option(help="AWS's program, by name or path.")] = "nitro-cli",
    as_json: Json = False,
) -> None:
    """Start an enclave on this parent instance, hand it document and ticket, and carry bytes.

    It waits until the enclave has ended, and ends it when you press Ctrl-C. This machine is trusted
    with nothing: what it could read is encrypted, and what it alters is refused inside.
    """
    from sealtrain.guest.enclave.parent import Parent, ParentMachine
    from sealtrain.guest.enclave.parent import nitro_cli as program
    from sealtrain.guest.enclave.system import VsockSockets
    from sealtrain.guest.enclave.tunnels import Tunnels

    launch = _launch(eif, deployment, ticket, reach or [], _files(file or []))
    if not hasattr(socket, "AF_VSOCK"):
        raise UsageError("this system has no vsock", check="vsock", expected="Linux on EC2")
    say(f"starting an enclave of {launch.processors} processors and {launch.memory_mib} MiB")
    machine = ParentMachine(
        cli=program(nitro_cli),
        vsock=VsockSockets(),
        tunnels=Tunnels(
            launch.servers, on_refusal=lambda server: say(f"no tunnel to {server}: not listed")
        ),
        publish=_listening if publish else None,
    )
    with Ending():
        ended = Parent(launch, machine, on_stage=_say_stages()).run()
    emit(
        as_json,
        {"stage": ended.stage, "status": ended.status, "code": ended.code},
        [f"ended: {ended.code}, exit status {ended.status}"],
    )
    if ended.status != 0:
        raise typer.Exit(4 if ended.status is None else min(ended.status, 125))


def _files(words: list[str]) -> dict[str, bytes]:
    """Files by the names that a broker's document gives."""
    found: dict[str, bytes] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not name or not equals or not path or name in found:
            raise UsageError(
                "not a file to hand in, or one twice",
                check="--file",
                got=word[:80],
                expected="NAME=PATH",
            )
        found[name] = read_bounded(Path(path), MAX_FILES_BYTES)
    return found


def _launch(
    eif: Path, deployment: Path, ticket: Path, reach: list[str], files: dict[str, bytes]
) -> EnclaveLaunch:
    """Judge what is to be started; nothing is, where a part of it is refused."""
    from sealtrain.broker.service.deployment import read_broker_document
    from sealtrain.client.ticket import load_ticket
    from sealtrain.guest.enclave.launch import plan_launch
    from sealtrain.recipe.document import frame_of
    from sealtrain.recipe.errors import LockInvalid
    from sealtrain.recipe.lock import LockedRecipe

    document = read_bounded(deployment, MAX_DEPLOYMENT_BYTES)
    frame = frame_of(document)
    config = None
    if frame.words[:1] == ("guest",):
        config = LockedRecipe.parse(document).recipe.hardware.enclave
    elif frame.words[:2] == ("broker", "serve"):
        read_broker_document(document)
    else:
        raise LockInvalid("deployment document starts no known command", check="document")
    return plan_launch(
        eif,
        read_bounded(eif, _MAX_BYTES),
        document,
        frame,
        load_ticket(ticket.absolute()),
        config=config,
        reach=reach,
        files=files,
    )


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("0.0.0.0", port))  # noqa: S104  # the operator asked for it with --publish
    return made


def _say_stages() -> Callable[[EnclaveStage], None]:
    return lambda stage: say(f"enclave: {stage.stage}")
