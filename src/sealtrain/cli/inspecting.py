"""``inspect``: what a sealed dataset or file tells without any key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DATASET_BYTES
from sealtrain.cli.output import Json, emit
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.sealing.file import read_header
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.signing.dsse import Envelope

__all__ = ["inspect"]


def inspect(
    sealed: Annotated[Path, typer.Argument(help="Sealed dataset folder or sealed file.")],
    as_json: Json = False,
) -> None:
    """Show what a sealed dataset or file tells without any key. Nothing here is verified."""
    if sealed.is_dir():
        dataset_id, stanzas = read_stanzas(sealed)
        envelope = Envelope.from_bytes(read_bounded(sealed / "dataset.json", MAX_DATASET_BYTES))
        claimed = parse_json(envelope.payload)
        stated = DatasetManifest.from_bytes(envelope.payload).data_use
    else:
        header = read_header(sealed)
        dataset_id, stanzas, claimed = header.dataset_id, header.stanzas, None
        stated = None
    emit(
        as_json,
        {
            "dataset_id": dataset_id,
            "stanzas": [{"kind": s.kind, "recipient": s.recipient} for s in stanzas],
            "claimed": claimed,
        },
        [
            f"id       {dataset_id}",
            *(f"stanza   {s.kind}  {s.recipient}" for s in stanzas),
            *(f"{name}: {text}" for name, text in (stated.in_words() if stated else {}).items()),
        ],
    )
