"""What people give to commands by mistake or by malice: one call each, from calls that would work.

``WORKING`` holds a call of every command that reads something. Each of its words that is a
``Read``, ``Write`` or ``Text`` is replaced, one at a time, by everything in ``READ``, ``WRITE`` or
``TEXT``: that makes the table of ``tests/cli/bad_inputs.txt``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
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


Word = str | Read | Write | Text


@dataclass(frozen=True)
class Case:
    """A call and what is wrong with it.

    Attributes:
        command: Its name, of one or two words.
        given: What is replaced: an option, or an argument's place.
        bad: The name of what takes its place.
        words: The whole call.
    """

    command: str
    given: str
    bad: str
    words: tuple[str, ...]

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


ME: Final = ("--identity", Read("clinic-a/clinic-a.identity.json"))
BROKER: Final = ("--broker", Read("broker.yaml"))
CONSORTIUM: Final = ("--consortium", Read("consortium.json"))
DOCUMENT: Final = Read("engineer/app-compose.json")
LOCK: Final = Read("engineer/recipe.lock.json")
SEALED: Final = Read("engineer/sealed/clinic-a.notes.sealed")
MANIFEST: Final = Read("run/manifest.json")
TRUST: Final = ("--trust", Read("trust.yaml"))
GUEST: Final = (
    "--platform", "simulator", "--guest", Text("engineer.sock"),
    "--collateral", "file:root/collateral.json",
)  # fmt: skip
RUN: Final = (*GUEST, *BROKER, "--data", Read("engineer/sealed"))
OUT: Final = ("--out", Write("new"))

DEPLOYMENT: Final = ("--deployment", DOCUMENT)
RECORDS: Final = "inputs/clinic-a.notes.jsonl"
WORKING: Final[Mapping[str, tuple[Word, ...]]] = {
    "keygen": (Text("clinic-d"), *OUT),
    "lock": (Read("engineer/recipe.yaml"), *BROKER, *CONSORTIUM, *OUT),
    "seal": (
        Read(RECORDS), "--name", Text("notes"), *ME,
        *DEPLOYMENT, *BROKER, "--data-use", Read("data-use.yaml"), *OUT,
    ),
    "rewrap": (SEALED, *ME, *DEPLOYMENT, *BROKER, "--data-use", Read("data-use.yaml")),
    "adopt": (Read("run"), *ME, *DEPLOYMENT, *TRUST, *BROKER, *OUT),
    "register": (SEALED, *ME, *DEPLOYMENT, *BROKER),
    "status": (*DEPLOYMENT, *BROKER, "--interrupted", Read("run")),
    "init": (Write("new"), "--owner-name", Text("clinic-d"), "--sample", Read(RECORDS)),
    "up": ("--tee", Text("no-such-tee"), "--out", "new"),
    "rehearse": (
        Read("engineer/recipe.yaml"), "--records", Text(f"clinic-a.notes={RECORDS}"), *OUT,
    ),
    "recipe check": (
        Read("engineer/recipe.yaml"), *CONSORTIUM, "--records", Text(f"clinic-a.notes={RECORDS}"),
    ),
    "recipe import": (Read("axolotl.yaml"), "--dataset", Text("clinic-a.notes"), *OUT),
    "inspect": (SEALED,),
    "open": (Read("run/model"), *ME, *TRUST, *OUT),
    "approve": (*DEPLOYMENT, *ME, *BROKER, *CONSORTIUM, "--data", SEALED, "--yes"),
    "revoke": (*DEPLOYMENT, *ME, *BROKER, *CONSORTIUM, "--yes"),
    "train": (LOCK, *RUN, *OUT),
    "resume": (Read("run"),),
    "guest": (LOCK, *GUEST, "--ticket", Read("guest.ticket.json"), *OUT),
    "checkpoints": (Read("run"),),
    "verify": (MANIFEST, *TRUST, "--artefacts", Read("run")),
    "report": (MANIFEST, *TRUST, *OUT),
    "export": (MANIFEST, *TRUST, "--format", Text("model-card"), *OUT),
    "validate": (Read("engineer/recipe.yaml"), "--records", Text("clinic-a.notes=inputs"), *ME),
    "publish": (SEALED, Text("file:///proc/published")),
    "doctor": ("--policy", Text("policy.yaml"), "--collateral", Text("file:root/collateral.json")),
    "withdraw": (Read("engineer/sealed/clinic-c.notes.sealed"), *ME, *BROKER, "--yes"),
    "explain": (Text("no-such-code"),),
    "recipes": (Text("no-such-recipe"),),
    "recipe show": (LOCK,),
    "recipe diff": (LOCK, Read("engineer/app-compose.json")),
    "log": BROKER,
    "log witness": (*BROKER, *ME, *CONSORTIUM),
    "log audit": (*BROKER, *CONSORTIUM, *TRUST),
    "log uses": (SEALED, *BROKER),
    "approvals status": (*DEPLOYMENT, *BROKER, *CONSORTIUM),
    "policy set": (Read("policy.yaml"), *ME, *BROKER, "--yes"),
    "policy clear": (*ME, *BROKER, "--yes"),
    "policy show": (*BROKER, *CONSORTIUM),
    "consortium create": (
        Text("stage"), "--owner", Read("clinic-a/clinic-a.public.json"), "--approve", Text("1"),
        *OUT,
    ),
    "consortium propose": (
        *ME, *BROKER, "--add", Read("clinic-b/clinic-b.public.json"), *OUT, "--yes",
    ),
    "consortium sign": (Read("succession.json"), *ME, *BROKER, "--yes"),
    "consortium verify": (Read("succession.json"), *CONSORTIUM),
    "consortium succeed": (Read("succession.json"), *ME, *BROKER, *OUT),
    "consortium follow": (Read("succession.json"), *ME, *BROKER),
    "attest collect": (
        "--platform", "simulator", "--guest", Text("engineer.sock"), "--nonce", Text("00" * 32),
        *OUT,
    ),
    "attest verify": (Read("evidence.json"), "--policy", Read("policy.yaml")),
    "attest explain": (Read("evidence.json"), "--policy", Read("policy.yaml")),
    "attest bundle": (Read("evidence.json"), *OUT),
    "policy new": (Text("no-such-preset"), *OUT),
    "attest fetch": (*OUT, "--quote", Read("evidence.json"), "--pccs", Text("http://127.0.0.1:9")),
    "trust new": (
        *CONSORTIUM, *DEPLOYMENT, "--policy", Read("policy.yaml"), *BROKER, *OUT,
    ),
    "broker serve": (
        *CONSORTIUM, "--policy", Read("policy.yaml"), "--root-secret", Text("file:absent"),
        "--state", Write("new"), "--guest", Text("engineer.sock"), "--platform", "simulator",
    ),
    "broker deployment": (*CONSORTIUM, "--policy", Read("policy.yaml"), *OUT),
    "broker pin": (
        "--url", Text("http://127.0.0.1:9"), "--broker-deployment", Read("broker-compose.json"),
        "--policy", Read("policy.yaml"), *OUT,
    ),
    "broker status": (*BROKER, "--token-file", Read("token")),
    "broker backup": ("--state", Read("broker/state"), *OUT),
    "broker restore": (Read("backup"), "--state", Write("new")),
    "broker migrate": ("--state", Read("broker-copy")),
    "broker restored": ("--database", Text("postgresql://nobody@127.0.0.1:9/none")),
    "broker approve-kms": (DOCUMENT, *ME, *BROKER, "--yes"),
    "broker rotate-root": (
        *CONSORTIUM, "--state", Read("broker-copy"), "--root-secret", Text("file:absent"),
        "--new-root-secret", Text("file:absent"),
    ),
    "broker root split": (
        "--root-secret", Text("file:absent"), "--threshold", Text("2"), "--shares", Text("3"), *OUT,
    ),
    "broker root join": (Read("token"), *OUT),
    "broker token create": (
        Text("watcher"), "--scope", Text("metrics"), *OUT, "--state", Read("broker-copy"),
    ),
    "broker token list": ("--state", Read("broker-copy")),
    "broker token remove": (Text("nobody"), "--state", Read("broker-copy")),
    "deploy run": (
        *DEPLOYMENT, "--folder", Write("new"), "--ticket", Read("guest.ticket.json"),
        "--simulator", Read("root"),
    ),
    "deploy ticket": ("--role", Text("train"), *BROKER, "--data", Text("file:absent"), *OUT),
    "run submit": (
        Text("nightly"), "--ticket", Read("guest.ticket.json"), *DEPLOYMENT, *BROKER, *ME,
        "--within", Text("1h"),
    ),
    "run list": (*BROKER, "--limit", Text("5")),
    "run wait": (Text("nobody"), *BROKER, "--timeout", Text("1s")),
    "run logs": (Text("nobody"), *BROKER),
    "run stop": (Text("nobody"), *BROKER, *ME),
    "run download": (Text("nobody"), *BROKER, *OUT, "--store", Text("file:absent")),
    "run serve": (
        *BROKER, *ME, *DEPLOYMENT, "--folder", "new", "--simulator", "root",
        "--claim", Text("60s"),
    ),
    "deploy credentials": (
        Read("token"), *DEPLOYMENT, "--policy", Read("policy.yaml"),
    ),
    "image verify": (Read("engineer/sealed"), "--source", Read("engineer"), "--lock", LOCK),
    "image show": (Read("engineer/sealed"),),
}  # fmt: skip
"""Calls whose words are right, by command."""


FEW: Final = ("absent", "another of our files")
"""What the second command, and every further one, is given for an option that reads a file."""


def cases(folder: Path) -> Iterator[Case]:
    """Every bad call, its files made in the folder ``bad`` of a stage's folder."""
    bad = folder / "bad"
    bad.mkdir()
    (folder / "taken").write_text("kept\n")
    tried: set[str] = set()
    for command, words in WORKING.items():
        for place, word in enumerate(words):
            given = _given(words, place)
            if isinstance(word, Read):
                good = folder / word.path
                all_or_few = FEW if given in tried else READ
                tried |= {given} if given.startswith("--") else set()
                for name, make in ((name, READ[name]) for name in all_or_few):
                    path = bad / f"{command}-{place}-{name}".replace(" ", "_")
                    make(good, path)
                    yield _case(command, words, place, given, name, str(path))
            elif isinstance(word, Write):
                for name, value in WRITE.items():
                    yield _case(command, words, place, given, name, value)
            elif isinstance(word, Text):
                for name, value in TEXT.items():
                    yield _case(command, words, place, given, name, value)


def _given(words: tuple[Word, ...], place: int) -> str:
    before = words[place - 1] if place else ""
    if isinstance(before, str) and before.startswith("--"):
        return before
    return f"word {place + 1}"


def _case(
    command: str, words: tuple[Word, ...], place: int, given: str, bad: str, value: str
) -> Case:
    said = [_good(word) if at != place else value for at, word in enumerate(words)]
    return Case(command, given, bad, (*command.split(), *said))


def _good(word: Word) -> str:
    match word:
        case Read(path) | Write(path):
            return path
        case Text(value):
            return value
    return word
