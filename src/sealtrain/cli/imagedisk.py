"""``image verify --disk``: account for every byte of a guest's disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sealtrain.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """A guest's disk that was made of an image."""

    disk: Annotated[
        Path | None, typer.Option(help="A guest's disk of this image: account for all of it, too.")
    ] = None
    packages: Annotated[
        Path | None,
        typer.Option(help="Folder with Debian's packages that deploy/vm/pins.json names."),
    ] = None
    gpu_files: Annotated[
        Path | None,
        typer.Option(help="Folder with NVIDIA's files and gpu.json, of a disk for GPUs."),
    ] = None

    def require_whole(self) -> None:
        """Refuse words that say nothing without the others.

        Raises:
            UsageError: A disk without packages, or the reverse.
        """
        if self.disk is not None and self.packages is None:
            raise UsageError(
                "a disk is written again from its packages",
                check="--packages",
                got="none",
                hint="name the folder with the packages of deploy/vm/pins.json",
            )
        if self.disk is None and (self.packages is not None or self.gpu_files is not None):
            raise UsageError(
                "packages and files for GPUs are parts of a disk",
                check="--disk",
                got="none",
                hint="name the disk, or leave them out",
            )


def account_for_disk(image: Path, source: Path, options: DiskOptions) -> str | None:
    """Write the disk again and compare; returns its SHA-256, and ``None`` where none was named.

    Raises:
        DataInvalid: Pins or the list of files for GPUs are of another form.
        ImageRefused: A byte differs, or a package is another.
    """
    from sealtrain.base.files import open_regular
    from sealtrain.image.disk.account import verify_disk
    from sealtrain.image.disk.inputs import guest_files, load_gpu_files, read_pinned

    disk, packages = options.disk, options.packages
    if disk is None or packages is None:
        return None
    gpu = None if options.gpu_files is None else load_gpu_files(options.gpu_files)
    with (
        os.fdopen(open_regular(disk), "rb") as file,
        TemporaryDirectory() as folder,
        guest_files(
            image, source, lambda pin: read_pinned(packages, pin), Path(folder), gpu
        ) as files,
    ):
        verify_disk(file, files)
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
