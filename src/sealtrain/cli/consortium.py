"""``consortium``: write down who the owners are and how many must agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, require_name
from sealtrain.consortium.members import Consortium
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.needs import PURPOSES

OwnData = Annotated[
    bool,
    typer.Option(help="Use an owner's data only while that owner approves; each may stop it."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdOptions:
    """How many owners must agree to what."""

    approve: Annotated[
        int | None, typer.Option(help="Owners that must approve a recipe; a majority.")
    ] = None
    revoke: Annotated[int, typer.Option(help="Owners that suffice to revoke it.")] = 1
    amend_members: Annotated[
        int | None, typer.Option(help="Owners that may change owners and keys; all.")
    ] = None
    amend_thresholds: Annotated[
        int | None, typer.Option(help="Owners that may change thresholds; all.")
    ] = None
    raise_logging: Annotated[
        int | None, typer.Option(help="Owners that may let out logs; as --approve.")
    ] = None
    export_model: Annotated[
        int | None, typer.Option(help="Owners that may let out a model; as --approve.")
    ] = None


def create(
    name: Annotated[str, typer.Argument(help="Name of the consortium.")],
    owner: Annotated[list[Path], typer.Option(help="Public identity of an owner; repeat.")],
    thresholds: ThresholdOptions,
    own_data_consent: OwnData = True,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Found a consortium: owners, their public keys and the thresholds, every one written."""
    require_name(name, "NAME")
    consortium = Consortium.found(
        name=name,
        owners=[PublicIdentity.load(path) for path in owner],
        approve=thresholds.approve,
        revoke=thresholds.revoke,
        amend_members=thresholds.amend_members,
        amend_thresholds=thresholds.amend_thresholds,
        raise_logging=thresholds.raise_logging,
        export_model=thresholds.export_model,
        own_data_consent=own_data_consent,
    )
    consortium.save(out)
    emit(as_json, {**show_consortium(consortium), "file": str(out)}, lines(consortium))


def show_consortium(consortium: Consortium) -> dict[str, object]:
    """A consortium in the form of ``--json``."""
    return {
        "name": consortium.name,
        "consortium_id": consortium.consortium_id,
        "owners": [member.name for member in consortium.owners],
        "thresholds": consortium.thresholds.to_dict(),
        "own_data_consent": consortium.own_data_consent,
    }


def lines(consortium: Consortium) -> list[str]:
    """A consortium as lines of text."""
    number = len(consortium.owners)
    thresholds = [
        f"{count} of {number} to {PURPOSES[name]}" for name, count in consortium.thresholds
    ]
    own = "only while its owner approves" if consortium.own_data_consent else "by the thresholds"
    return [
        f"consortium    {consortium.name}",
        f"consortium id {consortium.consortium_id}",
        f"owners        {', '.join(member.name for member in consortium.owners)}",
        f"thresholds    {thresholds[0]}",
        *(f"              {threshold}" for threshold in thresholds[1:]),
        f"own data      {own}",
    ]
