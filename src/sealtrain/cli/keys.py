"""``keygen``: an owner's identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, require_name, say
from sealtrain.cli.passphrases import PassphraseFile, new_passphrase
from sealtrain.keys.identity import Identity


def keygen(
    name: Annotated[str, typer.Argument(help="Name of the owner: a-z, 0-9 and hyphens.")],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path(),
    post_quantum: Annotated[
        bool, typer.Option("--post-quantum", help="Cosign ledgers with an ML-DSA-44 key.")
    ] = False,
    with_passphrase: Annotated[
        bool,
        typer.Option("--with-passphrase", help="Lock it with a passphrase, asked for twice."),
    ] = False,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Make an owner's identity: a private file (0600) and a public one to share.

    A passphrase protects the file where a copy of it is lost; it cannot be recovered.
    """
    passphrase = None
    if with_passphrase or passphrase_file is not None:
        passphrase = new_passphrase(passphrase_file)
    require_name(name, "NAME")
    identity = Identity.generate(name, post_quantum=post_quantum)
    private, public = identity.save_pair(out, passphrase)
    say(f"keep {private} secret and backed up: it opens what {name} seals")
    emit(
        as_json,
        {
            "name": name,
            "owner_id": identity.public.owner_id,
            "identity": str(private),
            "public": str(public),
        },
        [f"owner    {name}", f"owner id {identity.public.owner_id}", f"public   {public}"],
    )
