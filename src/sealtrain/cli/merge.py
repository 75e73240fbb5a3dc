"""``merge``: merge an opened adapter into its base model, on the recipient's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import atomic_folder, private_file
from sealtrain.cli.output import Json, emit


def merge(
    adapter: Annotated[Path, typer.Argument(help="Opened adapter (made by: sealtrain open).")],
    base: Annotated[
        Path, typer.Option("--base-model", help="Folder of the base model, in full precision.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    as_json: Json = False,
) -> None:
    """Merge an opened adapter into its base model. Learned prompts cannot be merged.

    A run does this itself, before it seals the model, if the recipe has peft.merge.
    """
    from sealtrain.training.models.merging import merge_folder

    with atomic_folder(out) as folder:
        files = merge_folder(adapter, base)
        for name, data in files.items():
            with private_file(folder / name) as file:
                file.write(data)
    emit(as_json, {"out": str(out), "files": sorted(files)}, [f"merged   {out}", *sorted(files)])
