"""What sealtrain itself puts into an image, out of its source and of spec/images.md §3 and §4.

The builder of an image and its verifier ask here: both get the same bytes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.digests import file_sha256, sha256_hex, tree_files
from sealtrain.base.distributions import CORE, DISTRIBUTIONS, code_folder
from sealtrain.errors import DataInvalid
from sealtrain.image.layer import LayerEntry
from sealtrain.recipe.installation import as_recorded, requirements_in

PACKAGES_FOLDER: Final = "usr/local/lib/python3.11/dist-packages"
STATUS_FOLDER: Final = "var/lib/dpkg/status.d"
"""Where scanners of vulnerabilities look for the Debian packages of an image without dpkg."""
CONFIG: Final[Mapping[str, JsonValue]] = {
    "User": "65532:65532",
    "Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"],
    "Entrypoint": ["sealtrain"],
    "WorkingDir": "/run-data",
}
"""How a container starts."""

_UP: Final = "../../../"
"""From the packages' folder to ``usr/local``, as ``RECORD`` writes it."""
_MOUNTED: Final = {
    "dev": 0o755,
    "proc": 0o755,
    "run-data": 0o1777,
    "run/sealtrain": 0o1777,
    "sys": 0o755,
    "tmp": 0o1777,
}
"""Folders over which a container or its document mounts something, with their modes."""
_LAUNCHER: Final = "usr/local/bin/sealtrain"
_LAUNCHES: Final = "#!/usr/bin/python3.11 -s\nfrom sealtrain.cli import main\nmain()\n"
_FIXED: Final = {
    "etc/group": "root:x:0:\nsealtrain:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
    "etc/passwd": (
        "root:x:0:0:root:/:/nonexistent\nsealtrain:x:65532:65532:sealtrain:/run-data:/nonexistent\n"
    ),
}
_LINKS: Final = {"var/run": "/run"}
_VERSION: Final = re.compile(r'^VERSION = "([^"\n]+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """A file or link of an image, and where its bytes are.

    Attributes:
        entry: What is in the image.
        content: Its bytes, or the file of the source that has them.
    """

    entry: LayerEntry
    content: bytes | Path

    def open(self) -> BinaryIO:
        """The bytes of a file."""
        if isinstance(self.content, bytes):
            return BytesIO(self.content)
        return self.content.open("rb")


def own_files(source: Path, rooms: Iterable[str] = ()) -> dict[str, OwnFile]:
    """Every file and link of an image that comes from the source or from the specification.

    Args:
        source: A checkout of sealtrain, or its unpacked source archive.
        rooms: Distributions of sealtrain that the image has beside the core.

    Raises:
        DataInvalid: The folder is no source of sealtrain.
    """
    project_file = source / "pyproject.toml"
    try:
        build = tomllib.loads(project_file.read_text("utf-8"))["tool"]["hatch"]["build"]
        wheel = build["targets"]["wheel"]
        beside = dict(wheel["shared-data"])
        version = _VERSION.search((source / "src/sealtrain/base/version.py").read_text("utf-8"))
    except (OSError, KeyError, ValueError) as error:
        raise _no_source(source) from error
    if version is None:
        raise _no_source(source)
    code: dict[str, bytes | Path] = {}
    for name in sorted({CORE, *rooms}):
        package = DISTRIBUTIONS[name]
        code |= _tree(code_folder(source, name) / package, package)
    for inside, place in sorted(beside.items()):
        code |= _tree(source / inside, f"{_UP}{place}")
    metadata = f"sealtrain-{version[1]}.dist-info"
    code[f"{metadata}/METADATA"] = _metadata(version[1], requirements_in(project_file))
    recorded = {name: _own(_place(name), content) for name, content in code.items()}
    own = {file.entry.name: file for file in recorded.values()}
    further = {name: text.encode() for name, text in _FIXED.items()}
    further[_place(f"{metadata}/RECORD")] = _record(recorded, metadata)
    own |= {name: _own(name, content) for name, content in further.items()}
    own[_LAUNCHER] = _own(_LAUNCHER, _LAUNCHES.encode(), mode=0o755)
    for name, target in _LINKS.items():
        link = LayerEntry(name=name, kind="link", mode=0o777, target=target)
        own[name] = OwnFile(entry=link, content=b"")
    return own


def folders_of(names: Iterable[str]) -> dict[str, LayerEntry]:
    """The folders of an image: those above its files and links, and those that documents mount."""
    found = set(_MOUNTED)
    for name in (*names, *_MOUNTED):
        found.update(str(above) for above in PurePosixPath(name).parents)
    found.discard(".")
    return {
        name: LayerEntry(name=name, kind="folder", mode=_MOUNTED.get(name, 0o755)) for name in found
    }


def _no_source(source: Path) -> DataInvalid:
    return DataInvalid(
        f"{source} is no source of sealtrain",
        hint="name a checkout, with pyproject.toml and src/, or an unpacked source archive",
    )


def _place(name: str) -> str:
    """Name in the image of a file that ``RECORD`` names from the packages' folder."""
    if name.startswith(_UP):
        return f"usr/local/{name.removeprefix(_UP)}"
    return f"{PACKAGES_FOLDER}/{name}"


def _tree(folder: Path, name: str) -> dict[str, bytes | Path]:
    if folder.is_file():
        return {name: folder}
    found: dict[str, bytes | Path] = {}
    for relative, path in tree_files(folder):
        if not path.is_file():
            raise DataInvalid(f"the source has a special file: {path}")
        if path.suffix != ".pyc":
            found[f"{name}/{relative}"] = path
    return found


def _metadata(version: str, requirements: list[str]) -> bytes:
    lines = ["Metadata-Version: 2.1", "Name: sealtrain", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requirements]
    return ("\n".join(lines) + "\n").encode()


def _record(files: Mapping[str, OwnFile], metadata: str) -> bytes:
    rows = [
        f"{name},{as_recorded(file.entry.sha256)},{file.entry.size}\n"
        for name, file in sorted(files.items())
    ]
    return ("".join(rows) + f"{metadata}/RECORD,,\n").encode()


def _own(name: str, content: bytes | Path, *, mode: int = 0o644) -> OwnFile:
    if isinstance(content, bytes):
        size, digest = len(content), sha256_hex(content)
    else:
        size, digest = content.stat().st_size, file_sha256(content)
    entry = LayerEntry(name=name, kind="file", mode=mode, size=size, sha256=digest)
    return OwnFile(entry=entry, content=content)
