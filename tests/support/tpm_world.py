"""Logs and reports of machines with a TPM, written by hand: what the room of TPM 2.0 reads."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

SEPARATOR, ACTION, IPL, NO_ACTION = 4, 0x80000007, 0xD, 3
ALGORITHMS = {"sha1": 0x0004, "sha256": 0x000B, "sha384": 0x000C}


@dataclass(frozen=True)
class Entry:
    """One event of a boot log; its digests are of ``measured``, else of its data."""

    register: int
    kind: int
    data: bytes
    measured: bytes | None = None

    def digest(self, bank: str) -> bytes:
        """What the register is extended with."""
        return hashlib.new(bank, self.data if self.measured is None else self.measured).digest()


def boot_log(
    entries: Sequence[Entry], banks: Sequence[str] = ("sha1", "sha256", "sha384")
) -> bytes:
    """A log of the crypto-agile form (TCG PC Client Platform Firmware Profile, 10)."""
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(banks))
    for bank in banks:
        spec += struct.pack("<HH", ALGORITHMS[bank], hashlib.new(bank).digest_size)
    spec += b"\0"
    raw = struct.pack("<II20sI", 0, NO_ACTION, bytes(20), len(spec)) + spec
    for entry in entries:
        raw += struct.pack("<III", entry.register, entry.kind, len(banks))
        for bank in banks:
            raw += struct.pack("<H", ALGORITHMS[bank]) + entry.digest(bank)
        raw += struct.pack("<I", len(entry.data)) + entry.data
    return raw


BOOT = (
    Entry(0, 0x8, b"version"),
    *(Entry(index, SEPARATOR, bytes(4)) for index in range(8)),
    Entry(4, ACTION, b"Calling EFI Application from Boot Option"),
    Entry(4, 0x80000003, b"path", b"image"),
    Entry(9, IPL, b"command line"),
)


def hcl_report(kind: str, modulus: int, *, vm_id: str = "SIMULATED", pad: int = 32) -> bytes:
    """An HCL report whose processor's report commits to its runtime data."""
    number = modulus.to_bytes((modulus.bit_length() + 7) // 8, "big")
    key = {"kid": "HCLAkPub", "kty": "RSA", "e": "AQAB", "n": _base64url(number)}
    configuration = {"secure-boot": True, "vmUniqueId": vm_id}
    runtime = json.dumps({"keys": [key], "vm-configuration": configuration}).encode("ascii")
    report = bytearray(1184)
    at = {"snp": 0x50, "tdx": 0x80}[kind]
    report[at : at + 32] = hashlib.sha256(runtime).digest()
    number_of = {"snp": 2, "tdx": 4}[kind]
    size = 20 + len(runtime)
    header = struct.pack("<4sIIII12x", b"HCLA", 1, 32 + 1184 + size, 2, 0)
    data = struct.pack("<5I", size, 1, number_of, 1, len(runtime)) + runtime
    return header + bytes(report) + data + bytes(pad)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
