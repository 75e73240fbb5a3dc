"""What a guest's disk is made of: an OCI image, pinned packages, and what GPUs need beside them.

``deploy/vm/pins.json`` of the source names kernel, modules and systemd-stub by digest. A disk for
GPUs has a folder more, whose ``gpu.json`` names each of its files by digest.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import read_regular
from sealtrain.base.models import Hex64, StrictModel, load_json
from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.image.disk.debian_package import find_modules, one_file, read_package
from sealtrain.image.disk.guest_disk import GuestFiles
from sealtrain.image.layer import LayerEntry
from sealtrain.image.layout import describe_image
from sealtrain.image.pins import DebianVersion
from sealtrain.image.unpack import unpack_image

DISK_PINS: Final = "deploy/vm/pins.json"
GPU_LIST: Final = "gpu.json"
_MAX_LIST_BYTES: Final = 1 << 20
_MAX_FILE_BYTES: Final = 512 << 20
_STUB: Final = "linuxx64.efi.stub"
_FIRMWARE: Final = "lib/firmware/"

ModuleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}\.ko$")]
FirmwareName = Annotated[
    str,
    StringConstraints(pattern=r"^nvidia/[0-9]{3}(\.[0-9]{1,3}){1,2}/[a-z][a-z0-9_]{0,63}\.bin$"),
]


class DiskPin(StrictModel):
    """A package: its version, its path in Debian's archive, the digest of its file."""

    version: DebianVersion
    path: Annotated[str, StringConstraints(pattern=r"^pool/[A-Za-z0-9/+._~-]{1,300}\.deb$")]
    sha256: Hex64


class DiskPins(StrictModel):
    """``deploy/vm/pins.json``."""

    version: Literal[1]
    debian_date: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
    kernel: DiskPin
    modules: DiskPin
    stub: DiskPin


class GpuList(StrictModel):
    """``gpu.json``: NVIDIA's files, each with its digest.

    Attributes:
        version: Of this form.
        driver: Version of the driver that all of them are of.
        kernel: Release of the kernel that the modules were built for.
        modules: In the order in which they are loaded.
        firmware: Of the GPU's system processor, below ``lib/firmware``.
    """

    version: Literal[1]
    driver: Annotated[str, StringConstraints(pattern=r"^[0-9]{3}(\.[0-9]{1,3}){1,2}$")]
    kernel: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+~-]{0,63}$")]
    modules: Annotated[dict[ModuleName, Hex64], Field(min_length=1, max_length=8)]
    firmware: Annotated[dict[FirmwareName, Hex64], Field(min_length=1, max_length=16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFiles:
    """NVIDIA's files, each of its digest; empty for a disk without GPUs.

    Attributes:
        modules: Name without ``.ko`` → bytes, in their order.
        firmware: Path below ``lib/firmware`` → bytes.
        kernel: Release of the kernel that the modules are for; ``None`` without modules.
    """

    modules: Mapping[str, bytes] = field(default_factory=dict)
    firmware: Mapping[str, bytes] = field(default_factory=dict)
    kernel: str | None = None


def load_disk_pins(source: Path) -> DiskPins:
    """The pins of the source.

    Raises:
        DataInvalid: There are none, or they are of another form.
    """
    data = read_regular(source / DISK_PINS, _MAX_LIST_BYTES)
    return load_json(DiskPins, data, DataInvalid, DISK_PINS, max_bytes=_MAX_LIST_BYTES)


def read_pinned(folder: Path, pin: DiskPin) -> bytes:
    """A package of a folder, by its name in Debian's archive or by its digest.

    Raises:
        ImageRefused: The folder does not have it, or its file is another.
    """
    names = (f"{pin.sha256}.deb", pin.path.rpartition("/")[2])
    there = next((folder / name for name in names if (folder / name).is_file()), None)
    if there is None:
        raise ImageRefused(
            "a package of the disk is not there",
            check="Debian package",
            got="none",
            expected=names[1],
            hint="download it from Debian's archive into the folder of packages",
        )
    data = read_regular(there, _MAX_FILE_BYTES)
    if (found := sha256_hex(data)) != pin.sha256:
        raise ImageRefused(
            "a package of the disk is another than the pins name",
            check=names[1],
            got=found,
            expected=pin.sha256,
        )
    return data


def load_gpu_files(folder: Path) -> GpuFiles:
    """NVIDIA's files of a folder, as its list names them.

    Raises:
        DataInvalid: There is no list, or it is of another form: a file without a digest, or a name
            that no such file has.
        ImageRefused: A file is missing, is another than the list says, or is not in the list.
    """
    text = read_regular(folder / GPU_LIST, _MAX_LIST_BYTES)
    listed = load_json(GpuList, text, DataInvalid, GPU_LIST, max_bytes=_MAX_LIST_BYTES)
    named = {**listed.modules, **listed.firmware}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if there != {GPU_LIST, *named}:
        odd = sorted(there ^ {GPU_LIST, *named})
        raise ImageRefused(
            "files for GPUs are others than their list names",
            check=GPU_LIST,
            got=", ".join(odd)[:200],
            expected="each file of the list, and no other",
        )
    found = {name: _read_gpu_file(folder / name, name, digest) for name, digest in named.items()}
    return GpuFiles(
        modules={name.removesuffix(".ko"): found[name] for name in listed.modules},
        firmware={name: found[name] for name in listed.firmware},
        kernel=listed.kernel,
    )


def _read_gpu_file(path: Path, name: str, digest: str) -> bytes:
    data = read_regular(path, _MAX_FILE_BYTES)
    if (found := sha256_hex(data)) != digest:
        raise ImageRefused(
            "a file for GPUs is another than its list names", check=name, got=found, expected=digest
        )
    return data


@contextmanager
def guest_files(
    layout: Path,
    source: Path,
    package: Callable[[DiskPin], bytes],
    folder: Path,
    gpu: GpuFiles | None = None,
) -> Iterator[GuestFiles]:
    """Everything that a disk of an image is made of, until the block ends.

    Args:
        layout: OCI layout of the image.
        source: Of sealtrain.
        package: Gives the bytes of a package with the pinned digest.
        folder: Empty; the image is unpacked into it.
        gpu: NVIDIA's files; none where it is ``None``.

    Raises:
        DataInvalid: There is no OCI layout, or there are no pins.
        ImageRefused: Image or packages are of another form, or the modules for GPUs are for another
            kernel.
    """
    pins, gpu = load_disk_pins(source), gpu or GpuFiles()
    kernel_path, kernel = one_file(read_package(package(pins.kernel)), "vmlinuz")
    release = kernel_path.split("/")[-2]
    if gpu.kernel is not None and gpu.kernel != release:
        raise ImageRefused(
            "the modules for GPUs are for another kernel",
            check=GPU_LIST,
            got=gpu.kernel,
            expected=release,
        )
    module = find_modules(read_package(package(pins.modules)))
    _, stub = one_file(read_package(package(pins.stub)), _STUB)
    root, _ = unpack_image(layout, describe_image(layout).digest, folder / "image")
    yield GuestFiles(
        entries=_with_firmware(entries_of(root), gpu.firmware),
        open_file=lambda entry: (
            io.BytesIO(gpu.firmware[entry.name.removeprefix(_FIRMWARE)])
            if entry.name.removeprefix(_FIRMWARE) in gpu.firmware
            else (root / entry.name).open("rb")
        ),
        kernel=kernel,
        release=release,
        modules=lambda name: gpu.modules.get(name) or module(name),
        further=tuple(gpu.modules),
        stub=stub,
        source=source / "src/sealtrain",
    )


def _with_firmware(
    entries: dict[str, LayerEntry], firmware: Mapping[str, bytes]
) -> dict[str, LayerEntry]:
    """A root's entries with firmware beside them, which replaces nothing.

    Raises:
        ImageRefused: The image has firmware of its own, or leads elsewhere where it would lie.
    """
    added = _firmware_entries(firmware)
    for name, entry in added.items():
        there = entries.get(name)
        if there is not None and (entry.kind, there.kind) != ("folder", "folder"):
            raise ImageRefused("the image has firmware of its own", check="firmware", got=name)
    return {**added, **entries}


def _firmware_entries(firmware: Mapping[str, bytes]) -> dict[str, LayerEntry]:
    """Files and the folders above them, as a root has them."""
    found: dict[str, LayerEntry] = {}
    for name, data in firmware.items():
        place = f"{_FIRMWARE}{name}"
        parts = place.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            found[above] = LayerEntry(name=above, kind="folder", mode=0o755)
        found[place] = LayerEntry(
            name=place, kind="file", mode=0o644, size=len(data), sha256=sha256_hex(data)
        )
    return found


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
