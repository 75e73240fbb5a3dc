"""PCRs of a machine that boots a unified kernel image (UKI) through UEFI and systemd-stub.

UEFI's part is in the *TCG PC Client Platform Firmware Profile Specification*, systemd-stub's in its
manual page and in the *UAPI Group's Linux TPM PCR Registry*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.image.cpio_member import TRAILER, member_head, pad
from sealtrain.image.machine.pe_file import Portable
from sealtrain.image.machine.registers import (
    BOOT_OPTION,
    SEPARATOR,
    Algorithm,
    digest_of,
    extend,
    variable_digest,
)

_GLOBAL: Final = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SECURITY: Final = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
_STUB_ORDER: Final = (
    ".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat",
    ".pcrpkey",
)  # fmt: skip
_LATER: Final = {".ucode", ".uname", ".sbat"}
"""Sections that systemd-stub 252 does not measure, and later ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unified:
    """How a UKI is booted.

    Attributes:
        algorithm: Of the PCRs that are read.
        stub_loads_kernel: systemd-stub loads the kernel through the firmware, which measures it: a
            stub before version 258 without Secure Boot.
        early_stub: The stub is of version 252.
        shows_release: The stub hands its ``.osrel`` to the initrd: from version 257 on.
        command_line: Given by the boot loader and passed on by the stub; ``None`` for the UKI's.
    """

    algorithm: Algorithm
    stub_loads_kernel: bool
    early_stub: bool = False
    shows_release: bool = False
    command_line: str | None = None


def measure_unified(uki: bytes, how: Unified) -> dict[int, str]:
    """PCRs of a UKI with Secure Boot off: number → value, hex.

    PCR 4 is the programs that UEFI loaded, 7 Secure Boot's variables, 9 the command line and the
    initrd as Linux's own stub measures them, 11 the UKI's sections, 12 a command line from outside.

    Raises:
        ImageRefused: Not a UKI.
    """
    algorithm = how.algorithm
    texts = [digest_of(text, algorithm) for text in (BOOT_OPTION, SEPARATOR)]
    return {
        4: extend([*texts, *list_loaded(uki, how)], algorithm).hex(),
        7: secure_boot_off(algorithm),
        9: extend(kernel_events(uki, how), algorithm).hex(),
        11: extend(stub_events(uki, how), algorithm).hex(),
        12: extend(_outside(how), algorithm).hex(),
    }


def list_loaded(uki: bytes, how: Unified) -> list[bytes]:
    """Digests of the programs that the firmware loads: the UKI, and the kernel in it.

    Raises:
        ImageRefused: Not a UKI.
    """
    image = Portable(uki, "the UKI")
    kernel = image.content(".linux")
    if kernel is None:
        raise ImageRefused(
            "the UKI has no section .linux", check="UKI", hint="name a unified kernel image"
        )
    loaded = [image.authenticode(how.algorithm)]
    if how.stub_loads_kernel:
        loaded.append(Portable(bytes(kernel), "the UKI's kernel").authenticode(how.algorithm))
    return loaded


def kernel_events(uki: bytes, how: Unified) -> list[bytes]:
    """Digests of what Linux's own stub measures: its command line, then its initrd.

    Raises:
        ImageRefused: Not a program of UEFI.
    """
    image, algorithm = Portable(uki, "the UKI"), how.algorithm
    initrd = image.content(".initrd")
    own = bytes(image.content(".cmdline") or b"").rstrip(b"\0\n").decode("utf-8", "replace")
    line = own if how.command_line is None else how.command_line
    events = [digest_of(f"{line}\0".encode("utf-16-le"), algorithm)]
    added = _list_handed_over(image, how)
    if initrd is not None or added:
        whole = bytes(initrd or b"")
        events.append(digest_of(pad(whole) + added if added else whole, algorithm))
    return events


def secure_boot_off(algorithm: Algorithm) -> str:
    """PCR 7 of a machine without Secure Boot and without keys, hex."""
    variables: Sequence[tuple[str, str, bytes]] = (
        (_GLOBAL, "SecureBoot", b"\0"),
        (_GLOBAL, "PK", b""),
        (_GLOBAL, "KEK", b""),
        (_SECURITY, "db", b""),
        (_SECURITY, "dbx", b""),
    )
    digests = [variable_digest(*variable, algorithm) for variable in variables]
    return extend([*digests, digest_of(SEPARATOR, algorithm)], algorithm).hex()


def _list_handed_over(image: Portable, how: Unified) -> bytes:
    """Archives that systemd-stub puts behind the initrd, of sections that the initrd may read."""
    names = {".pcrsig": "tpm2-pcr-signature.json", ".pcrpkey": "tpm2-pcr-public-key.pem"}
    if how.shows_release:
        names[".osrel"] = "os-release"
    found = ((name, image.content(section)) for section, name in names.items())
    return b"".join(
        _archive(name, bytes(content)) for name, content in found if content is not None
    )


def _archive(name: str, content: bytes) -> bytes:
    """A cpio archive with one file below ``.extra``, as systemd's ``src/boot/cpio.c`` writes it."""
    entries = ((1, 0o040555, ".extra", b""), (2, 0o100444, f".extra/{name}", content))
    members = [
        member_head(path.encode(), mode, len(data), number=number) + pad(data)
        for number, mode, path, data in entries
    ]
    return b"".join(members) + member_head(TRAILER.encode(), 0, 0, number=0, name_length="B")


def stub_events(uki: bytes, how: Unified) -> list[bytes]:
    """Digests of what systemd-stub measures: name and content of each section.

    Raises:
        ImageRefused: Not a program of UEFI.
    """
    image, digests = Portable(uki, "the UKI"), []
    for name in _STUB_ORDER:
        if how.early_stub and name in _LATER:
            continue
        content = image.content(name)
        if content is not None:
            digests += [digest_of(f"{name}\0".encode(), how.algorithm)]
            digests += [digest_of(content, how.algorithm)]
    return digests


def _outside(how: Unified) -> list[bytes]:
    if how.command_line is None:
        return []
    return [digest_of(f"{how.command_line}\0".encode("utf-16-le"), how.algorithm)]
