"""``init``: write down who the owners are and how many must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add this noun's commands to the root."""
    app.command()(init)


def init(
    name: Annotated[str, typer.Argument(help="Name of the consortium.")],
    owner: Annotated[list[Path], typer.Option(help="Public identity of an owner; repeat.")],
    approve: Annotated[int, typer.Option(help="Owners that must approve a recipe (k of n).")],
    revoke: Annotated[int, typer.Option(help="Owners that suffice to revoke it.")] = 1,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Found a consortium: owners, their public keys and the thresholds."""
    from sealtrain.base.files import atomic_write
    from sealtrain.consortium.members import Consortium
    from sealtrain.records.identity import PublicIdentity

    owners = [PublicIdentity.load(path) for path in owner]
    consortium = Consortium.found(name=name, owners=owners, approve=approve, revoke=revoke)
    atomic_write(out, consortium.to_bytes())
    emit(
        as_json,
        {
            "name": name,
            "consortium_id": consortium.consortium_id,
            "owners": [member.name for member in owners],
            "approve": approve,
            "revoke": revoke,
            "file": str(out),
        },
        [
            f"consortium    {name}",
            f"consortium id {consortium.consortium_id}",
            f"owners        {', '.join(member.name for member in owners)}",
            f"thresholds    approve {approve} of {len(owners)}, revoke {revoke} of {len(owners)}",
        ],
    )
