"""Find the files to seal, their order and their layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import stat_result
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.sealing.tabular.batches import FORMS, is_tabular


class SourceFile(Protocol):
    """A raw source: a path, or a file that is opened in memory."""

    def open(self, mode: Literal["rb"], /) -> Any:
        """Read it from its beginning."""

    def stat(self) -> stat_result:
        """Size and time of change, at least of what it is made from."""


LAYOUTS = ("auto", "arrow", "raw")
_OF_SYSTEMS: Final = frozenset(
    (".ds_store", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", ".directory")
)
"""Names, in small letters, of files that macOS, Windows and KDE write about a folder themselves."""
_APPLE_DOUBLE: Final = (b"\x00\x05\x16\x07", "._")
"""First bytes and prefix of the file in which macOS keeps what another file system has no place for
(RFC 1740): ``._a.jpg`` beside ``a.jpg``. An image of such a name begins otherwise, and is kept."""


def layout_of(
    layout: str,
    form: str,
    source: Path | Sequence[Path] | Mapping[str, SourceFile],
    files: Sequence[tuple[str, SourceFile]],
) -> str:
    """``arrow`` or ``raw``, as asked for or by the names of the files.

    Raises:
        UsageError: Layout and format make no sense together.
    """
    if layout not in LAYOUTS:
        raise UsageError("unknown layout", got=layout, expected=", ".join(LAYOUTS))
    if form not in FORMS:
        raise UsageError("unknown format", got=form, expected=", ".join(FORMS))
    if isinstance(source, Mapping):
        if form != "auto" or layout == "arrow":
            raise UsageError("files opened in memory are sealed as they are", hint="layout raw")
        return "raw"
    if form == "file":
        if layout == "arrow":
            raise UsageError("files as they are have no records", hint="leave out one of the two")
        return "raw"
    if form != "auto":
        if layout == "raw":
            raise UsageError("raw files have no format", hint="leave out one of the two")
        if form == "images" and not (isinstance(source, Path) and source.is_dir()):
            raise UsageError("images are sealed from a folder", hint="name the folder they lie in")
        return "arrow"
    if layout != "auto":
        return layout
    return "arrow" if all(is_tabular(Path(name)) for name, _ in files) else "raw"


def state_of(path: SourceFile) -> tuple[int, str]:
    """Size and time of change: what an interrupted sealing recognises a file by."""
    found = path.stat()
    return found.st_size, str(found.st_mtime_ns)


def source_files(
    source: Path | Sequence[Path] | Mapping[str, SourceFile],
) -> list[tuple[str, SourceFile]]:
    """Names inside the dataset and paths of everything to seal, in order.

    Of a folder without what operating systems wrote about it (``list_left_out``); a file that is
    named by itself is sealed, whatever its name.

    Raises:
        DataInvalid: A file is missing, a link, or has another one's name.
    """
    if isinstance(source, Mapping):
        return sorted(source.items())
    if isinstance(source, Path) and source.is_dir():
        below = source.rglob("*")
        found = sorted(
            path
            for path in below
            if (path.is_symlink() or not path.is_dir()) and not _is_of_system(path)
        )
        named = [(path.relative_to(source).as_posix(), path) for path in found]
    else:
        paths = [source] if isinstance(source, Path) else list(source)
        named = [(path.name, path) for path in paths]
    for name, path in named:
        if path.is_symlink() and not (isinstance(source, Path) and source == path):
            raise DataInvalid(
                f"{name} is a symbolic link",
                check="source",
                got=name,
                expected="files and folders",
                hint="put what it points to in its place",
            )
        if not path.is_file():
            raise DataInvalid(f"no such file: {path}", hint="check the path")
    if not named:
        raise DataInvalid("there is no file to seal", hint="check the path")
    if len({name for name, _ in named}) != len(named):
        raise DataInvalid("two files have the same name", hint="seal their common folder")
    return list(named)


def list_left_out(source: object) -> list[str]:
    """Names of the files below a folder that operating systems wrote about it, sorted.

    They are no data, and hold names and small pictures of other files.

    Args:
        source: As of ``source_files``; only a folder has any.
    """
    if not isinstance(source, Path) or not source.is_dir():
        return []
    return sorted(
        path.relative_to(source).as_posix() for path in source.rglob("*") if _is_of_system(path)
    )


def _is_of_system(path: Path) -> bool:
    known = path.name.lower() in _OF_SYSTEMS
    magic, prefix = _APPLE_DOUBLE
    if not (known or path.name.startswith(prefix)) or path.is_symlink() or not path.is_file():
        return False
    if known:
        return True
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
