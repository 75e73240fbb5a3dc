"""What an image takes out of a Debian package and out of a wheel (spec/images.md §3).

No script of a package runs: an image is the files that were published, and nothing a machine made
of them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from sealtrain.base.digests import sha256_hex
from sealtrain.image.disk.debian_package import open_part
from sealtrain.image.layer import LayerEntry, is_program
from sealtrain.image.own_files import PACKAGES_FOLDER, STATUS_FOLDER
from sealtrain.image.packages import record_text
from sealtrain.image.pins import files_digest
from sealtrain.recipe.installation import as_recorded, read_recorded

LEFT_OUT = re.compile(r"usr/share/(doc|info|lintian|locale|man)/(?!.*/copyright$).*")

Content = dict[str, tuple[LayerEntry, Callable[[], BinaryIO]]]
"""Name in the image → entry, and what opens a file's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debian:
    """A Debian package: name and version, and what it puts into an image, its list included."""

    name: str
    version: str
    content: Content

    def files_sha256(self) -> str:
        """Digest of its files for the pins, its list left out."""
        listed = f"{STATUS_FOLDER}/{self.name}.list"
        return files_digest(
            {name: entry for name, (entry, _) in self.content.items() if name != listed}
        )


def file_entry(
    name: str, data: bytes, *, runs: bool = False
) -> tuple[LayerEntry, Callable[[], BinaryIO]]:
    """A file of an image whose bytes are in memory."""
    mode = 0o755 if runs else 0o644
    entry = LayerEntry(name=name, kind="file", mode=mode, size=len(data), sha256=sha256_hex(data))
    return entry, partial(io.BytesIO, data)


def read_debian(deb: Path) -> Debian:
    """Read a ``.deb`` (deb(5), format 2.0).

    Raises:
        ImageRefused: The data are no ``.deb``.
        SystemExit: It has an entry that images do not have.
    """
    package = deb.read_bytes()
    control = open_part(package, "control.tar")
    told = control.extractfile("./control")
    if told is None:
        raise SystemExit(f"{deb.name} has no control file")
    paragraph = told.read()
    fields = dict(
        line.split(": ", 1) for line in paragraph.decode().splitlines() if ": " in line[1:]
    )
    content = debian_content(open_part(package, "data.tar"), fields["Package"], paragraph)
    return Debian(name=fields["Package"], version=fields["Version"], content=content)


def debian_content(data: tarfile.TarFile, package: str, control: bytes) -> Content:
    """What the image has of a package: its files and links, its control paragraph, its list."""
    found: Content = {}
    for member in data:
        name = member.name.removeprefix("./").rstrip("/")
        if member.isdir() or LEFT_OUT.fullmatch(name):
            continue
        if member.issym():
            link = LayerEntry(name=name, kind="link", mode=0o777, target=member.linkname)
            found[name] = link, io.BytesIO
        elif member.isreg() or member.islnk():
            source = data.extractfile(member)
            assert source is not None
            found[name] = file_entry(name, source.read(), runs=bool(member.mode & 0o111))
        else:
            raise SystemExit(f"{package} has an entry that images do not have: {name}")
    names = "".join(f"{name}\n" for name in sorted(found)).encode()
    status = f"{STATUS_FOLDER}/{package}"
    found[status] = file_entry(status, control)
    found[f"{status}.list"] = file_entry(f"{status}.list", names)
    return found


def wheel_content(wheel: Path) -> tuple[Content, str]:
    """What the image has of a wheel, and the text of its ``RECORD``.

    The wheel stays open: its files are read from it when a layer is written.

    Raises:
        SystemExit: A file is not the one that ``RECORD`` names.
    """
    found: Content = {}
    rows: dict[str, tuple[str, int]] = {}
    archive = zipfile.ZipFile(wheel)
    (record,) = (
        name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)
    )
    text = archive.read(record).decode()
    there = set(archive.namelist())
    for path, hash_ in dict(read_recorded(text)).items():
        place = _place(path)
        if path not in there or place is None:
            continue
        info = archive.getinfo(path)
        with archive.open(info) as file:
            runs = is_program(file.read(4))
        with archive.open(info) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if as_recorded(digest) != hash_:
            raise SystemExit(f"{wheel.name}: {path} is not the file that RECORD names")
        entry = LayerEntry(
            name=f"{PACKAGES_FOLDER}/{place}",
            kind="file",
            mode=0o755 if runs else 0o644,
            size=info.file_size,
            sha256=digest,
        )
        found[entry.name] = entry, partial(_open_member, archive, info)
        rows[place] = hash_, info.file_size
    listed = record_text(rows, record)
    name = f"{PACKAGES_FOLDER}/{record}"
    found[name] = file_entry(name, listed.encode())
    return found, listed


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> BinaryIO:
    return cast("BinaryIO", archive.open(info))


def _place(path: str) -> str | None:
    """Where a file of a wheel goes below the packages' folder; ``None`` for one left out."""
    first, _, rest = path.partition("/")
    if not first.endswith(".data"):
        return path
    scheme, _, rest = rest.partition("/")
    return rest if scheme in ("purelib", "platlib") else None
