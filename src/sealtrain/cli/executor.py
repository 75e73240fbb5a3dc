"""The executor: it starts what a deployment document says, and nothing else.

1. read and check the document, and the ticket; nothing is written for one that is refused;
2. the guest's folder belongs to one document: another one's folder is refused;
3. start a simulated guest that measures the document, with its socket in the folder;
4. become the document's script (``execve``), in the folder and with a clean environment.

So the process that was started is the measured program itself: it has this process's id, its exit
status and its signals. The simulated guest ends with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.broker.service.deployment import read_broker_document
from sealtrain.cli.output import say
from sealtrain.cli.programs import Part, program
from sealtrain.client.ticket import BROKER_ROLE, RunTicket, load_ticket
from sealtrain.errors import AlreadyExists, LockInvalid, TicketInvalid, UsageError
from sealtrain.recipe.compose import compose_hash, extract_lock
from sealtrain.recipe.document import frame_of, layout_of

__all__ = ["Simulated", "execute"]

_DOCUMENT: Final = "app-compose.json"
_SCRIPT: Final = "start.sh"
_COLLATERAL: Final = ("collateral.json", "gpu-collateral.json")
_STARTS_WITHIN_S: Final = 120
_KEPT_VARIABLES: Final = ("LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS")
"""Language, scratch space and processors are the machine's; a guest has such settings too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The simulated guest that measures the document.

    Attributes:
        root: Folder of the simulated root of trust, absolute.
        words: Options of ``sealtrain simulator serve`` that say what it plays.
    """

    root: Path
    words: tuple[str, ...]


def execute(document: Path, folder: Path, ticket: Path | None, simulated: Simulated) -> NoReturn:
    """Become the program of a document.

    Args:
        document: ``app-compose.json`` of a recipe or a broker.
        folder: Of the guest; made where it is not there.
        ticket: For the guest; that of an earlier start where ``None``.
        simulated: What measures the document.

    Raises:
        LockInvalid: The document is not one that sealtrain wrote.
        UsageError: It starts a container.
        TicketInvalid: There is no ticket, or it is malformed or for something else.
        AlreadyExists: The folder belongs to another document.
        Unreachable: The simulated guest does not start.
    """
    data = read_bounded(document, MAX_DEPLOYMENT_BYTES)
    script = _checked(data)
    layout = layout_of("simulator")
    given = load_ticket(ticket or folder / layout.ticket)
    _check_role(data, given)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _claim(folder / _DOCUMENT, data)
    os.chdir(folder)  # a socket's path has at most 107 characters, wherever the folder lies
    here = Path()
    agent = Part(
        "agent", here,
        ("simulator", "serve", _DOCUMENT, "--socket", layout.guest, "--state", simulated.root,
         "--until", str(os.getpid()), *simulated.words),
        answers=False,
    )  # fmt: skip
    with agent:
        agent.place("guest API", within=_STARTS_WITHIN_S)
        for name in _COLLATERAL:
            (here / name).unlink(missing_ok=True)
            (here / name).symlink_to(simulated.root / name)
        atomic_write(here / layout.ticket, given.to_bytes(), overwrite=True)
        atomic_write(here / _SCRIPT, script.encode(), overwrite=True)
        say(f"SIMULATED — NOT ATTESTED: starting document {compose_hash(data)}")
        _become(["bash", _SCRIPT])


def _checked(data: bytes) -> str:
    """The script of a document that ``sealtrain lock`` or ``sealtrain broker deployment`` wrote."""
    frame = frame_of(data)
    words = frame.words
    if words[:1] == ("guest",):
        extract_lock(data)
    elif words[:2] == ("broker", "serve"):
        read_broker_document(data)
    else:
        raise LockInvalid("deployment document starts no known command", check="document")
    if frame.script is None:
        raise UsageError(
            "the document starts a container, which needs its hardware",
            check="runner",
            got="docker-compose",
            expected="bash",
            hint="deploy it with dstack on a machine of its platform",
        )
    return frame.script


def _check_role(data: bytes, given: RunTicket) -> None:
    role = given.role
    of_broker = frame_of(data).words[:1] == (BROKER_ROLE,)
    if of_broker != (role == BROKER_ROLE):
        raise TicketInvalid(
            "the run ticket is not for this document",
            check="role",
            got=role,
            expected=BROKER_ROLE if of_broker else "a role of the recipe",
        )


def _claim(place: Path, data: bytes) -> None:
    if not place.exists():
        atomic_write(place, data)
    elif read_bounded(place, MAX_DEPLOYMENT_BYTES) != data:
        raise AlreadyExists(
            f"{place.parent} is the folder of another document",
            hint="choose another --folder: a guest keeps one document for its life",
        )


def _become(command: list[str]) -> NoReturn:
    """Run a command in place of this process, with ``sealtrain`` in its path and little else."""
    shell = shutil.which(command[0])
    if shell is None:
        raise UsageError("no bash on this machine", hint="install bash")
    binaries = Path("bin").absolute()
    binaries.mkdir(exist_ok=True)
    entry = binaries / "sealtrain"
    text = f'#!/bin/sh\nexec {shlex.join(program(()))} "$@"\n'
    atomic_write(entry, text.encode(), mode=0o755, overwrite=True)
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    variables = {
        "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.cwd()),
        **kept,
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(shell, command, variables)  # noqa: S606  # the document's own script
