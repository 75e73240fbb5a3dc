"""The executor: it starts what a deployment document says, and nothing else.

1. read and check the document, and the ticket; nothing is written for one that is refused;
2. the guest's folder belongs to one document: another one's folder is refused;
3. with an image: verify that it is the document's, and that nothing of what was unpacked changed;
4. start a simulated guest that measures the document, with its socket in the folder;
5. without an image, become the document's script (``execve``), in the folder and with a clean
   environment; with one, run its container.

So a script's process is the measured program itself: it has this process's id, its exit status and
its signals. A container's program gets this process's signals, and this process ends as it does.
The simulated guest ends with this process.
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
from sealtrain.cli.container import ContainerPaths, container, serve
from sealtrain.cli.image import reading
from sealtrain.cli.output import say
from sealtrain.cli.programs import SideProgram, program
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import BROKER_ROLE, RunTicket, load_ticket
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.guest.sandbox.rehearsal import INSECURE_SHOW
from sealtrain.image.layout import Described
from sealtrain.image.unpack import unpack_image
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.document import Frame, frame_of, layout_of
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe

_DOCUMENT: Final = "app-compose.json"
_SCRIPT: Final = "start.sh"
_UNPACKED: Final = "image"
_VOLUME: Final = "run-data"
_USER_CONFIG: Final = "/dstack/user_config"
_COLLATERAL: Final = ("collateral.json", "gpu-collateral.json")
_STARTS_WITHIN_S: Final = 120
_KEPT_VARIABLES: Final = ("LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", *INSECURE_SHOW)
"""Language, scratch space and processors are the machine's; a guest has such settings too. The last
is for rehearsals, and only a run on the simulator heeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The simulated guest that measures the document.

    Attributes:
        root: Folder of the simulated root of trust, absolute.
        words: Options of ``sealtrain simulator serve`` that say what it plays.
    """

    root: Path
    words: tuple[str, ...]


def execute(
    document: Path, folder: Path, ticket: Path | None, image: Path | None, simulated: Simulated
) -> NoReturn:
    """Become the program of a document, or run its container until it ends.

    Args:
        document: ``app-compose.json`` of a recipe or a broker.
        folder: Of the guest; made where it is not there.
        ticket: For the guest; that of an earlier start where ``None``.
        image: OCI layout of the image that the document names.
        simulated: What measures the document.

    Raises:
        LockInvalid: The document is not one that sealtrain wrote.
        UsageError: It is for hardware, or an image is missing or has no use.
        ImageRefused: The image is not the document's, or was changed once unpacked.
        TicketInvalid: There is no ticket, or it is malformed or for something else.
        AlreadyExists: The folder belongs to another document.
        Unreachable: The simulated guest does not start.
    """
    data = read_bounded(document, MAX_DEPLOYMENT_BYTES)
    frame = _check_frame(data)
    _check_image(frame, image)
    layout = layout_of("simulator", image=None)
    given = load_ticket(ticket or folder / layout.ticket)
    _check_role(frame, given)
    image = None if image is None else image.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _claim(folder / _DOCUMENT, data)
    os.chdir(folder)  # a socket's path has at most 107 characters, wherever the folder lies
    here = Path()
    found = None if image is None else _unpack(frame, image)
    agent = SideProgram(
        "agent", here,
        ("simulator", "serve", "--deployment", _DOCUMENT, "--socket", layout.guest,
         "--simulator", simulated.root, "--until-exit", str(os.getpid()), *simulated.words),
        answers=False,
    )  # fmt: skip
    with agent:
        agent.place("guest API", within=_STARTS_WITHIN_S)
        atomic_write(here / layout.ticket, given.to_bytes(), overwrite=True)
        say(f"SIMULATED — NOT ATTESTED: starting document {compose_hash(data)}")
        if found is not None:
            _contain(frame, *found, simulated)
        for name in _COLLATERAL:
            (here / name).unlink(missing_ok=True)
            (here / name).symlink_to(simulated.root / name)
        atomic_write(here / _SCRIPT, (frame.script or "").encode(), overwrite=True)
        _become(["bash", _SCRIPT])


def _check_frame(data: bytes) -> Frame:
    """The frame of a document that ``sealtrain lock`` or ``sealtrain broker deployment`` wrote."""
    frame = frame_of(data)
    if frame.words[:1] == ("guest",):
        LockedRecipe.parse(data)
    elif frame.words[:2] == ("broker", "serve"):
        read_broker_document(data)
    else:
        raise LockInvalid("deployment document starts no known command", check="document")
    return frame


def _check_image(frame: Frame, image: Path | None) -> None:
    """A document is for the simulator or for hardware; only the former's image is started here."""
    if frame.adopted:
        raise UsageError(
            "a platform added a launch script to the document, and only a platform runs it",
            check="document",
            got="pre_launch_script",
            hint="start the document that sealtrain lock wrote",
        )
    platform = frame.words[frame.words.index("--platform") + 1]
    if platform != "simulator":
        raise UsageError(
            "the document is for hardware, and no simulated guest may stand in for it",
            check="platform",
            got=platform,
            expected="simulator",
            hint="deploy it with dstack there; to rehearse it with the same image, lock the "
            "recipe again with platforms: [simulator]",
        )
    if frame.image is None and image is not None:
        raise UsageError("the document names no image", check="image", hint="leave --image out")
    if frame.image is not None and image is None:
        raise UsageError(
            "the document starts a container",
            check="image",
            got="no image",
            expected=frame.image,
            hint="name the OCI layout of the image with --image (make images writes them)",
        )


def _unpack(frame: Frame, image: Path) -> tuple[Path, Described]:
    digest = (frame.image or "").rpartition("@")[2]
    with reading(image) as progress:
        return unpack_image(image, digest, Path(_UNPACKED), progress=progress)


def _contain(frame: Frame, root: Path, image: Described, simulated: Simulated) -> NoReturn:
    """Run the document's container, with what a simulated guest has outside of it."""
    volume = Path(_VOLUME)
    volume.mkdir(mode=0o700, exist_ok=True)
    for name in _COLLATERAL:
        if (simulated.root / name).exists():
            atomic_write(volume / name, (simulated.root / name).read_bytes(), overwrite=True)
    inside, outside = (layout_of("simulator", image=name) for name in (frame.image, None))
    place = ContainerPaths(
        root=root,
        sources={inside.guest: Path(outside.guest), _USER_CONFIG: Path(outside.ticket)},
        volumes={_VOLUME: volume},
    )
    serve(container(frame, image.config, place))


def _check_role(frame: Frame, given: RunTicket) -> None:
    role = given.role
    of_broker = frame.words[:1] == (BROKER_ROLE,)
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
