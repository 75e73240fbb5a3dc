"""Opening a trained model, whose files may come from anywhere (spec/sealed-file.md §9).

Anyone with a recipient's public key can make such files, and each recipient can make them under the
run's own key, so which ones the run made is said by its manifest alone (``TrainedModel``):

1. ``open_named_model`` opens exactly the files of a ``TrainedModel``, each under its core and root;
2. ``open_unnamed_model`` has no manifest. It opens a folder of exactly the files of one run,
   under their own names and one key. Whose files they are remains open; that they stay the same
   from one reading to the next does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os import scandir, stat_result
from pathlib import Path
from typing import Any

from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import NotSealed, WrongContext
from sealtrain.sealing.file import open_file, read_header, root_of
from sealtrain.sealing.header import FileContext, Header
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.trainedmodel import (
    MAX_FILES,
    TrainedModel,
    check_sealed_names,
    model_context,
    model_name,
)

Unwrap = Callable[[str, Sequence[Stanza]], DataKey]
"""Opens a run's data key, given the run's id and the stanzas of a file."""


class TrainedFile:
    """One file of the model; opening it decrypts in memory."""

    def __init__(self, path: Path, key: DataKey, context: FileContext, root: str) -> None:
        """Name it.

        Args:
            path: The sealed file.
            key: Of the run.
            context: What it must be.
            root: File root it must have, 64 hex digits.
        """
        self._path, self._key, self._context, self._root = path, key, context, root

    def open(self, _mode: str = "rb", /) -> Any:
        """Its content, as a binary file."""
        return open_file(self._path, self._key, context=self._context, root=self._root)

    def stat(self) -> stat_result:
        """Of the sealed file."""
        return self._path.stat()


def open_named_model(folder: Path, model: TrainedModel, unwrap: Unwrap) -> dict[str, TrainedFile]:
    """The files that a manifest names, by the names they had in training.

    Nothing else in the folder is looked at. Each file is checked against its root as it is read.

    Args:
        folder: ``model`` in a run's folder.
        model: What the manifest names.
        unwrap: Opens the run's data key.

    Raises:
        WrongContext: The first file is of another run, consortium or name.
        NoStanza, WrongKey: It was not sealed to this recipient.
        NotSealed, DataInvalid: The first file is not sealed, or is missing.
    """
    paths = [folder / name for name in check_sealed_names(model.names)]
    first = read_header(paths[0])
    model.context(0).require(first.context)
    key = unwrap(model.run_id, first.stanzas)
    return {
        file.name: TrainedFile(paths[place], key, model.context(place), file.root)
        for place, file in enumerate(model.files)
    }


def open_unnamed_model(folder: Path, unwrap: Unwrap) -> dict[str, TrainedFile]:
    """The files of a model without a manifest, by the names they had in training.

    Args:
        folder: ``model`` in a run's folder.
        unwrap: Opens the run's data key.

    Raises:
        NotSealed: There is nothing, or something that is no model.
        WrongContext: Files of two runs, one under another name, one too few or too many.
        NoStanza, WrongKey: It was not sealed to this recipient.
    """
    found = _list_sealed(folder)
    headers: dict[str, Header] = {name: read_header(path) for name, path in found.items()}
    first = next(iter(headers.values()))
    for place, (name, header) in enumerate(headers.items()):
        of_run = first.context.dataset_id, first.context.owner_id
        expected = model_context(name, place, len(headers), *of_run)
        if header.context != expected:
            raise WrongContext(
                f"{name} is not the file of this model that its name says",
                check="file context",
                got=_show(header.context),
                expected=_show(expected),
                hint="open it with the manifest of its run",
            )
    key = unwrap(first.dataset_id, first.stanzas)
    return {
        name: TrainedFile(found[name], key, header.context, root_of(found[name]))
        for name, header in headers.items()
    }


def _list_sealed(folder: Path) -> dict[str, Path]:
    """Name in training and path of every entry of a model's folder, at any depth, in order."""
    if folder.is_symlink() or not folder.is_dir():
        raise NotSealed(f"no model folder at {folder}", hint="name the model folder of a run")
    found: dict[str, Path] = {}
    shown = ""
    try:
        for entry in _entries(folder):
            shown = entry.relative_to(folder).as_posix()
            found[model_name(shown)] = _regular(entry)
        check_sealed_names(sorted(found))
    except ValueError as error:
        raise NotSealed(
            f"this is not the model of a run: {escape_hidden(shown, 200)} {error}",
            hint="open it with the manifest of its run",
        ) from error
    return {name: found[name] for name in sorted(found)}


def _regular(path: Path) -> Path:
    if path.is_symlink() or not path.is_file():
        raise ValueError("is not a regular file")
    return path


def _entries(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is no folder itself, up to twice as much as a model has."""
    waiting = [folder]
    for _ in range(2 * MAX_FILES):
        if not waiting:
            return
        with scandir(waiting.pop()) as entries:
            for entry in islice(entries, 2 * MAX_FILES):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield Path(entry.path)
    raise LimitExceeded("too many folders in one model", expected=MAX_FILES)


def _show(context: FileContext) -> str:
    of = context.binding.get("files", "?")
    return (
        f"{context.kind} {escape_hidden(context.name, 200)} "
        f"({context.shard} of {of}) of {escape_hidden(context.dataset_id, 32)}"
    )
