"""Bad input to the calls of ``bad_input_calls``: each of their words replaced, one at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bad_inputs import (
    ADDRESS,
    FEW,
    FOREIGN,
    PORTS,
    PROXY,
    READ,
    SERVER,
    STORE,
    TEXT,
    WRITE,
    Address,
    ProxyUrl,
    Read,
    ServerUrl,
    StoreUrl,
    Text,
    Ticket,
    Word,
    Write,
)

ANOTHER_FOLDER = "another working folder"
ELSEWHERE = "elsewhere"
"""That folder, below a stage's."""


@dataclass(frozen=True)
class Call:
    """A command with good words.

    Attributes:
        words: After the command's name.
        ready: What it says once it serves, waits or computes; it is ended then. Empty where it ends
            by itself.
        code: What it leaves with.
        answers: Whether it has ``--json``.
        keeps: Its output stays after a failure: the next start goes on in it, or a person reads it.
        lasting: Played in full only once, at the end: other calls fail after it.
        undo: The call that takes back what it did, where a second one would fail.
        command: Its name, where the table has several calls of it.
    """

    words: tuple[Word, ...]
    ready: str = ""
    code: int = 0
    answers: bool = True
    keeps: bool = False
    lasting: bool = False
    undo: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Case:
    """A call and what is wrong with it.

    Attributes:
        command: Its name.
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
    (folder / ELSEWHERE).mkdir()
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
            if isinstance(word, Read):
                word = Read(*_filled([word.path], places))
            replaced = _replaced(word, folder, bad, few=given in few)
            if isinstance(word, Ticket):
                replaced = _retold(folder / word.path, bad, places)
            for name, value in replaced:
                words = [
                    value if at == place else _good(word) for at, word in enumerate(call.words)
                ]
                field, _, name = name.rpartition(": ")
                typed = (*(call.command or command).split(), *_filled(words, places))
                yield Case(command, f"{given} {field}".rstrip(), name, typed)
        if any(isinstance(word, Read) for word in call.words):
            yield Case(command, "folder", ANOTHER_FOLDER, good(command, call, places), True)


def good(command: str, call: Call, places: Mapping[str, str]) -> tuple[str, ...]:
    """The call as it works."""
    typed = (call.command or command).split()
    return (*typed, *_filled([_good(word) for word in call.words], places))


def _replaced(word: Word, folder: Path, bad: Path, *, few: bool) -> Iterator[tuple[str, str]]:
    """Names and values of what takes a word's place."""
    match word:
        case Read(path):
            for name in FEW if few else READ:
                made = bad.with_name(f"{bad.name}-{name}".replace(" ", "_"))
                READ[name](folder / path, made)
                if name != "of another consortium" or made.exists():
                    yield name, str(made)
        case Write():
            yield from WRITE.items()
        case Text():
            yield from TEXT.items()
        case Address():
            yield from ADDRESS.items()
        case ServerUrl():
            yield from SERVER.items()
        case StoreUrl():
            yield from STORE.items()
        case ProxyUrl():
            yield from PROXY.items()


def _retold(ticket: Path, bad: Path, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Tickets with other brokers, data or addresses: field and name of what is told, and where."""
    told = json.loads(ticket.read_text())
    folder = ticket.parent
    other: dict[str, Any] = {}
    for name in FEW if told.get("data") else ():
        made = bad.with_name(f"{bad.name}-data-{name}".replace(" ", "_"))
        READ[name](Path(told["data"][0]), made)
        other[f"data: {name}"] = {"data": [str(made)]}
    if told.get("brokers"):
        pin = yaml.safe_load((folder / FOREIGN / "broker.yaml").read_text())
        other["brokers: of another consortium"] = {"brokers": [pin]}
    for field in ("listen", "listen_writes"):
        for name in PORTS if field in told else ():
            other[f"{field}: {name}"] = {field: next(_filled([ADDRESS[name]], places))}
    for number, (name, fields) in enumerate(other.items()):
        path = bad.with_name(f"{bad.name}-{number}.ticket.json")
        path.write_text(json.dumps(told | fields))
        yield name, str(path)


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
        case Read(path) | Write(path) | Ticket(path):
            return path
        case Text(value) | Address(value) | ServerUrl(value) | StoreUrl(value) | ProxyUrl(value):
            return value
    return word


def _filled(words: list[str], places: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        for name, value in places.items():
            word = word.replace(f"{{{name}}}", value)
        yield word
