"""Passphrases of identities: from a file or a descriptor, else typed; never an argument.

Every command with ``--identity`` has ``--passphrase-file`` (``cli.command``).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click
import typer

if TYPE_CHECKING:
    from sealtrain.base.secret import Secret

_HELP: Final = "Private file with the identity's passphrase, or /dev/fd/N; else it is asked for."
PassphraseFile = Annotated[Path | None, typer.Option("--passphrase-file", help=_HELP)]
_MAX_BYTES: Final = 1026
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,6})")


def passphrase_option() -> click.Option:
    """The option of a command that reads an identity; it says where passphrases come from."""
    return typer.core.TyperOption(
        param_decls=["--passphrase-file"],
        type=click.Path(path_type=Path),
        help=_HELP,
        expose_value=False,
        callback=_use,
    )


def new_passphrase(file: Path | None) -> Secret:
    """A passphrase for a new identity: of a file, or typed twice.

    Raises:
        UsageError: There is no terminal, or the two differ.
        KeyFileInvalid: The file cannot be read, or others can read it.
    """
    from sealtrain.errors import UsageError

    if file is not None:
        return _read(file)
    first, second = _ask_for("New passphrase: "), _ask_for("Again: ")
    if first.reveal() != second.reveal():
        raise UsageError("the two passphrases differ, so nothing was written", check="passphrase")
    return first


def _use(context: click.Context, _parameter: click.Parameter, file: Path | None) -> None:
    if context.resilient_parsing:
        return
    from sealtrain.keys.passphrase import PASSPHRASES

    def ask(path: Path) -> Secret:
        return _ask_for(f"Passphrase of {path.name}: ") if file is None else _read(file)

    PASSPHRASES.use(ask)


def _ask_for(question: str) -> Secret:
    from getpass import getpass

    from sealtrain.base.secret import Secret
    from sealtrain.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError(
            "a passphrase is needed, and there is no terminal to ask at",
            check="passphrase",
            expected="--passphrase-file FILE",
        )
    return Secret(getpass(question, stream=sys.stderr).encode())


def _read(file: Path) -> Secret:
    """A passphrase in a file, without one line end."""
    from sealtrain.base.ownfiles import require_own
    from sealtrain.base.secret import Secret
    from sealtrain.errors import KeyFileInvalid
    from sealtrain.keys.keyfile import read_secret_file

    found = _DESCRIPTOR.fullmatch(str(file))
    if found is None:
        data = read_secret_file(file, max_bytes=_MAX_BYTES)
        require_own(file, KeyFileInvalid, check="key file")
    else:
        try:
            with os.fdopen(os.dup(int(found.group(1))), "rb") as given:
                data = given.read(_MAX_BYTES + 1)
        except OSError as error:
            raise KeyFileInvalid(
                f"cannot read {file}: {error.strerror}", check="passphrase"
            ) from None
    return Secret(data.removesuffix(b"\n").removesuffix(b"\r"))
