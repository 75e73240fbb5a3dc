"""A model that training sealed to its recipients, opened in memory to be sealed for a recipe.

Each file lies under its own header (``runner.outputs``). A recipient opens all of them with one
stanza; whoever stores them could exchange a file for one of another run, so:

1. every file is of kind ``model``, of one and the same run, and holds the name it lies under;
2. each opens under the key of the first, which only that run's files do.

That none was left out or replaced by another of its run is said by the run's manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import stat_result
from pathlib import Path
from typing import Any

from sealtrain.errors import LimitExceeded, NotSealed, WrongContext
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import open_file, read_header
from sealtrain.sealing.header import FileContext
from sealtrain.sealing.stanza import Stanza

__all__ = ["TrainedFile", "is_trained_model", "trained_model"]

SUFFIX = ".sealed"
MAX_FILES = 4096


class TrainedFile:
    """One file of the model; opening it decrypts in memory."""

    def __init__(self, path: Path, key: DataKey, context: FileContext) -> None:
        """Name it.

        Args:
            path: The sealed file.
            key: Of the run.
            context: What it must be.
        """
        self._path, self._key, self._context = path, key, context

    def open(self, _mode: str = "rb", /) -> Any:
        """Its content, as a binary file."""
        return open_file(self._path, self._key, context=self._context)

    def stat(self) -> stat_result:
        """Of the sealed file."""
        return self._path.stat()


def is_trained_model(source: Path) -> bool:
    """Whether a folder looks like what a run leaves as its model; nothing is verified."""
    if not source.is_dir():
        return False
    files = [path for path in source.rglob("*") if not path.is_dir()]
    return bool(files) and all(path.suffix == SUFFIX and path.is_file() for path in files)


def trained_model(
    folder: Path, unwrap: Callable[[str, Sequence[Stanza]], DataKey]
) -> dict[str, TrainedFile]:
    """The files of a model by the names they had in training.

    Args:
        folder: ``model`` in a run's folder.
        unwrap: Opens the run's data key, given its id and the stanzas of a file.

    Raises:
        NotSealed: There is nothing, or something that is no model.
        WrongContext: Files of two runs, or one under another name.
        NoStanza, WrongKey: It was not sealed to this recipient.
    """
    paths = sorted(folder.rglob(f"*{SUFFIX}"))
    if not paths:
        raise NotSealed(f"nothing sealed at {folder}", hint="name the model folder of a run")
    if len(paths) > MAX_FILES:
        raise LimitExceeded("too many sealed files in one folder", expected=MAX_FILES)
    first = read_header(paths[0])
    key = unwrap(first.dataset_id, first.stanzas)
    files = {}
    for path in paths:
        name = path.relative_to(folder).as_posix().removesuffix(SUFFIX)
        context = read_header(path).context
        if (context.kind, context.dataset_id, context.name) != ("model", first.dataset_id, name):
            raise WrongContext(
                f"{name} is not the file of this model that its name says",
                check="file context",
                got=f"{context.kind} {context.name} of {context.dataset_id}",
                expected=f"model {name} of {first.dataset_id}",
                hint="verify the run's manifest with its outputs, then fetch the folder again",
            )
        files[name] = TrainedFile(path, key, context)
    return files
