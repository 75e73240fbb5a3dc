"""One member of a cpio archive in newc form, as each of our writers of such archives begins it.

The form is Linux's (early-userspace/buffer-format.rst). Writers differ in what is measured of them:
init ramdisks of an enclave and the archives of systemd's stub have lower-case digits, a guest's
initrd has upper-case ones, and systemd's trailer has a name length of its own spelling.
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"070701"
HEADER_BYTES: Final = 110
TRAILER: Final = "TRAILER!!!"


def member_head(
    name: bytes,
    mode: int,
    size: int,
    *,
    number: int,
    links: int = 1,
    device: tuple[int, int] = (0, 0),
    upper: bool = False,
    name_length: str | None = None,
) -> bytes:
    """Header and name of a member, filled to a multiple of four; owner, group and time are 0.

    Args:
        name: Without the zero at its end.
        mode: With its type.
        size: Of the content that follows.
        number: Its inode.
        device: Major and minor number of what it is, where it is a device.
        upper: Whether hex digits are upper case.
        name_length: The digits of the name's length where they are not those of the others.
    """
    digits = b"%08X" if upper else b"%08x"
    fields = (number, mode, 0, 0, links, 0, size, 0, 0, *device)
    length = (
        digits % (len(name) + 1) if name_length is None else name_length.encode().rjust(8, b"0")
    )
    head = MAGIC + b"".join(digits % field for field in fields) + length + b"0" * 8 + name + b"\0"
    return pad(head)


def pad(data: bytes) -> bytes:
    """Bytes filled with zeros to a multiple of four."""
    return data + bytes(-len(data) % 4)
