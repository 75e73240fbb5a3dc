"""Make a guest's disk out of an OCI image and pinned packages (spec/guest-image.md).

Usage: ``python tools/images/disk.py LAYOUT --out DISK [--cache FOLDER] [--source FOLDER]``, or
``--verify DISK`` in place of ``--out``: every byte of that disk is accounted for, or it is refused.
``--gpu FOLDER`` adds NVIDIA's modules and firmware (deploy/vm/README.md).

1. Kernel, its modules and systemd-stub are fetched by digest (``deploy/vm/pins.json``).
2. The image's layers are read, every byte against its digest, into a folder that is removed again.
3. The disk is written; beside it lies ``DISK.uki``, the unified kernel image on it.

It needs no root, no Debian and no tool for disks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fetching import debian_file

from sealtrain.base.digests import file_sha256
from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.image.disk.account import verify_disk
from sealtrain.image.disk.guest_disk import GuestFiles, write_guest_disk
from sealtrain.image.disk.inputs import DiskPin, guest_files, load_disk_pins, load_gpu_files
from sealtrain.image.pins import DebianPin

ROOT = Path(__file__).resolve().parents[2]


def fetch(pin: DiskPin, date: str, cache: Path) -> bytes:
    """The bytes of a pinned package, from the cache or Debian's archives."""
    named = DebianPin(**pin.model_dump(), files_sha256="00" * 32)
    return debian_file(named, date, cache).read_bytes()


def write(files: GuestFiles, out: Path) -> None:
    """Write the disk, and its UKI beside it."""
    partial = out.with_name(f".{out.name}.partial")
    with partial.open("w+b") as file:
        uki = write_guest_disk(files, file)
    partial.rename(out)
    out.with_name(f"{out.name}.uki").write_bytes(uki)


def main() -> int:
    """Make one disk, and say its digest."""
    words = argparse.ArgumentParser(description="Make a guest's disk out of an OCI image.")
    words.add_argument("layout", type=Path)
    goal = words.add_mutually_exclusive_group(required=True)
    goal.add_argument("--out", type=Path, help="the disk; not there yet")
    goal.add_argument("--verify", type=Path, metavar="DISK", help="account for this disk")
    words.add_argument("--source", type=Path, default=ROOT, help="source of sealtrain [this one]")
    words.add_argument("--cache", type=Path, default=ROOT / ".images", help="folder for packages")
    words.add_argument("--gpu", type=Path, help="folder with NVIDIA's files and their gpu.json")
    given = words.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    disk: Path = given.verify if given.out is None else given.out
    disk.parent.mkdir(parents=True, exist_ok=True)
    try:
        pins = load_disk_pins(given.source)
        gpu = None if given.gpu is None else load_gpu_files(given.gpu)
        with (
            TemporaryDirectory(dir=disk.parent) as folder,
            guest_files(
                given.layout,
                given.source,
                lambda pin: fetch(pin, pins.debian_date, given.cache),
                Path(folder),
                gpu,
            ) as files,
        ):
            if given.out is not None:
                write(files, disk)
            else:
                with disk.open("rb") as file:
                    verify_disk(file, files)
    except (DataInvalid, ImageRefused) as error:
        print(f"error [{error.code}]: {error.message}: {error.got}", file=sys.stderr)
        return error.exit_code
    print(f"{disk.name}  sha256:{file_sha256(disk)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
