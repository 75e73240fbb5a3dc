"""Files of a Debian package (deb(5), format 2.0), as far as a guest's disk takes them.

The package was compared with its pinned digest before: it is Debian's, and nothing of it is run.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from sealtrain.errors import ImageRefused

_MAGIC: Final = b"!<arch>\n"
_HEADER_BYTES: Final = 60
_MAX_FILE_BYTES: Final = 1 << 30
_MODULES: Final = "/kernel/"


def split_archive(package: bytes) -> Iterator[tuple[str, bytes]]:
    """The parts of an ``ar`` archive, by name.

    Raises:
        ImageRefused: The data are no ``ar`` archive.
    """
    if not package.startswith(_MAGIC):
        raise _refusal("is no Debian package")
    at = len(_MAGIC)
    while at < len(package):
        head = package[at : at + _HEADER_BYTES]
        size = head[48:58].strip()
        if len(head) < _HEADER_BYTES or not size.isdigit():
            raise _refusal("is no archive of the form ar")
        at += _HEADER_BYTES
        if at + int(size) > len(package):
            raise _refusal("ends within a part")
        name = head[:16].decode("ascii", "replace").strip().rstrip("/")
        yield name, package[at : at + int(size)]
        at += int(size) + int(size) % 2


def open_part(package: bytes, begin: str) -> tarfile.TarFile:
    """The first part whose name begins so, such as ``data.tar``.

    Raises:
        ImageRefused: The package has none.
    """
    for name, data in split_archive(package):
        if PurePosixPath(name).name.startswith(begin):
            try:
                return tarfile.open(fileobj=io.BytesIO(data), mode="r:*")
            except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
                raise _refusal(f"has no {begin} that can be read") from error
    raise _refusal(f"has no {begin}")


def read_package(package: bytes) -> dict[str, bytes]:
    """Its files, by their names; links and folders are left out.

    Raises:
        ImageRefused: It is of another form.
    """
    found: dict[str, bytes] = {}
    try:
        with open_part(package, "data.tar") as data:
            for member in data:
                file = data.extractfile(member) if member.isreg() else None
                if file is not None and member.size <= _MAX_FILE_BYTES:
                    found[member.name.removeprefix("./")] = file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise _refusal("cannot be read to its end") from error
    return found


def one_file(files: Mapping[str, bytes], name: str) -> tuple[str, bytes]:
    """The one file of this name, in whatever folder: its path and its bytes.

    Raises:
        ImageRefused: No file has this name, or several have it.
    """
    found = [path for path in files if PurePosixPath(path).name == name]
    if len(found) != 1:
        raise _refusal(f"has {len(found)} files {name}")
    return found[0], files[found[0]]


def find_modules(files: Mapping[str, bytes]) -> Callable[[str], bytes | None]:
    """Of a kernel's package: name of a module → its bytes, unpacked; ``None`` without a file."""
    places = {
        PurePosixPath(path).name.split(".")[0].replace("-", "_"): path
        for path in files
        if _MODULES in path and ".ko" in path
    }

    def module(name: str) -> bytes | None:
        if name not in places:
            return None
        data = files[places[name]]
        return lzma.decompress(data) if places[name].endswith(".xz") else data

    return module


def _refusal(problem: str) -> ImageRefused:
    return ImageRefused(f"the package {problem}", check="Debian package")
