"""``guest``: what a recipe's measured deployment document starts, in every role.

The document fixes everything that owners approve; the run ticket says the rest. After a restart of
the guest the same command continues the run that its folder holds, and on a fresh guest the one
that the output store holds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sealtrain.cli.document_files import lay_out
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.run_process import alone
from sealtrain.cli.runoptions import (
    FileOptions,
    GuestOptions,
    LockFile,
    run_settings,
    surround_alone,
)
from sealtrain.client.errors import TicketInvalid
from sealtrain.storage.address import is_url

if TYPE_CHECKING:
    from sealtrain.attest.guest import Guest
    from sealtrain.client.ticket import RunTicket
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.guestrun import Stored
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.guest.supervision import Work
    from sealtrain.recipe.recipe import PhaseRecipe

    Play = Callable[[RunSettings, RunTicket, bool], None]

_BROKERS: Final = "brokers"


def guest(
    lock: LockFile,
    guest: GuestOptions,
    files: FileOptions,
    ticket: Annotated[
        str, typer.Option(help="Run ticket (made by: sealtrain deploy ticket), or vsock:PORT.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for what the run makes.")],
    as_json: Json = False,
) -> None:
    """Play the role of a run ticket in a guest; a measured deployment document starts this."""
    alone()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave as with Ctrl-C
    from sealtrain.base.outbound import reach_by
    from sealtrain.client.ticket import load_ticket
    from sealtrain.recipe.lockfile import LockSource

    given = load_ticket(ticket)
    reach_by(lambda: given.outbound)
    lock = lay_out(lock, partial(_read_document, guest, files), out.parent)
    source = LockSource(lock)
    recipe = source.lock.recipe
    play = _role(recipe, given.role)
    kept = FileOptions(
        collateral=given.collateral or files.collateral,
        gpu_collateral=files.gpu_collateral,
        base=files.base if given.base is None else Path(given.base),
    )
    settings = run_settings(
        lock,
        guest,
        kept,
        brokers=_broker_files(given, out.parent / _BROKERS),
        data=given.data,
        out=out,
    )
    settings = replace(
        settings,
        accelerator=given.peers.get("accelerator"),
        dealer=given.peers.get("dealer"),
        listen=given.listen if given.role == "train" else None,
        continues=given.continues,
        previous=_previous(given, out.parent),
        submission_id=given.submission_id,
        lock_source=source,
    )
    play(settings, given, as_json)


def _read_document(guest: GuestOptions, files: FileOptions) -> bytes:
    from sealtrain.attest.guest import open_guest, platform_of

    platform = platform_of(guest.platform)
    return open_guest(platform, guest.guest, collateral=files.collateral).app_compose()


def _previous(ticket: RunTicket, folder: Path) -> Path | None:
    """Where the outputs of the run before are, or will lie once they are fetched."""
    if ticket.previous is None:
        return None
    from sealtrain.guest.unattended import PREVIOUS_FOLDER

    return folder / PREVIOUS_FOLDER if is_url(ticket.previous) else Path(ticket.previous)


def _role(recipe: PhaseRecipe, role: str) -> Play:
    """What a role of a recipe's document does.

    Raises:
        TicketInvalid: The document has no such role.
    """
    from sealtrain.recipe.kinds import KINDS

    kind = None if recipe.collaboration is None else KINDS[recipe.collaboration.kind]
    places = {} if kind is None else kind.roles
    roles: dict[str, Play] = {name: partial(_part, recipe, place) for name, place in places.items()}
    if kind is None or kind.guest_trains:
        name, work = ("evaluate", _evaluate) if recipe.phase == "evaluate" else ("train", _train)
        roles[name] = partial(work, recipe)
    if role not in roles:
        raise TicketInvalid(
            "the deployment document has no such role",
            check="role",
            got=role,
            expected=" or ".join(sorted(roles)),
            hint="write the ticket for a role of this recipe",
        )
    return roles[role]


def _broker_files(ticket: RunTicket, folder: Path) -> list[Path]:
    """Write the ticket's broker files: the run keeps their places for its resumption."""
    from sealtrain.base.files import atomic_write, make_folder

    written = []
    with make_folder(folder):
        folder.chmod(0o700)
        for number, pin in enumerate(ticket.brokers, 1):
            written.append(folder / f"{number}.yaml")
            atomic_write(written[-1], pin.to_yaml().encode(), overwrite=True)
    return written


def _train(recipe: PhaseRecipe, settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    from sealtrain.cli.train import show_outcome

    if (outcome := _outcome(recipe, settings, ticket, as_json, progress=True)) is not None:
        show_outcome(outcome, as_json)


def _evaluate(recipe: PhaseRecipe, settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    from sealtrain.cli.evaluate import show_metrics

    if (outcome := _outcome(recipe, settings, ticket, as_json, progress=False)) is not None:
        show_metrics(outcome, as_json)


def _part(
    recipe: PhaseRecipe, place: str, settings: RunSettings, ticket: RunTicket, as_json: bool
) -> None:
    """Play the part of a collaboration that is at ``place``, supervised if the ticket asks so."""
    from sealtrain.base.distributions import load

    play: Play = load(place)
    if not ticket.is_unattended:
        play(settings, ticket, as_json)
        return

    def play_part(_: Stored | None) -> None:
        play(settings, ticket, as_json)

    _supervise(recipe, settings, ticket, begin=play_part, again=play_part)


def _outcome(
    recipe: PhaseRecipe, settings: RunSettings, ticket: RunTicket, as_json: bool, *, progress: bool
) -> Outcome | None:
    """Run to the end, whatever interrupts it; ``None`` where the run was finished before."""
    from sealtrain.guest.run import resume, start
    from sealtrain.guest.settings import load_run
    from sealtrain.recipe.backends import Division, divide_among
    from sealtrain.sealing.trainedmodel import RUN_MANIFEST

    division = Division(ranks=ticket.ranks, nodes=ticket.nodes)

    def begin(stored: Stored | None) -> Outcome:
        return start(
            settings,
            surround_alone(stages=True),
            progress=progress,
            stored=stored,
        )

    def again(stored: Stored | None) -> Outcome:
        return resume(
            *load_run(settings.out),
            surround_alone(stages=True),
            progress=progress,
            stored=stored,
            division=division,
        )

    divide_among(recipe, division)  # refuses before anyone is asked for keys
    outcome = _supervise(recipe, settings, ticket, begin=begin, again=again)
    if outcome is None:
        manifest = settings.out / RUN_MANIFEST
        say("this guest's run is finished")
        emit(as_json, {"manifest": str(manifest)}, [f"manifest     {manifest}"])
    return outcome


def _supervise(
    recipe: PhaseRecipe, settings: RunSettings, ticket: RunTicket, *, begin: Work, again: Work
) -> Outcome | None:
    from sealtrain.attest.guest import open_guest
    from sealtrain.cli.health import health
    from sealtrain.cli.train import say_waiting
    from sealtrain.guest.sandbox.imports import import_only_pinned
    from sealtrain.guest.unattended import STATUS_NAME, Reports, run_unattended
    from sealtrain.recipe.installation import measure_installation

    def guest() -> Guest:
        return open_guest(
            settings.platform,
            settings.guest,
            collateral=settings.collateral,
            gpu_collateral=settings.gpu_collateral,
        )

    # Stores' tools are loaded here, and the run's process, forked from here, takes them over.
    import_only_pinned(measure_installation(recipe).importable)
    with health(ticket.health, settings.out.parent / STATUS_NAME):
        return run_unattended(
            settings,
            ticket,
            begin=begin,
            again=again,
            guest=guest,
            reports=Reports(waits=say_waiting, missed=_say_missed),
        )


def _say_missed(error: SealtrainError) -> None:
    say(f"not in the output store yet [{error.code}]: {error.message}")
