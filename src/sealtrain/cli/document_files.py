"""Files of a measured document, for the program that the document starts in a container.

The command names them ``document:NAME``. They are read out of the document that the guest shows,
and laid into the guest's own folder, where a run that goes on finds them again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealtrain.base.files import atomic_write, make_folder
from sealtrain.recipe.document import FROM_DOCUMENT, file_within
from sealtrain.recipe.errors import LockInvalid

_FOLDER: Final = "document"


def lay_out(path: Path, app_compose: Callable[[], bytes], kept: Path) -> Path:
    """The place of a file that a command names.

    Args:
        path: As the command names it; where it is no ``document:NAME``, it stays as it is.
        app_compose: Reads the document that the guest measured.
        kept: What the guest keeps. The file is written anew in a folder of it.

    Raises:
        GuestApiUnreachable: The guest does not show its document.
        LockInvalid: The document is not one of sealtrain's or has no such file, or the folder is a
            link.
    """
    if not str(path).startswith(FROM_DOCUMENT):
        return path
    name = str(path).removeprefix(FROM_DOCUMENT)
    content = file_within(app_compose(), name)
    folder = kept / _FOLDER
    if folder.is_symlink():
        raise LockInvalid(
            "the folder for the document's files is a link",
            check="document",
            got=str(folder),
            hint="start the guest with a disk of its own",
        )
    with make_folder(folder):
        folder.chmod(0o700)
        atomic_write(folder / name, content, overwrite=True)
    return folder / name
