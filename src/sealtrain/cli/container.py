"""A document's container in namespaces of this user's, made by bubblewrap (``bwrap``).

Every key of the document's service has a field in ``_Service``, and every field has its effect
below: a key that this module does not know is refused, never ignored. What a container runtime
gives beside the document (``/proc``, ``/dev``, the image's environment) is in ``_base``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import Field, StringConstraints

from sealtrain.base.models import StrictModel, load_model
from sealtrain.errors import ImageRefused, UsageError
from sealtrain.image.own_files import CONFIG
from sealtrain.recipe.document import Frame
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.fields import ImageName

_USER: Final = "65532"
_SHARED_MEMORY: Final = {"8gb": 8 << 30}
_PROCESSORS: Final = "/sys/devices/system"
_NAMES_OF_HOSTS: Final = ("/etc/hosts", "/etc/resolv.conf")
_MAX_LINKS: Final = 8
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Port = Annotated[str, StringConstraints(pattern=r"^[0-9]+:[0-9]+$")]


class _Service(StrictModel):
    """What a document says of its container."""

    image: ImageName
    labels: dict[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    working_dir: str
    volumes: tuple[str, ...]
    ports: tuple[Port, ...] = ()  # the container has the executor's network
    cap_drop: tuple[Literal["ALL"]]
    security_opt: tuple[Literal["no-new-privileges:true"]]
    read_only: Literal[True]
    tmpfs: tuple[Literal["/tmp:exec"]]  # noqa: S108  # in the container
    shm_size: Literal["8gb"]
    restart: Literal["no"]


class _Compose(StrictModel):
    services: Annotated[dict[str, _Service], Field(min_length=1, max_length=1)]
    configs: dict[str, dict[Literal["content"], str]]
    volumes: dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPaths:
    """What a container finds outside of its image.

    Attributes:
        root: The image's files, verified.
        sources: Host path that the document mounts → what is there in its place.
        volumes: Name of a volume → its folder.
    """

    root: Path
    sources: Mapping[str, Path]
    volumes: Mapping[str, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """Something at a path of the container; ``words`` for bwrap come before the path."""

    words: tuple[str, ...]
    target: str


def container(frame: Frame, config: Mapping[str, Any], place: ContainerPaths) -> list[str]:
    """The command that starts a document's container.

    Args:
        frame: Of a document with an image.
        config: Of the image.
        place: Its surroundings.

    Raises:
        LockInvalid: The document asks for something that only hardware gives.
        ImageRefused: The image starts in another way than sealtrain's do.
        UsageError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise UsageError(
            "containers are started by bubblewrap, which is not installed",
            check="bwrap",
            hint="install it: apt-get install bubblewrap",
        )
    if dict(config) != dict(CONFIG):
        raise ImageRefused(
            "a container of the image starts in another way",
            check="config",
            hint="make the image from the source: make images",
        )
    compose = load_model(_Compose, dict(frame.compose or {}), LockInvalid, "docker compose file")
    (service,) = compose.services.values()
    mounts = [_volume(text, place) for text in service.volumes]
    mounts += [
        _Mount(words=("--ro-bind", str(Path(name).resolve())), target=name)
        for name in _NAMES_OF_HOSTS
        if Path(name).is_file()
    ]
    words = [program, *_base(place.root, service), *_describe_mounts(place.root, mounts)]
    return [*words, "--chdir", service.working_dir, "--", *service.entrypoint, *service.command]


def serve(words: list[str]) -> NoReturn:
    """Run a container, pass on signals to its program, and end with its exit status.

    Raises:
        UsageError: This system starts no container.
    """
    told, telling = os.pipe()
    program, *rest = words
    process = subprocess.Popen(  # noqa: S603 - bwrap, with our own words
        [program, "--json-status-fd", str(telling), *rest], pass_fds=(telling,)
    )
    os.close(telling)
    with os.fdopen(told) as status:
        first = status.readline()
        if first:
            inside = int(json.loads(first)["child-pid"])

            def forward(number: int, _frame: object) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(inside, number)

            for number in _FORWARDED:
                signal.signal(number, forward)
        started = '"exit-code"' in status.read()
    ended = process.wait()
    if not started and ended != 0:
        raise UsageError(
            "the container did not start",
            check="bwrap",
            got=f"status {ended}",
            hint="bwrap's own words are above; it needs user namespaces, or root",
        )
    raise SystemExit(ended)


def _volume(text: str, place: ContainerPaths) -> _Mount:
    source, target, *mode = text.split(":")
    known = place.volumes if not source.startswith("/") else place.sources
    if source not in known or mode not in ([], ["ro"]):
        raise LockInvalid(
            "the document mounts something that a simulated guest does not have",
            check="volumes",
            got=text[:200],
        )
    bind = "--ro-bind" if mode else "--bind"
    return _Mount(words=(bind, str(known[source].absolute())), target=target)


def _base(root: Path, service: _Service) -> list[str]:
    """Namespaces, the image read-only, and what every container runtime mounts."""
    settings = dict(text.split("=", 1) for text in CONFIG["Env"])
    variables = {**settings, "HOME": str(CONFIG["WorkingDir"])}
    shared = str(_SHARED_MEMORY[service.shm_size])
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        "--unshare-cgroup-try",
        *("--uid", _USER, "--gid", _USER, "--hostname", "guest"),
        *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"),
        "--clearenv",
        *(word for pair in variables.items() for word in ("--setenv", *pair)),
        *("--ro-bind", str(root.absolute()), "/"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", shared, "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108  # in it
        *("--tmpfs", "/sys", "--ro-bind", _PROCESSORS, _PROCESSORS, "--remount-ro", "/sys"),
        *("--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108  # in the container
    ]


def _describe_mounts(root: Path, mounts: list[_Mount]) -> Iterator[str]:
    """Words for mounts; a folder in which the image lacks a mount point is made anew in memory.

    Nothing is written into the image's folder, so it still proves itself at the next start.
    """
    placed = [(_resolve(root, mount.target), mount.words) for mount in mounts]
    grown = sorted(
        {target.parent for target, _ in placed if not _below(root, target).exists()},
        key=lambda folder: len(folder.parts),
    )
    for folder in grown:
        yield from ("--perms", "0755", "--tmpfs", str(folder))
        for child in sorted(_below(root, folder).iterdir()):
            inside = folder / child.name
            if child.is_symlink():
                yield from ("--symlink", str(child.readlink()), str(inside))
            elif inside in grown:
                yield from ("--dir", str(inside))
            else:
                yield from ("--ro-bind", str(child.absolute()), str(inside))
    for target, words in placed:
        yield from (*words, str(target))
    for folder in reversed(grown):
        yield from ("--remount-ro", str(folder))


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def _resolve(root: Path, target: str) -> PurePosixPath:
    """A path of the container without links of the image; its folder is in the image."""
    pending, found, links = list(PurePosixPath(target).parts[1:]), PurePosixPath("/"), 0
    while pending:
        part = pending.pop(0)
        found = found.parent if part == ".." else found / part
        there = _below(root, found)
        if there.is_symlink() and links < _MAX_LINKS:
            links += 1
            link = PurePosixPath(there.readlink())
            found = PurePosixPath("/") if link.is_absolute() else found.parent
            pending = [*(part for part in link.parts if part != "/"), *pending]
    folder = _below(root, found.parent)
    if folder.is_symlink() or not folder.is_dir():
        raise ImageRefused(
            f"the image has no folder for {target}",
            check="root",
            hint="make the image from the source: make images",
        )
    return found
