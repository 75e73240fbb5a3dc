"""Make a guest's disk out of an OCI image and pinned packages (spec/guest-image.md).

Usage: ``python tools/images/disk.py LAYOUT --out DISK [--cache FOLDER] [--source FOLDER]``, or
``--verify DISK`` in place of ``--out``: every byte of that disk is accounted for, or it is refused.

1. Kernel, its modules and systemd-stub are fetched by digest (``deploy/vm/pins.json``).
2. The image's layers are read, every byte against its digest, into a folder that is removed again.
3. The disk is written; beside it lies ``DISK.uki``, the unified kernel image on it.

It needs no root, no Debian and no tool for disks.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from fetching import debian_file
from packed import Content, read_debian

from sealtrain.base.digests import file_sha256
from sealtrain.errors import ImageRefused
from sealtrain.image.disk.account import verify_disk
from sealtrain.image.disk.guest_disk import GuestFiles, write_guest_disk
from sealtrain.image.layer import LayerEntry
from sealtrain.image.layout import describe_image
from sealtrain.image.pins import DebianPin
from sealtrain.image.unpack import unpacked

ROOT = Path(__file__).resolve().parents[2]
STUB = "usr/lib/systemd/boot/efi/linuxx64.efi.stub"


def packages(source: Path, cache: Path) -> dict[str, Content]:
    """The pinned packages, by what they are for."""
    pins = json.loads((source / "deploy/vm/pins.json").read_bytes())
    found = {}
    for name in ("kernel", "modules", "stub"):
        pin = DebianPin(**pins[name], files_sha256="00" * 32)
        found[name] = read_debian(debian_file(pin, pins["debian_date"], cache)).content
    return found


def guest_files(layout: Path, source: Path, cache: Path, folder: Path) -> GuestFiles:
    """Everything that a disk of this image is made of; the image is unpacked into a folder."""
    from_debian = packages(source, cache)
    kernel = next(name for name in from_debian["kernel"] if name.rpartition("/")[2] == "vmlinuz")
    root, _ = unpacked(layout, describe_image(layout).digest, folder / "image")
    return GuestFiles(
        entries=entries_of(root),
        open_file=lambda entry: (root / entry.name).open("rb"),
        kernel=content(from_debian["kernel"], kernel),
        release=kernel.split("/")[-2],
        modules=modules_of(from_debian["modules"]),
        stub=content(from_debian["stub"], STUB),
        source=source / "src/sealtrain",
    )


def content(package: Content, name: str) -> bytes:
    """A file of a package."""
    with package[name][1]() as file:
        return file.read()


def modules_of(package: Content) -> Callable[[str], bytes | None]:
    """A kernel's module by its name, unpacked; ``None`` where the kernel has none."""
    there = {
        name.rpartition("/")[2].split(".")[0].replace("-", "_"): name
        for name in package
        if "/kernel/" in name and ".ko" in name
    }

    def module(name: str) -> bytes | None:
        if name not in there:
            return None
        data = content(package, there[name])
        return lzma.decompress(data) if there[name].endswith(".xz") else data

    return module


def entries_of(root: Path) -> dict[str, LayerEntry]:
    """What was unpacked of an image: its digests held, so folders and files are the image's."""
    found = {}
    for path in sorted(root.rglob("*")):
        name, status = str(path.relative_to(root)), path.lstat()
        mode = status.st_mode & 0o7777
        if path.is_symlink():
            entry = LayerEntry(name=name, kind="link", mode=0o777, target=str(path.readlink()))
        elif path.is_dir():
            entry = LayerEntry(name=name, kind="folder", mode=mode)
        else:
            entry = LayerEntry(name=name, kind="file", mode=mode, size=status.st_size)
        found[name] = entry
    return found


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
    given = words.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    disk: Path = given.verify if given.out is None else given.out
    disk.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=disk.parent) as folder:
        files = guest_files(given.layout, given.source, given.cache, Path(folder))
        if given.out is not None:
            write(files, disk)
        else:
            try:
                with disk.open("rb") as file:
                    verify_disk(file, files)
            except ImageRefused as error:
                print(f"error [{error.code}]: {error.message}: {error.got}", file=sys.stderr)
                return error.exit_code
    print(f"{disk.name}  sha256:{file_sha256(disk)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
