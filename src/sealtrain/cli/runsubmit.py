"""``run submit``: ask for a run, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.filenames import slug
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, require_name
from sealtrain.cli.run import BrokerFile, IdentityFile, answer
from sealtrain.client.ticket import load_ticket
from sealtrain.keys.identity import Identity
from sealtrain.owner.runs import desk, name_by_content
from sealtrain.recipe.lock import LockedRecipe

_DEFAULT_WITHIN: Final = 7 * 24 * 3600


def submit(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the run: one name is one run [of document and ticket]."),
    ] = None,
    *,
    ticket: Annotated[Path, typer.Option(help="Run ticket (see: deploy ticket).")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    broker: BrokerFile,
    identity: IdentityFile,
    within: Annotated[
        int,
        typer.Option(
            click_type=Duration("s", least=1, most=30 * 24 * 3600),
            help="Nothing is started that no runner has taken until then.",
        ),
    ] = _DEFAULT_WITHIN,
    as_json: Json = False,
) -> None:
    """Submit a run: a runner starts it once, however often you ask.

    Submitting approves nothing: keys are released while enough owners approve.
    """
    if name is not None:
        require_name(name, "NAME")
    given = load_ticket(ticket)
    locked = LockedRecipe.load(deployment)
    chosen = name or name_by_content(slug(locked.recipe.name, "run"), locked.target, given)
    with desk(broker, Identity.load(identity).signer) as asked:
        document, posted = asked.submit(
            target=locked.target, name=chosen, ticket=given, not_after=system_clock() + within
        )
    data = {
        "name": chosen,
        "submission_id": posted.submission_id,
        "first": posted.first,
        "index": posted.index,
        "not_after": document.not_after if posted.first else None,
    }
    answer(
        as_json,
        data,
        [
            f"{'submitted' if posted.first else 'submitted before'}  {chosen}",
            f"id         {posted.submission_id}",
            f"entry      {posted.index}",
            f"next       sealtrain run wait {chosen}",
        ],
    )
