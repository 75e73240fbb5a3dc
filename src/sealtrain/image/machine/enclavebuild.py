"""An enclave image file (EIF) of a container image, a kernel and its modules (spec/images.md §12).

It is the same for every deployment document: the enclave's init takes the document from the parent
and measures it into PCR 16, so owners pin PCR 0 to 2 once for each image.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sealtrain.base.canonical import canonical_json
from sealtrain.base.version import VERSION
from sealtrain.errors import ImageRefused
from sealtrain.image.layout import Progress, read_image
from sealtrain.image.machine.cpio import CpioWriter
from sealtrain.image.machine.enclavefile import (
    COMMAND_LINE,
    KERNEL,
    METADATA,
    RAMDISK,
    enclave_size,
    write_enclave,
)

if TYPE_CHECKING:
    from sealtrain.image.layer import LayerEntry

KERNEL_WORDS: Final = (
    "reboot=k panic=30 pci=off console=ttyS0 i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd "
    "random.trust_cpu=on quiet"
)
"""AWS's own command line without ``nomodules``; a root or an initrd in it would panic."""
MEMORY_FACTOR: Final = 4
"""nitro-cli starts an enclave only with this many times the bytes of its image."""
FOLDER: Final = "enclave"
"""Where the boot ramdisk keeps what is of the enclave and not of the container image."""
INIT: Final = b"#!/usr/bin/python3.11 -IB\nfrom sealtrain.guest.enclave.init import main\nmain()\n"
_MODULE_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
_MAGIC_AT: Final = 0x202
_MAGIC: Final = b"HdrS"
"""Linux's boot protocol (Documentation/arch/x86/boot.rst)."""
_ELF: Final = b"\x7fELF"
_MOUNTED: Final = ("dev", "proc", "sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveParts:
    """What an EIF is made of.

    Attributes:
        kernel: Bytes of the kernel, a bzImage.
        modules: Name → bytes of the modules that init loads, in this order.
        processors: That ``nitro-cli`` takes where it is told no other number.
        memory_mib: The same of memory; 0 is the least that the image needs.
    """

    kernel: bytes
    modules: Mapping[str, bytes]
    processors: int = 2
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEnclave:
    """An EIF that was written.

    Attributes:
        image: Digest of the container image in it.
        size: Its bytes.
        memory_mib: That an enclave of it gets where ``nitro-cli`` is told nothing else.
    """

    image: str
    size: int
    memory_mib: int


def build_enclave(
    layout: Path, parts: EnclaveParts, into: BinaryIO, *, progress: Progress = lambda _: None
) -> BuiltEnclave:
    """Write the EIF of a container image; the same parts give the same bytes anywhere.

    Args:
        layout: OCI layout of the image, a folder or a tar.
        parts: Kernel, modules and defaults.
        into: A file, open for writing and reading, at its start.
        progress: Called with the number of bytes that were read of layers.

    Raises:
        DataInvalid: There is no OCI layout.
        ImageRefused: The kernel is no bzImage, the image breaks the form of images, it has an entry
            in the place of one of the boot ramdisk, a module is none or has a name that the kernel
            does not know, or the memory is less than the image needs.
    """
    if parts.kernel[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        raise ImageRefused(
            "the kernel is no bzImage",
            check="kernel",
            hint="tools/enclave/kernel.py writes one with its modules",
        )
    with tempfile.TemporaryFile() as application:
        image = _write_application(layout, application, progress)
        boot = boot_ramdisk(parts.modules, image)
        sections: list[tuple[int, BinaryIO]] = [
            (KERNEL, io.BytesIO(parts.kernel)),
            (COMMAND_LINE, io.BytesIO(KERNEL_WORDS.encode("ascii"))),
            (METADATA, io.BytesIO(_metadata(image))),
            (RAMDISK, io.BytesIO(boot)),
            (RAMDISK, application),
        ]
        least = least_memory(enclave_size(sections))
        memory = parts.memory_mib or least
        if memory < least:
            raise ImageRefused(
                "the enclave would have too little memory for its image",
                check="memory",
                got=f"{memory} MiB",
                expected=f"at least {least} MiB, which is {MEMORY_FACTOR} times the image",
                hint="leave --memory-mib out, or name as much",
            )
        written = write_enclave(into, sections, processors=parts.processors, memory=memory << 20)
    return BuiltEnclave(image=image, size=written, memory_mib=memory)


def boot_ramdisk(modules: Mapping[str, bytes], image: str) -> bytes:
    """The first ramdisk: what starts before anything of the container image.

    Args:
        modules: As ``EnclaveParts``.
        image: Digest of the container image, which a document for this enclave must name.

    Raises:
        ImageRefused: A module has a name that the kernel does not know, or is none.
    """
    into = io.BytesIO()
    archive = CpioWriter(into.write)
    for folder in ("dev", FOLDER, f"{FOLDER}/modules", "proc", "sys"):
        archive.folder(folder)
    archive.character_device("dev/console", 0o600, (5, 1))
    archive.file(f"{FOLDER}/image", 0o644, image.encode("ascii") + b"\n")
    archive.file(f"{FOLDER}/order", 0o644, "".join(f"{name}\n" for name in modules).encode())
    for name, data in modules.items():
        if not _MODULE_NAME.fullmatch(name):
            raise ImageRefused(
                "no name of a kernel module",
                check="module",
                got=ascii(name)[:100],
                expected="lower-case letters, digits and underscores",
            )
        if not data.startswith(_ELF):
            raise ImageRefused(
                "no kernel module",
                check="module",
                got=name,
                expected="an ELF file, unpacked",
            )
        archive.file(f"{FOLDER}/modules/{name}.ko", 0o644, data)
    archive.file("init", 0o755, INIT)
    archive.close()
    return into.getvalue()


def least_memory(size: int) -> int:
    """MiB of memory that an enclave of an image of so many bytes needs."""
    return -(-MEMORY_FACTOR * size >> 20)


def _write_application(layout: Path, into: BinaryIO, progress: Progress) -> str:
    """Write the second ramdisk, the files of a container image; return the image's digest."""
    archive = CpioWriter(into.write)
    entries = ImageEntries(archive)
    image = read_image(layout, lambda _: False, into=entries.begin, progress=progress)
    entries.end()
    archive.close()
    return image.digest


class ImageEntries:
    """Hands a container image's entries to an archive as they are read.

    Nothing counts before the image's digests were compared, which is when its last entry was read.
    """

    def __init__(self, archive: CpioWriter) -> None:
        self._archive = archive
        self._open = False

    def begin(self, entry: LayerEntry) -> BinaryIO | None:
        """Begin an entry, and end the one before it."""
        self.end()
        top = entry.name.split("/", 1)[0]
        below = entry.name != top or entry.kind != "folder"
        if top in ("init", FOLDER) or (top in _MOUNTED and below):
            raise ImageRefused(
                "the container image has an entry in the place of one of the boot ramdisk",
                check="ramdisk",
                got=entry.name[:200],
                hint="an image of make images has none",
            )
        if entry.kind == "folder":
            self._archive.folder(entry.name, entry.mode)
        elif entry.kind == "link":
            self._archive.link(entry.name, entry.target)
        else:
            self._archive.begin_file(entry.name, entry.mode, entry.size)
            self._open = True
            return cast("BinaryIO", _Sink(self._archive))
        return None

    def end(self) -> None:
        """End the file that is open, if any."""
        if self._open:
            self._archive.finish()
        self._open = False


class _Sink:
    """What a reader of images writes a file's bytes into."""

    def __init__(self, archive: CpioWriter) -> None:
        self._archive = archive

    def write(self, data: bytes) -> int:
        """Add bytes to the archive."""
        self._archive.add(data)
        return len(data)


def _metadata(image: str) -> bytes:
    """What AWS's tools ask of an EIF; it is in no register, and names nothing that could differ."""
    return canonical_json(
        {
            "ImageName": image,
            "ImageVersion": VERSION,
            "BuildMetadata": {
                "BuildTime": "1970-01-01T00:00:00+00:00",
                "BuildTool": "sealtrain",
                "BuildToolVersion": VERSION,
                "OperatingSystem": "Linux",
                "KernelVersion": "",
            },
            "DockerInfo": {},
            "CustomMetadata": None,
        }
    )
