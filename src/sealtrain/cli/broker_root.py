"""``broker root split``, ``root join``, ``rotate-root``: keep, restore, replace a root secret."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_folder, make_folder
from sealtrain.broker.address import places
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.cli.broker_database import Database
from sealtrain.cli.output import Json, emit, say
from sealtrain.consortium.members import Consortium
from sealtrain.errors import AlreadyExists, KeyFileInvalid, UsageError
from sealtrain.keys.derive import signing_key
from sealtrain.keys.keyfile import read_secret_file, write_secret_file
from sealtrain.keys.recovery import join_root, split_root
from sealtrain.keys.uris import root_secret as fetched
from sealtrain.release.messages import ledger_origin

if TYPE_CHECKING:
    from sealtrain.base.secret import Secret

_MAX_SHARE = 4096


def rotate(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    state: Annotated[Path, typer.Option(help="Folder of the broker's state.")],
    root_secret: Annotated[str, typer.Option(help="The present root secret.")],
    new_root_secret: Annotated[
        str, typer.Option(help="The one to take its place; a file: is made if absent.")
    ],
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Replace a broker's root secret: its ledger's key names the one that comes after it.

    Then serve with the new one and the old as --former-root-secret. What was sealed to the old one
    opens until its owners rewrap it; leases end with the old key, and runs go on with resume.
    """
    old = fetched(root_secret)
    _, log = places(state, database)
    new = fetched(new_root_secret, create=True)
    origin = ledger_origin(Consortium.load(consortium).consortium_id)
    index = rotate_key(log, origin, old=old, new=new, now=system_clock())
    shown = _show(new)
    say(f"restart: --root-secret {new_root_secret} --former-root-secret {root_secret}")
    say("then owners run sealtrain log witness, and sealtrain rewrap for each of their datasets")
    emit(
        as_json,
        {"index": index, **shown, "before": _show(old)["signing_key"]},
        [f"entry        {index}", f"signing key  {shown['signing_key']}"],
    )


def split(
    root_secret: Annotated[str, typer.Option(help="The root secret: file:PATH.")],
    threshold: Annotated[int, typer.Option(help="How many shares give it back.")],
    shares: Annotated[int, typer.Option(help="How many shares to make, at most 16.")],
    out: Annotated[Path, typer.Option(help="Folder for the shares; must not exist.")],
    as_json: Json = False,
) -> None:
    """Split a root secret into SLIP-39 mnemonics, one file each. Give each to another person."""
    if not root_secret.startswith("file:"):
        raise UsageError(
            "only a root secret in a file is split",
            check="root secret",
            expected="file:PATH",
            hint="a secret of a key provider or a KMS does not leave it; they keep it for you",
        )
    secret = fetched(root_secret)
    made = split_root(secret, threshold=threshold, count=shares)
    if out.exists():
        raise AlreadyExists(f"{out} exists already", check="shares", hint="name a new folder")
    names = [f"share-{number}-of-{shares}.txt" for number in range(1, shares + 1)]
    with make_folder(out.parent), atomic_folder(out) as folder:
        for name, mnemonic in zip(names, made, strict=True):
            write_secret_file(folder / name, mnemonic.reveal() + b"\n")
    files = [out / name for name in names]
    say("print each share or hand it over, then remove this folder: together they are the secret")
    emit(
        as_json,
        {"shares": [str(path) for path in files], "threshold": threshold, **_show(secret)},
        [
            *(f"share        {path}" for path in files),
            f"needed       {threshold} of {shares}",
            f"signing key  {_show(secret)['signing_key']}",
        ],
    )


def join(
    shares: Annotated[list[Path], typer.Argument(help="Files of shares, as many as are needed.")],
    out: Annotated[Path, typer.Option(help="File to write the root secret to, mode 0600.")],
    as_json: Json = False,
) -> None:
    """Put a root secret together from its shares. Compare the signing key with the broker's."""
    words = {}
    for path in shares:
        try:
            words[str(path)] = read_secret_file(path, max_bytes=_MAX_SHARE).decode("ascii")
        except UnicodeDecodeError:
            raise KeyFileInvalid(f"{path} is not a share of a root secret", check="share") from None
    secret = join_root(words)
    write_secret_file(out, secret.reveal().hex().encode() + b"\n")
    shown = _show(secret)
    emit(
        as_json,
        {"root_secret": str(out), **shown},
        [f"root secret  file:{out}", f"signing key  {shown['signing_key']}"],
    )


def _show(secret: Secret) -> dict[str, str]:
    """The public part of a root secret, which owners and trust files name."""
    return {"signing_key": to_base64(signing_key(secret, "broker").public)}
