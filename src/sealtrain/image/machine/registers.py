"""Registers that are only ever extended: RTMRs of TDX, PCRs of a TPM and of Nitro.

A register holds H(old value ‖ digest); it begins with zeros. What is measured comes as a digest of
the register's own hash: SHA-384 for TDX, Nitro and NitroTPM, SHA-256 for the TPMs of other clouds.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterable
from typing import Final, Literal

Algorithm = Literal["sha256", "sha384"]

BOOT_OPTION: Final = b"Calling EFI Application from Boot Option"
SEPARATOR: Final = bytes(4)
EXIT_EVENTS: Final = (b"Exit Boot Services Invocation", b"Exit Boot Services Returned with Success")
"""Texts that UEFI measures (TCG PC Client Platform Firmware Profile 1.06, §8)."""


def digest_of(data: bytes | memoryview, algorithm: Algorithm) -> bytes:
    """The digest of bytes as a register of this algorithm takes it."""
    return hashlib.new(algorithm, data).digest()


def extend(digests: Iterable[bytes], algorithm: Algorithm) -> bytes:
    """The value of a register that began with zeros and was extended by these digests."""
    value = bytes(hashlib.new(algorithm).digest_size)
    for digest in digests:
        value = hashlib.new(algorithm, value + digest).digest()
    return value


def variable_digest(vendor: str, name: str, content: bytes, algorithm: Algorithm) -> bytes:
    """The digest of an event about an UEFI variable (``UEFI_VARIABLE_DATA``).

    Args:
        vendor: GUID of its name space.
        name: Of the variable.
        content: Its bytes; empty where it is not set.
        algorithm: Of the register.
    """
    head = uuid.UUID(vendor).bytes_le + struct.pack("<QQ", len(name), len(content))
    return digest_of(head + name.encode("utf-16-le") + content, algorithm)
