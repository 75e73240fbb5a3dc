"""``console agent``: signs for its owner what the owner decides in the console."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.extras import require_extras
from sealtrain.cli.approvals import OwnerOptions, confirm
from sealtrain.cli.brokers import failures
from sealtrain.cli.output import say
from sealtrain.cli.review import review
from sealtrain.errors import UsageError
from sealtrain.owner.imagerecords import image_records
from sealtrain.recipe.needs import needs_of

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.owner.owner_files import AtEach, OwnerFiles
    from sealtrain_console.web.agent import PendingDecision


def agent(
    owner: OwnerOptions,
    deployments: Annotated[
        list[Path],
        typer.Option("--deployment", help="app-compose.json that you may decide on; repeat."),
    ],
    page: Annotated[
        str, typer.Option("--console", help="Address of the console, as it printed it.")
    ] = "http://localhost:8600",
    place: Annotated[
        Path | None, typer.Option("--socket", help="Where to listen [beside the identity file].")
    ] = None,
    enroll: Annotated[bool, typer.Option("--enroll", help="Let one passkey be enrolled.")] = False,
    verified: Annotated[
        list[Path] | None,
        typer.Option("--verified", help="Record of an owner who verified an image; repeat."),
    ] = None,
) -> None:
    """Sign decisions that you make in the console, once you confirm each in this terminal.

    Start it in a terminal of its own. It reads recipes, consortium and brokers itself, and signs
    only what your passkey signed on the console and you confirm here. Ends with Ctrl-C.
    """
    require_extras("the agent", "console")
    from sealtrain_console.web.agent import Agent, answer_one, listening
    from sealtrain_console.web.passkeys import Passkeys, passkey_file

    me = owner.at(None)
    name = me.keys.name
    socket = place or owner.identity.with_name(f"{owner.identity.name}.agent")
    signs = Agent(
        owner=me,
        consortium=owner.consortium,
        deployments=tuple(deployments),
        passkeys=Passkeys(file=passkey_file(owner.identity), origin=page.rstrip("/")),
        confirm=partial(_confirm, me, tuple(verified or ())),
        confirm_passkey=_passkey_confirmed if enroll else None,
        on_signed=_tell,
    )
    with listening(socket) as listener:
        say(f"agent ready {socket}")
        say(f"It signs as {name}; the console takes it with --agent. End it with Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                answer_one(listener, signs)


def _confirm(me: OwnerFiles, verified: tuple[Path, ...], made: PendingDecision) -> bool:
    """Show the recipe as ``approve`` does, and ask for the word."""
    lock = made.locked.lock
    say("")
    if made.intent is None:
        say(f"You are about to revoke {lock.recipe.name}, recipe hash {lock.recipe_hash}")
        return _has_typed("REVOKE")
    records = image_records(me, lock, made.consortium, verified, now=system_clock())
    review(
        lock,
        needs_of(lock.recipe),
        known=made.intent.brokers,
        intent=made.intent,
        until=made.decision.ends,
        verified=records,
    )
    say(f"  digest of the decision {made.digest}")
    return _has_typed("APPROVE")


def _tell(_made: PendingDecision, answers: AtEach[ApprovalTally]) -> None:
    failures(answers)
    for url, tally in answers.done.items():
        say(f"signed; {url} counts {tally.in_words()}")


def _passkey_confirmed(code: str) -> bool:
    say("")
    say(f"A browser made a passkey with the code {code}. It will be one half of your consent.")
    say("Go on only if the page shows this code: another one is another browser's.")
    return _has_typed("ENROLL")


def _has_typed(word: str) -> bool:
    try:
        confirm(word, yes=False)
    except (UsageError, typer.Abort):
        say("nothing was signed")
        return False
    return True
