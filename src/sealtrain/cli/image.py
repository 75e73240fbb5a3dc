"""``image``: look at container images, and account for every file in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.files import atomic_write
from sealtrain.cli.imagedisk import DiskOptions, account_for_disk
from sealtrain.cli.output import Json, emit, progress_bytes, say, table
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.image.account import account_for
from sealtrain.image.layout import Image, Progress, read_image
from sealtrain.image.own_files import STATUS_FOLDER
from sealtrain.image.packages import code_of, keeps, python_of, wheels_of
from sealtrain.keys.identity import Identity
from sealtrain.owner.imagerecords import own_record, require_image, sign_image_record
from sealtrain.recipe.installation import code_sha256
from sealtrain.recipe.lock import Lock, load_lock

_SHOWN = 20

ImagePath = Annotated[Path, typer.Argument(metavar="IMAGE", help="OCI layout: a folder or a tar.")]


def verify(
    image: ImagePath,
    source: Annotated[Path, typer.Option(help="Source of sealtrain that you reviewed.")],
    guest: DiskOptions,
    lock: Annotated[
        Path | None, typer.Option(help="recipe.lock.json of a recipe that is to run in it.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(help="Your private identity file: sign that the lock's image is verified."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Record to write; beside the identity without it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Account for every file of an image; exits 3 where one is not what source and lock say.

    With --disk, every byte of a guest's disk is accounted for, too: it is written again from the
    image, the source and the pinned packages. With --identity, a signed record of it is written,
    which the page of sealtrain approve shows: to you, and with --verified to every owner that you
    send it to.
    """
    guest.require_whole()
    locked = None if lock is None else load_lock(lock)
    record = _record(identity, locked, out)
    found = open_image(image)
    account = account_for(found, source, lock=locked)
    if (refusal := account.refusal) is not None:
        for finding in account.findings[:_SHOWN]:
            say(f"✗ {finding.message}")
        if len(account.findings) > _SHOWN:
            say(f"✗ and {len(account.findings) - _SHOWN} more")
        raise refusal
    disk = account_for_disk(image, source, guest)
    code = code_of(found)
    kinds = Counter(entry.kind for entry in found.entries.values())
    shown: dict[str, Any] = {
        "digest": found.digest,
        "name": found.name,
        "code": code_sha256(code),
        "python": account.pins.python,
        "files": kinds["file"],
        "debian": len(account.pins.debian),
        "wheels": len(account.pins.wheels),
        "locked_packages": None if locked is None else len(locked.environment.packages),
    }
    lines = [
        f"✓ image        {found.digest}",
        f"✓ sealtrain    {code[0].version}, code {code_sha256(code)}: the bytes of {source}",
        f"✓ Debian       {len(account.pins.debian)} packages, Python {account.pins.python}",
        f"✓ wheels       {len(account.pins.wheels)} packages, every file as its RECORD says",
        f"✓ files        {kinds['file']} files and {kinds['link']} links; none is left over",
    ]
    if disk is not None:
        shown["disk"] = disk
        lines.append(f"✓ disk         sha256:{disk}: image, source and packages, and nothing else")
    if locked is not None:
        lines.append(f"✓ lock         {len(locked.environment.packages)} packages and the code")
        if locked.recipe.hardware.image is None:
            lines.append("· lock         names no image: only the simulator runs it")
    if record is not None:
        shown["record"] = str(record.file)
        signed = sign_image_record(record.keys, record.lock, now=system_clock())
        atomic_write(record.file, signed.to_bytes())
        lines.append(f"✓ record       {record.file}: signed by {record.keys.name}")
    emit(as_json, shown, [*lines, "accounted for"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The record that is to be signed once the image is accounted for."""

    keys: Identity
    lock: Lock
    file: Path


def _record(identity: Path | None, lock: Lock | None, out: Path | None) -> _Record | None:
    """What ``--identity`` asks for, refused before minutes of hashing where it cannot be written.

    Raises:
        UsageError: Without a lock that names an image, or without an identity.
        AlreadyExists: The file is there.
    """
    if identity is None:
        if out is not None:
            raise UsageError(
                "a record needs its signer", check="--out", hint="name it: --identity FILE"
            )
        return None
    if lock is None:
        raise UsageError(
            "a record is about the image of a lock",
            check="--identity",
            hint="name the lock: --lock recipe.lock.json",
        )
    keys = Identity.load(identity)
    record = _Record(keys=keys, lock=lock, file=out or own_record(identity, keys.name, lock))
    require_image(lock)
    if record.file.exists():
        raise AlreadyExists(
            f"{record.file} already exists", hint="remove it to sign anew, or choose another --out"
        )
    if not record.file.parent.is_dir():
        raise UsageError(
            f"the folder {record.file.parent} does not exist",
            check="--out",
            hint="create it, or choose another --out",
        )
    return record


def show(image: ImagePath, as_json: Json = False) -> None:
    """Show an image's digest, how it starts and which packages it has; nothing is verified."""
    found = open_image(image)
    code = code_of(found)
    wheels = {name: wheel.version for name, wheel in sorted(wheels_of(found).items())}
    debian = sorted(
        name.rpartition("/")[2].removesuffix(".list")
        for name in found.kept
        if name.startswith(f"{STATUS_FOLDER}/") and name.endswith(".list")
    )
    emit(
        as_json,
        {
            "digest": found.digest,
            "name": found.name,
            "config": dict(found.config),
            "sealtrain": code[0].version,
            "code": code_sha256(code),
            "python": python_of(found),
            "wheels": wheels,
            "debian": debian,
        },
        [
            f"image      {found.name} {found.digest}",
            f"sealtrain  {code[0].version}, code {code_sha256(code)}",
            f"python     {python_of(found)}",
            *(f"{key:<10} {value}" for key, value in found.config.items()),
            f"debian     {', '.join(debian)}",
            "",
            *table(sorted(wheels.items()), header=("package", "version")),
        ],
    )


def open_image(path: Path) -> Image:
    """Read an image with a progress bar.

    Raises:
        UsageError: There is nothing at the path.
    """
    with reading(path) as progress:
        return read_image(path, keeps, progress=progress)


@contextmanager
def reading(path: Path) -> Iterator[Progress]:
    """A progress bar over an image's bytes.

    Raises:
        UsageError: There is nothing at the path.
    """
    if not path.exists():
        raise UsageError(f"no image at {path}", hint="name an OCI layout: a folder or a tar")
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    with progress_bytes("image", size, shown=True) as progress:
        yield progress
