"""What people give to commands by mistake or by malice.

``bad_input_calls.CALLS`` holds a call of every command that works. Each of its words that is a
``Read``, ``Write``, ``Text`` or ``Address`` is replaced, one at a time, by everything in ``READ``,
``WRITE``, ``TEXT`` or ``ADDRESS``: that makes the table of ``tests/cli/bad_inputs.txt``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


Word = str | Read | Write | Text | Address


@dataclass(frozen=True)
class Call:
    """A command with good words.

    Attributes:
        words: After the command's name.
        ready: What it says once it serves, waits or computes; it is ended then. Empty where it ends
            by itself.
        code: What it leaves with.
        answers: Whether it has ``--json``.
        keeps: Its output stays after a failure: the next start goes on in it.
        lasting: Played in full only once, at the end: other calls fail after it.
    """

    words: tuple[Word, ...]
    ready: str = ""
    code: int = 0
    answers: bool = True
    keeps: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class Case:
    """A call and what is wrong with it.

    Attributes:
        command: Its name, of one or two words.
        given: What is replaced: an option, or an argument's place.
        bad: The name of what takes its place.
        words: The whole call.
        elsewhere: It is typed in another folder.
    """

    command: str
    given: str
    bad: str
    words: tuple[str, ...]
    elsewhere: bool = False

    @property
    def name(self) -> str:
        return f"{self.command} | {self.given} | {self.bad}"


def _hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_HOLE_BYTES)


def _changed(good: Path, path: Path) -> None:
    """Another byte in the middle: of a letter or digit, so that the form stays."""
    if good.is_dir():
        shutil.copytree(good, path)
        good = path = max((one for one in path.rglob("*") if one.is_file()), key=_size)
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
        good = path = max((one for one in path.rglob("*") if one.is_file()), key=_size)
    data = good.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _other_kind(good: Path, path: Path) -> None:
    if good.is_dir():
        path.write_text("a file\n")
    else:
        path.mkdir()


def _another(good: Path) -> Path:
    """A good file of the stage, and of another kind."""
    folder = next(one for one in good.parents if (one / "consortium.json").is_file())
    other = "policy.yaml" if good.suffix == ".json" else "consortium.json"
    return folder / other


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
}
"""By name: what makes it, of a good one and of the place to make it at."""

WRITE: Final[Mapping[str, str]] = {
    "below a file": "taken/out",
    "a file that is there": "taken",
    "nowhere": "/proc/out",
    "full disk": "/dev/full",
    "full small tmpfs": "disk/out",
    "too long": "n" * 300,
    "a name that is no text": "out\udcff",
}
TEXT: Final[Mapping[str, str]] = {
    "empty text": "",
    "control characters": "a\x1b[31m\nb",
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


FEW: Final = ("absent", "another of our files")
"""What the second command, and every further one, is given for an option that reads a file."""


def cases(
    calls: Mapping[str, Call],
    folder: Path,
    places: Mapping[str, str],
    only: Collection[str] | None = None,
) -> Iterator[Case]:
    """Every bad call, its files made in the folder ``bad`` of a stage's folder.

    Args:
        calls: By command.
        folder: The stage's.
        places: What stands for a name in braces.
        only: Commands whose calls are wanted; all of them without.
    """
    (folder / "bad").mkdir()
    (folder / "taken").write_text("kept\n")
    tried: set[str] = set()
    for command, call in calls.items():
        few = frozenset(tried)
        tried |= _options_of_files(call.words)
        if only is not None and command not in only:
            continue
        for place, word in enumerate(call.words):
            given = _given(call.words, place)
            bad = folder / "bad" / f"{command}-{place}".replace(" ", "_")
            for name, value in _replaced(word, folder, bad, few=given in few):
                words = [value if at == place else _good(one) for at, one in enumerate(call.words)]
                yield Case(command, given, name, (*command.split(), *_filled(words, places)))
        if any(isinstance(word, Read) for word in call.words):
            yield Case(command, "folder", "another one", good(command, call, places), True)


def good(command: str, call: Call, places: Mapping[str, str]) -> tuple[str, ...]:
    """The call as it works."""
    return (*command.split(), *_filled([_good(word) for word in call.words], places))


def _replaced(word: Word, folder: Path, bad: Path, *, few: bool) -> Iterator[tuple[str, str]]:
    """Names and values of what takes a word's place."""
    match word:
        case Read(path):
            for name in FEW if few else READ:
                made = bad.with_name(f"{bad.name}-{name}".replace(" ", "_"))
                READ[name](folder / path, made)
                yield name, str(made)
        case Write():
            yield from WRITE.items()
        case Text():
            yield from TEXT.items()
        case Address():
            yield from ADDRESS.items()


def _options_of_files(words: tuple[Word, ...]) -> set[str]:
    given = {_given(words, at) for at, word in enumerate(words) if isinstance(word, Read)}
    return {option for option in given if option.startswith("--")}


def _given(words: tuple[Word, ...], place: int) -> str:
    before = words[place - 1] if place else ""
    if isinstance(before, str) and before.startswith("--"):
        return before
    return f"word {place + 1}"


def _good(word: Word) -> str:
    match word:
        case Read(path) | Write(path):
            return path
        case Text(value) | Address(value):
            return value
    return word


def _filled(words: list[str], places: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        for name, value in places.items():
            word = word.replace(f"{{{name}}}", value)
        yield word
