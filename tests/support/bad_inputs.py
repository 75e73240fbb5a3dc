"""What people give to commands by mistake or by malice, in place of something good.

A call of ``bad_input_calls`` is made of words. Each ``Read``, ``Write``, ``Text`` and ``Address``
among them is replaced, one at a time, by everything in ``READ``, ``WRITE``, ``TEXT`` or
``ADDRESS``, and each URL by what is in ``SERVER``, ``STORE`` or ``PROXY``: that makes the table of
``tests/cli/bad_inputs.txt``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOREIGN: Final = "foreign"
"""The other consortium's folder in a stage's."""
_HOLE_BYTES: Final = 100 << 30


@dataclass(frozen=True)
class Read:
    """A file or folder that a command reads, below the stage's folder."""

    path: str


@dataclass(frozen=True)
class Write:
    """A file or folder that a command makes."""

    path: str


@dataclass(frozen=True)
class Text:
    """A name, an address or a number."""

    value: str


@dataclass(frozen=True)
class Address:
    """Where a server is to listen."""

    value: str


@dataclass(frozen=True)
class ServerUrl:
    """The URL of a server that is asked."""

    value: str


@dataclass(frozen=True)
class StoreUrl:
    """The URL of a folder in a store."""

    value: str


@dataclass(frozen=True)
class ProxyUrl:
    """The URL of a proxy."""

    value: str


@dataclass(frozen=True)
class Ticket:
    """A run ticket that names other brokers, data or addresses: each of these is replaced."""

    path: str


Word = str | Read | Write | Text | Address | ServerUrl | StoreUrl | ProxyUrl | Ticket


def _hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_HOLE_BYTES)


def _changed(good: Path, path: Path) -> None:
    """Another byte in the middle: of a letter or digit, so that the form stays."""
    if good.is_dir():
        shutil.copytree(good, path)
        good = path = max(
            (each_path for each_path in path.rglob("*") if each_path.is_file()), key=_size
        )
    data = bytearray(good.read_bytes())
    for at in range(len(data) // 2, len(data)):
        if chr(data[at]).isalnum():
            data[at] ^= 1
            break
    path.write_bytes(data)


def _size(path: Path) -> int:
    return path.stat().st_size


def _cut(good: Path, path: Path) -> None:
    if good.is_dir():
        shutil.copytree(good, path)
        good = path = max(
            (each_path for each_path in path.rglob("*") if each_path.is_file()), key=_size
        )
    data = good.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _other_kind(good: Path, path: Path) -> None:
    if good.is_dir():
        path.write_text("a file\n")
    else:
        path.mkdir()


def _stage(good: Path) -> Path:
    return next(folder for folder in good.parents if (folder / "consortium.json").is_file())


def _another(good: Path) -> Path:
    """A good file of the stage, and of another kind."""
    return _stage(good) / ("policy.yaml" if good.suffix == ".json" else "consortium.json")


def _foreign(good: Path, path: Path) -> None:
    """The file of this name of another consortium, whose owners have the same names."""
    folder = _stage(good)
    foreign = folder / FOREIGN / good.relative_to(folder)
    if foreign.is_dir():
        shutil.copytree(foreign, path)
    elif foreign.exists():
        shutil.copy(foreign, path)


READ: Final[Mapping[str, Callable[[Path, Path], object]]] = {
    "absent": lambda _good, _path: None,
    "empty": lambda _good, path: path.write_bytes(b""),
    "bytes": lambda _good, path: path.write_bytes(bytes(range(256)) * 4),
    "words": lambda _good, path: path.write_text("Grüße, nothing of ours\n☃: [\n", "utf-8"),
    "null": lambda _good, path: path.write_text("null\n"),
    "deep": lambda _good, path: path.write_text("[" * 100_000),
    "folder for a file, file for a folder": _other_kind,
    "changed": _changed,
    "cut": _cut,
    "endless": lambda _good, path: _hole(path),
    "device": lambda _good, path: path.symlink_to("/dev/zero"),
    "pipe": lambda _good, path: os.mkfifo(path),
    "unreadable": lambda _good, path: path.symlink_to("/proc/self/mem"),
    "another of our files": lambda good, path: shutil.copy(_another(good), path),
    "of another consortium": _foreign,
}
"""By name: what makes it, of a good one and of the place to make it at."""

WRITE: Final[Mapping[str, str]] = {
    "below a file": "taken/out",
    "a file that is there": "taken",
    "nowhere": "/proc/out",
    "full disk": "/dev/full",
    "too long": "n" * 300,
    "a name that is no text": "out\udcff",
    "full small tmpfs": "disk/out",
}
TEXT: Final[Mapping[str, str]] = {
    "empty text": "",
    "control characters": "a\x1b[31m\nb",
    "other letters": "Grüße ☃",
    "long text": "x" * 100_000,
    "upwards": "../../etc/passwd",
    "negative": "-1",
    "no server": "http://127.0.0.1:9/",
}
ADDRESS: Final[Mapping[str, str]] = {
    "taken port": "127.0.0.1:{taken}",
    "no such port": "127.0.0.1:70000",
    "address of another machine": "192.0.2.1:0",
    **TEXT,
}
"""What is given for an address; ``{taken}`` is a port that is taken."""
SERVER: Final[Mapping[str, str]] = {
    "expired certificate": "https://localhost:{expired}",
    "certificate of an unknown authority": "https://localhost:{unknown}",
    "self-signed certificate": "https://localhost:{self-signed}",
    "certificate for another name": "https://localhost:{misnamed}",
    "server without TLS": "https://localhost:{without-tls}",
    **TEXT,
}
"""What is given for a server's URL; the names in braces are ports of servers like that."""
STORE: Final[Mapping[str, str]] = {
    "folder as a store": "file:///bank/store",
    "server as a bucket": "s3://bucket:9000/results",
    "presigned URL": "https://store.example/results?X-Amz-Signature=ab12",
    **TEXT,
}
PROXY: Final[Mapping[str, str]] = {
    "proxy that speaks SOCKS": "socks5://proxy.example:1080",
    "proxy with a password": "http://user:secret@proxy.example:3128",
    **TEXT,
}
PORTS: Final = ("taken port", "address of another machine")
"""What is given for an address in a ticket: one of another form is in no ticket."""
FEW: Final = ("absent", "another of our files", "of another consortium")
"""What the second command, and every further one, is given for an option that reads a file."""
