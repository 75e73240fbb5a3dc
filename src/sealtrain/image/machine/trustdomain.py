"""Registers of a TDX guest that QEMU boots directly: firmware, kernel, command line, initrd.

MRTD is what the TDX module measures of the firmware (*Intel TDX Module Base Specification*,
TDH.MEM.PAGE.ADD and TDH.MR.EXTEND), by the sections that EDK II's TDVF metadata lists. RTMR 1 and 2
are what the firmware measures. RTMR 0 depends on the ACPI tables of one QEMU and one machine: only
a log can tell it.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.pe_file import Portable
from sealtrain.image.machine.registers import (
    BOOT_OPTION,
    EXIT_EVENTS,
    SEPARATOR,
    digest_of,
    extend,
)

_FOOTER: Final = uuid.UUID("96b582de-1fb2-45f7-baea-a366c55a082d").bytes_le
_TDVF: Final = uuid.UUID("e47a6535-984a-4798-865e-4685a7bf8ec2").bytes_le
_FOOTER_BYTES, _ENTRY_BYTES = 32, 18
_SECTION: Final = struct.Struct("<IIQQII")
_MAX_SECTIONS: Final = 64
_MAX_PAGES: Final = 1 << 16
"""Of 4 KiB: firmware has some thousand."""
_PAGE, _CHUNK = 4096, 256
_EXTENDED, _ADDED_LATER = 1, 2
"""Attributes of a section: its content is measured; its pages are added while the guest runs."""

_LEAST_KERNEL: Final = 0x1000
_HIGH_MEMORY: Final = 0xB0000000
_TWO_GIB: Final = 0x80000000
_ACPI_BYTES: Final = 0x28000
_NEWEST_INITRD: Final = 0x37FFFFFF


@dataclass(frozen=True, slots=True)
class FirmwareDigests:
    """Both values that one firmware can have: hosts differ in the order of adding pages.

    Attributes:
        single_pass: Each page is extended as it is added; 96 hex digits.
        two_pass: All pages of a section are added before the first is extended.
    """

    single_pass: str
    two_pass: str


def measure_firmware(firmware: bytes) -> FirmwareDigests:
    """MRTD of a TDX firmware.

    Args:
        firmware: Its bytes, as QEMU loads them with ``-bios``.

    Raises:
        ImageRefused: It has no TDVF metadata, or these name what it does not have.
    """
    sections = list(_sections(firmware))
    return FirmwareDigests(
        single_pass=_mrtd(firmware, sections, two_pass=False),
        two_pass=_mrtd(firmware, sections, two_pass=True),
    )


def rtmr1(kernel: bytes, initrd_bytes: int, memory: int) -> str:
    """RTMR 1 of a direct boot, 96 hex digits.

    Args:
        kernel: The kernel's file (bzImage with an EFI stub).
        initrd_bytes: Size of the initrd.
        memory: Of the guest, bytes.

    Raises:
        ImageRefused: The kernel cannot be loaded this way.
    """
    loaded = Portable(load_as_qemu(kernel, initrd_bytes, memory), "the kernel")
    texts = (BOOT_OPTION, SEPARATOR, *EXIT_EVENTS)
    digests = [loaded.authenticode("sha384"), *(digest_of(text, "sha384") for text in texts)]
    return extend(digests, "sha384").hex()


def rtmr2(command_line: str, initrd: bytes) -> str:
    """RTMR 2 of a direct boot, 96 hex digits.

    Args:
        command_line: As it was given to QEMU; the firmware adds where the initrd is.
    """
    text = f"{command_line} initrd=initrd\0".encode("utf-16-le")
    return extend((digest_of(text, "sha384"), digest_of(initrd, "sha384")), "sha384").hex()


def load_as_qemu(kernel: bytes, initrd_bytes: int, memory: int) -> bytes:
    """The kernel with the fields of its setup header that QEMU fills in (Linux boot protocol).

    Args:
        kernel: The kernel's file.
        initrd_bytes: Size of the initrd; 0 for none.
        memory: Of the guest, bytes.

    Raises:
        ImageRefused: The kernel is older than protocol 2.03, or the initrd has no room.
    """
    if len(kernel) < _LEAST_KERNEL or kernel[0x202:0x206] != b"HdrS":
        raise _refusal("the kernel is no bzImage of Linux", "kernel")
    (protocol,) = struct.unpack_from("<H", kernel, 0x206)
    if protocol < 0x203:
        raise _refusal(f"the kernel's boot protocol is {protocol:#x}, older than 2.03", "kernel")
    changed = bytearray(kernel)
    high = bool(changed[0x211] & 1)
    real, command = (0x10000, 0x20000) if high else (0x90000, 0x9A000)
    changed[0x210] = 0xB0  # type_of_loader: QEMU
    changed[0x211] |= 0x80  # loadflags: the heap may be used
    struct.pack_into("<I", changed, 0x224, command - real - 0x200)
    struct.pack_into("<I", changed, 0x228, command)
    if initrd_bytes:
        place = _place_of_initrd(kernel, protocol, initrd_bytes, memory)
        struct.pack_into("<II", changed, 0x218, place, initrd_bytes)
    return bytes(changed)


def _place_of_initrd(kernel: bytes, protocol: int, size: int, memory: int) -> int:
    (flags,) = struct.unpack_from("<H", kernel, 0x236)
    (stated,) = struct.unpack_from("<I", kernel, 0x22C)
    if protocol >= 0x20C and flags & 0x40:
        most = 0xFFFFFFFF
    else:
        most = stated if protocol < 0x20C and stated else _NEWEST_INITRD
    low = _HIGH_MEMORY if memory < _HIGH_MEMORY else _TWO_GIB
    room = min(memory, low) - _ACPI_BYTES
    most = min(most, room - 1)
    if size >= most:
        raise _refusal(f"an initrd of {size} bytes has no room in {memory} bytes", "initrd")
    return (most - size) & ~(_PAGE - 1)


def _sections(firmware: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    at = _metadata(firmware)
    if at + 16 > len(firmware):
        raise _refusal("the firmware ends before its TDVF metadata", "firmware")
    signature, _, version, count = struct.unpack_from("<4sIII", firmware, at)
    if signature != b"TDVF" or version != 1 or count > _MAX_SECTIONS:
        raise _refusal("the firmware's TDVF metadata are not of version 1", "firmware")
    if at + 16 + count * _SECTION.size > len(firmware):
        raise _refusal("the firmware ends within its TDVF metadata", "firmware")
    pages = 0
    for number in range(count):
        found = _SECTION.unpack_from(firmware, at + 16 + number * _SECTION.size)
        offset, _, _, size, _, attributes = found
        pages += size // _PAGE
        if size % _PAGE or pages > _MAX_PAGES:
            raise _refusal("the firmware's TDVF metadata name too much memory", "firmware")
        if attributes & _EXTENDED and offset + size > len(firmware):
            raise _refusal("the firmware ends within a measured section", "firmware")
        yield found


def _metadata(firmware: bytes) -> int:
    """Where the TDVF metadata begin, by the table of GUIDs at the firmware's end."""
    end = len(firmware) - _FOOTER_BYTES
    if end < _ENTRY_BYTES or firmware[end - 16 : end] != _FOOTER:
        raise _refusal("the firmware has no table of OVMF's", "firmware")
    (length,) = struct.unpack_from("<H", firmware, end - _ENTRY_BYTES)
    first, at = end - length, end - _ENTRY_BYTES
    if first < 0:
        raise _refusal("the firmware is shorter than its own table", "firmware")
    while at - _ENTRY_BYTES >= first:
        (size,) = struct.unpack_from("<H", firmware, at - _ENTRY_BYTES)
        if size < _ENTRY_BYTES or at - size < first:
            break
        if firmware[at - 16 : at] == _TDVF and size >= _ENTRY_BYTES + 4:
            before: int = struct.unpack_from("<I", firmware, at - _ENTRY_BYTES - 4)[0]
            if 0 < before <= len(firmware):
                return len(firmware) - before
        at -= size
    raise _refusal("the firmware is not for TDX: it lists no TDVF metadata", "firmware")


def _mrtd(
    firmware: bytes, sections: list[tuple[int, int, int, int, int, int]], *, two_pass: bool
) -> str:
    found = hashlib.sha384()

    def add(address: int) -> None:
        found.update(struct.pack("<16sQ104x", b"MEM.PAGE.ADD", address))

    def extend(offset: int, address: int) -> None:
        for at in range(0, _PAGE, _CHUNK):
            found.update(struct.pack("<16sQ104x", b"MR.EXTEND", address + at))
            found.update(firmware[offset + at : offset + at + _CHUNK])

    for offset, _, address, size, _, attributes in sections:
        measured = bool(attributes & _EXTENDED)
        for at in range(0, size, _PAGE):
            if not attributes & _ADDED_LATER:
                add(address + at)
            if measured and not two_pass:
                extend(offset + at, address + at)
        if measured and two_pass:
            for at in range(0, size, _PAGE):
                extend(offset + at, address + at)
    return found.hexdigest()


def _refusal(problem: str, check: str) -> ImageRefused:
    return ImageRefused(problem, check=check, hint="name the files that the machine boots")
