"""What an enclave's init does, as data: mounts, modules' parameters, and what it starts.

Nothing here calls the kernel. ``init`` performs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sealtrain.recipe.document import Frame

USER: Final = 65532
"""The user of our images, who runs a document's program."""
PROGRAM: Final = "/usr/local/bin/sealtrain"
KEPT: Final = "/run-data"
DOCUMENT_FILE: Final = "/run/sealtrain/app-compose.json"
TICKET_FILE: Final = "/run/sealtrain/ticket.json"
"""Where a document of the simulator's platform reads its ticket."""
VARIABLES: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": KEPT,
}
"""Environment of spec/images.md §4."""

NOSUID, NODEV, NOEXEC = 2, 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file system that init mounts; all of them are of the kernel or in memory."""

    kind: str
    target: str
    flags: int
    options: str = ""


MOUNTS: Final = (
    Mount(kind="proc", target="/proc", flags=NOSUID | NODEV | NOEXEC),
    Mount(kind="sysfs", target="/sys", flags=NOSUID | NODEV | NOEXEC),
    Mount(kind="devtmpfs", target="/dev", flags=NOSUID | NOEXEC),
    Mount(kind="tmpfs", target="/dev/shm", flags=NOSUID | NODEV, options="mode=1777"),  # noqa: S108
    Mount(kind="tmpfs", target="/run", flags=NOSUID | NODEV | NOEXEC, options="mode=0755"),
    Mount(kind="tmpfs", target="/tmp", flags=NOSUID | NODEV, options="mode=1777"),  # noqa: S108
    Mount(
        kind="tmpfs",
        target=KEPT,
        flags=NOSUID | NODEV,
        options=f"mode=0700,uid={USER},gid={USER}",
    ),
)
"""In this order. A document's container has the same: memory at ``/tmp`` and ``/dev/shm``, and one
volume, which ends with the enclave."""


DEVICE_LINKS: Final[Mapping[str, str]] = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
"""Links that a container's runtime makes; a run's outputs are sent to their store by the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveProgram:
    """What a document starts in an enclave.

    Attributes:
        words: Of the command, the program included.
        ports: That the parent reaches, the same number inside and outside.
        files: Names of files that the parent may hand in, below ``KEPT``.
        asks_agent: The command is of the simulator's platform: init answers it as an agent, with
            evidence that is taken under a test root alone, and takes its ticket.
    """

    words: tuple[str, ...]
    ports: tuple[int, ...]
    files: frozenset[str] = frozenset()
    asks_agent: bool = False


def module_parameters(command_line: str, module: str) -> str:
    """Words of the kernel's command line that are for a module, as ``finit_module`` takes them.

    The kernel hands such words to built-in code only, and modprobe, which no enclave has, to
    modules. An enclave's devices are announced in this way alone.

    Args:
        command_line: As ``/proc/cmdline`` shows it.
        module: Its name; dashes and underscores are the same to the kernel.
    """
    found = []
    for word in command_line.split():
        name, dot, parameter = word.partition(".")
        if dot and name.replace("-", "_") == module:
            found.append(parameter)
    return " ".join(found)


def program_of(frame: Frame, image: str) -> EnclaveProgram:
    """What a measured document starts here.

    Args:
        frame: Of the document, whose rules its program checks again (deployment-document §5).
        image: Digest of the container image that this enclave is made of.

    Raises:
        LockInvalid: The document is for another platform or another image.
    """
    from sealtrain.recipe.errors import LockInvalid

    found = (frame.image or "no image").rpartition("@")[2]
    if found != image:
        raise LockInvalid(
            "the document names another image than this enclave is made of",
            check="image",
            got=found[:80],
            expected=image,
            hint="write the image's digest into the recipe, or start the enclave of that image",
        )
    platforms = [
        value
        for word, value in zip(frame.words, frame.words[1:], strict=False)
        if word == "--platform"
    ]
    if platforms not in (["nitro"], ["simulator"]):
        raise LockInvalid(
            "the document is for another platform",
            check="platform",
            got=", ".join(platforms)[:60] or "none",
            expected="nitro, or simulator for a test",
        )
    (service,) = (frame.compose or {})["services"].values()
    ports = tuple(int(port.partition(":")[0]) for port in service.get("ports", ()))
    return EnclaveProgram(
        words=(PROGRAM, *frame.words), ports=ports, asks_agent=platforms == ["simulator"]
    )
