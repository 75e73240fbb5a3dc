"""``publish``: a sealed dataset, to where guests fetch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import read_bounded
from sealtrain.cli.output import Json, emit, progress_bytes
from sealtrain.storage.connect import open_folder
from sealtrain.storage.publish import list_sealed_files
from sealtrain.storage.publish import publish as send

_MAX_TOKEN_BYTES = 16 << 10


def publish(
    sealed: Annotated[Path, typer.Argument(help="Your sealed dataset folder.")],
    url: Annotated[str, typer.Argument(help="s3://bucket/folder, or https://… that takes PUT.")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with a bearer token, where HTTP wants one.")
    ] = None,
    audit: Annotated[bool, typer.Option(help="Read every byte back and hash it.")] = False,
    as_json: Json = False,
) -> None:
    """Send a sealed dataset to a store. Run it again to continue after an interruption.

    Nothing there is a dataset before its last file has arrived. Only ciphertext leaves.
    """
    token = None
    if token_file is not None:
        token = read_bounded(token_file, _MAX_TOKEN_BYTES).decode().strip()
    total = sum((sealed / name).stat().st_size for name in list_sealed_files(sealed))
    with progress_bytes(f"publishing {sealed.name}", total, shown=not as_json) as advance:
        done = send(sealed, open_folder(url, token=token), read_back=audit, progress=advance)
    emit(
        as_json,
        {"url": url, "files": done.files, "sent": done.sent, "bytes": done.size},
        [f"published  {url}", f"files      {done.files}, {done.sent} sent now"],
    )
