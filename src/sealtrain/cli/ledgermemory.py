"""What a person remembers of a broker's ledger, as commands are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import read_bounded
from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import UsageError
from sealtrain.ledger.witness import read_memory
from sealtrain.manifest.trust import load_trust
from sealtrain.signing.note import MAX_NOTE_BYTES

ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
StateFile = Annotated[
    Path | None,
    typer.Option("--memory", help="Your memory of the ledger; beside your identity unless given."),
]


def read_given(
    state: Path | None, trust: Path | None, kept: list[Path]
) -> tuple[bytes | None, list[str]]:
    """The ledger's key, if a file names it, and the tree heads that were kept."""
    key: bytes | None = None
    notes = [read_bounded(path, MAX_NOTE_BYTES).decode("utf-8", "replace") for path in kept]
    if trust is not None:
        (key, *others) = load_trust(trust).brokers.by_key_id.values()
        if others:
            raise UsageError(
                "the trust file names several brokers, and each has a ledger of its own",
                check="--trust",
                expected="your memory of this ledger: --memory",
            )
    if state is not None:
        remembered = read_memory(state)
        key = key or remembered.public_key
        notes += [remembered.note] if remembered.note else []
    return key, notes


def plain(text: str) -> str:
    """Text from an untrusted file, safe for a terminal."""
    return escape_hidden(text, 500)
