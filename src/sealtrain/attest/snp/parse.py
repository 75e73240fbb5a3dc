"""Attestation reports of SEV-SNP guests, versions 2 to 6: strictly parsed, not trusted.

A report is exactly 1184 bytes: 672 that the signature covers, then the signature as two little-
endian numbers of 72 bytes each, then zeros. The zeros are not signed, so anything else there is
refused: a report has one encoding, but for the second one that every ECDSA signature has. Hence the
identity of a report is the SHA-256 of what is signed, never of the whole.

Integers are little-endian. Reserved bytes inside the signed part are the firmware's business.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from sealtrain.attest.errors import QuoteInvalid
from sealtrain.base.digests import sha256_hex

REPORT_BYTES = 1184
SIGNED_BYTES = 0x2A0
_SIGNATURE_END = SIGNED_BYTES + 2 * 72
_OLDEST, _NEWEST = 2, 6
_WITH_PROCESSOR, _WITH_MITIGATIONS, _WITH_EXTENDED_TCB = 3, 5, 6
_EXTENDED_TCB_BYTES = 32
_ECDSA_P384_SHA384 = 1
_MAX_VMPL = 3

Product = Literal["Milan", "Genoa", "Turin"]
"""AMD's name for the root a processor belongs to; Bergamo and Siena belong to Genoa."""

PlatformFlag = Literal[
    "smt",
    "tsme",
    "ecc",
    "rapl_disabled",
    "ciphertext_hiding",
    "alias_check_complete",
    "tio",
]
"""How a platform is set up, in AMD's words: threads, encryption of all memory, error correction, no
power figures, hidden ciphertext, no aliased memory (CVE-2024-21944), trusted devices."""

_PLATFORM_BITS: dict[PlatformFlag, int] = {
    "smt": 0,
    "tsme": 1,
    "ecc": 2,
    "rapl_disabled": 3,
    "ciphertext_hiding": 4,
    "alias_check_complete": 5,
    "tio": 7,
}

SigningKey = Literal["vcek", "vlek"]
"""``vcek`` is of one chip; ``vlek`` is lent to a cloud and shared by its machines."""

_SIGNING_KEYS: dict[int, SigningKey] = {0: "vcek", 1: "vlek"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcb:
    """Security versions of one platform's firmware; ``fmc`` exists from Turin on."""

    bootloader: int
    tee: int
    snp: int
    microcode: int
    fmc: int | None = None

    def __str__(self) -> str:
        """``bootloader 10, tee 0, snp 23, microcode 84``."""
        return ", ".join(f"{name} {value}" for name, value in self.parts().items())

    def parts(self) -> dict[str, int]:
        """Components by name, those that the product has."""
        found = {
            "bootloader": self.bootloader,
            "tee": self.tee,
            "snp": self.snp,
            "microcode": self.microcode,
        }
        return found if self.fmc is None else {"fmc": self.fmc, **found}

    def below(self, floor: Tcb) -> tuple[str, ...]:
        """Names of the components that are lower than ``floor``'s; one without the other is."""
        ours, theirs = self.parts(), floor.parts()
        return tuple(
            name
            for name in sorted({*ours, *theirs})
            if name not in ours or name not in theirs or ours[name] < theirs[name]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReport:
    """Fields of a parsed report. Digests and identifiers are lower-case hex.

    The four TCB fields stay as their 8 bytes here: what they mean depends on the product, which
    the certificate proves; ``tcb_of`` reads them.
    """

    raw: bytes
    identity: str
    version: int
    guest_svn: int
    policy: int
    family_id: str
    image_id: str
    vmpl: int
    platform_info: int
    author_key_enabled: bool
    chip_key_masked: bool
    signing_key: SigningKey
    report_data: bytes
    measurement: str
    host_data: bytes
    id_key_digest: str
    author_key_digest: str
    report_id: str
    report_id_ma: str
    current_tcb: bytes
    reported_tcb: bytes
    committed_tcb: bytes
    launch_tcb: bytes
    cpuid: tuple[int, int, int] | None
    """Family, model, stepping; from version 3 on."""
    chip_id: str
    current_firmware: str
    committed_firmware: str
    launch_mitigations: int | None
    """Bits whose meaning is the product's; from version 5 on."""
    current_mitigations: int | None
    extended_tcb: tuple[str, str, str] | None
    """Current, launch, committed: 32 bytes each, parts by the product; from version 6 on."""
    r: int
    s: int

    @property
    def debug(self) -> bool:
        """Whether the host may read the guest's memory."""
        return bool(self.policy >> 19 & 1)

    @property
    def migratable(self) -> bool:
        """Whether a migration agent may, or does, move this guest."""
        return bool(self.policy >> 18 & 1) or self.report_id_ma.strip("f") != ""

    @property
    def smt_allowed(self) -> bool:
        """Whether the guest accepts that another party uses a core's other thread."""
        return bool(self.policy >> 16 & 1)

    @property
    def platform_flags(self) -> tuple[PlatformFlag, ...]:
        """How the platform is set up; bits that this release does not know are left out."""
        return tuple(flag for flag, bit in _PLATFORM_BITS.items() if self.platform_info >> bit & 1)

    @property
    def chip_id_masked(self) -> bool:
        """Whether the platform's owner hides which chip it is."""
        return self.chip_id.strip("0") == ""

    @property
    def signed(self) -> bytes:
        """The bytes that the signature covers."""
        return self.raw[:SIGNED_BYTES]

    @property
    def product(self) -> Product | None:
        """Product by the processor's own numbers; ``None`` in version 2 and for unknown ones."""
        if self.cpuid is None:
            return None
        family, model = self.cpuid[0], self.cpuid[1]
        if family == 0x19 and model <= 0x0F:
            return "Milan"
        if family == 0x19 and (0x10 <= model <= 0x1F or 0xA0 <= model <= 0xAF):
            return "Genoa"
        if family == 0x1A and model <= 0x1F:
            return "Turin"
        return None


def parse_report(raw: bytes) -> SnpReport:
    """Parse the one encoding of a report.

    Args:
        raw: The whole report.

    Raises:
        QuoteInvalid: Another length, version or signature algorithm, no signing key, a host's own
            report, or bytes after the signature.
    """
    if len(raw) != REPORT_BYTES:
        raise _wrong("report has the wrong length", len(raw), REPORT_BYTES)
    raw = bytes(raw)
    version, guest_svn, policy = struct.unpack_from("<IIQ", raw, 0)
    if not _OLDEST <= version <= _NEWEST:
        raise _wrong("report has an unsupported version", version, f"{_OLDEST} to {_NEWEST}")
    vmpl, algorithm = struct.unpack_from("<II", raw, 0x30)
    platform_info, key_info = struct.unpack_from("<QI", raw, 0x40)
    if algorithm != _ECDSA_P384_SHA384:
        raise _wrong("report is signed by an unsupported algorithm", algorithm, 1)
    signing_key = _SIGNING_KEYS.get(key_info >> 2 & 7)
    if signing_key is None:
        raise _wrong("report is signed by no key of AMD", key_info >> 2 & 7, "0 or 1")
    if vmpl > _MAX_VMPL:
        # Firmware marks a report that the host asked for with all bits set.
        raise _wrong("report was not requested by a guest", f"VMPL {vmpl:#x}", "VMPL 0 to 3")
    if not policy >> 17 & 1:
        raise _wrong("guest policy has the reserved bit 17 cleared", f"{policy:#x}", "bit 17")
    if any(raw[_SIGNATURE_END:]):
        raise _wrong("bytes follow the signature of the report", "not zero", "zeros")
    return SnpReport(
        raw=raw,
        identity=sha256_hex(raw[:SIGNED_BYTES]),
        version=version,
        guest_svn=guest_svn,
        policy=policy,
        family_id=raw[0x10:0x20].hex(),
        image_id=raw[0x20:0x30].hex(),
        vmpl=vmpl,
        platform_info=platform_info,
        author_key_enabled=bool(key_info & 1),
        chip_key_masked=bool(key_info & 2),
        signing_key=signing_key,
        report_data=raw[0x50:0x90],
        measurement=raw[0x90:0xC0].hex(),
        host_data=raw[0xC0:0xE0],
        id_key_digest=raw[0xE0:0x110].hex(),
        author_key_digest=raw[0x110:0x140].hex(),
        report_id=raw[0x140:0x160].hex(),
        report_id_ma=raw[0x160:0x180].hex(),
        current_tcb=raw[0x38:0x40],
        reported_tcb=raw[0x180:0x188],
        committed_tcb=raw[0x1E0:0x1E8],
        launch_tcb=raw[0x1F0:0x1F8],
        cpuid=(raw[0x188], raw[0x189], raw[0x18A]) if version >= _WITH_PROCESSOR else None,
        chip_id=raw[0x1A0:0x1E0].hex(),
        current_firmware=_firmware(raw, 0x1E8),
        committed_firmware=_firmware(raw, 0x1EC),
        launch_mitigations=_mitigations(raw, 0x1F8, version),
        current_mitigations=_mitigations(raw, 0x200, version),
        extended_tcb=_parse_extended_tcb(raw, version),
        r=int.from_bytes(raw[SIGNED_BYTES : SIGNED_BYTES + 72], "little"),
        s=int.from_bytes(raw[SIGNED_BYTES + 72 : _SIGNATURE_END], "little"),
    )


def tcb_of(field: bytes, product: Product) -> Tcb:
    """Read a TCB field of 8 bytes as ``product`` writes it."""
    if product == "Turin":
        return Tcb(
            fmc=field[0], bootloader=field[1], tee=field[2], snp=field[3], microcode=field[7]
        )
    return Tcb(bootloader=field[0], tee=field[1], snp=field[6], microcode=field[7])


def _firmware(raw: bytes, at: int) -> str:
    build, minor, major = raw[at], raw[at + 1], raw[at + 2]
    return f"{major}.{minor}.{build}"


def _mitigations(raw: bytes, at: int, version: int) -> int | None:
    if version < _WITH_MITIGATIONS:
        return None
    return int.from_bytes(raw[at : at + 8], "little")


def _parse_extended_tcb(raw: bytes, version: int) -> tuple[str, str, str] | None:
    if version < _WITH_EXTENDED_TCB:
        return None
    current, launch, committed = (
        raw[at : at + _EXTENDED_TCB_BYTES].hex() for at in (0x220, 0x240, 0x260)
    )
    return current, launch, committed


def _wrong(message: str, got: object, expected: object) -> QuoteInvalid:
    return QuoteInvalid(message, check="report structure", got=got, expected=expected)
