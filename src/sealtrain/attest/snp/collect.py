"""Evidence from inside a SEV-SNP guest: the report, and its certificates up to AMD's root.

The firmware has two interfaces: Linux's configfs-tsm (6.7 and newer) and, before it, the ioctl of
``/dev/sev-guest``. Either brings what certificates the host chose to hand out, which may be all
three, the leaf alone, or none. AMD's key distribution service has them all; fetching is not done
here, a refusal names the addresses.

A host hands certificates out in the table of the GHCB specification: 24 bytes an entry, a GUID as
it is written, offset and length (little-endian) of what it names; an entry of zeros ends it. The
host writes it, so it is parsed like anything hostile.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from cryptography import x509

from sealtrain.attest.errors import (
    CollateralUnreachable,
    EvidenceMalformed,
    GuestApiUnreachable,
    RevocationUnknown,
)
from sealtrain.attest.roots import certificates_of_pem
from sealtrain.attest.snp.chain import common_name, load_certificate
from sealtrain.attest.snp.parse import REPORT_BYTES, SnpReport, parse_report, tcb_of
from sealtrain.attest.snp.revocation import crl_der
from sealtrain.attest.tsm import Folders, tsm_report
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid, UsageError

_MAX_CERTIFICATES = 16
_MAX_CERTIFICATE_BYTES = 64 << 10
_CRL = "amd.crl"

Ioctl = Callable[[int, int, ctypes.Structure], object]
"""``fcntl.ioctl`` on a structure the driver fills; an argument so that tests need no driver."""

_GET_EXTENDED_REPORT = 0xC020_5302
"""``_IOWR('S', 2, struct snp_guest_request_ioctl)`` of linux/sev-guest.h."""
_RESPONSE_BYTES = 4000
_RESPONSE_HEADER_BYTES = 32
_CERTIFICATES_BYTES = 16 << 10
SERVICE = "https://kdsintf.amd.com"
"""AMD's key distribution service."""


class _ReportRequest(ctypes.Structure):
    """``struct snp_ext_report_req``."""

    _fields_ = (
        ("user_data", ctypes.c_uint8 * 64),
        ("vmpl", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 28),
        ("certs_address", ctypes.c_uint64),
        ("certs_len", ctypes.c_uint32),
    )


class _GuestRequest(ctypes.Structure):
    """``struct snp_guest_request_ioctl``."""

    _fields_ = (
        ("msg_version", ctypes.c_uint8),
        ("req_data", ctypes.c_uint64),
        ("resp_data", ctypes.c_uint64),
        ("exitinfo2", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a guest can show. Nothing in it is verified.

    Attributes:
        report: 1184 bytes.
        certificates: DER: leaf, issuer, root.
        crl: AMD's revocation list (DER), where the host hands one out.
    """

    report: bytes
    certificates: tuple[bytes, bytes, bytes]
    crl: bytes | None


def collect(
    device: Path,
    report_data: bytes,
    *,
    certificates: tuple[bytes, ...] = (),
    folders: Folders | None = None,
    ioctl: Ioctl = fcntl.ioctl,
) -> Collected:
    """A report over 64 bytes with what belongs to it.

    Args:
        device: The folder of configfs-tsm, or the character device of the older driver.
        report_data: What the report commits to.
        certificates: Certificates (DER) the guest has at hand, used where the host gives none.
        folders: How to touch the folder.
        ioctl: How to speak to the older driver.

    Raises:
        GuestApiUnreachable: No such device, another TEE, or the firmware does not answer.
        EvidenceMalformed: The answer is no report over this data, or no certificates.
        CollateralUnreachable: A certificate is missing.
    """
    if device.is_dir():
        answer = tsm_report(report_data, provider="sev_guest", base=device, folders=folders)
        raw, table = answer.outblob, answer.auxblob
    else:
        raw, table = _read_extended_report(device, report_data, ioctl)
    report = parse_report(raw[:REPORT_BYTES])
    if any(raw[REPORT_BYTES:]) or report.report_data != report_data:
        raise EvidenceMalformed(
            "the firmware answered with a report over something else", check="TEE device"
        )
    found = parse_table(table)
    return Collected(
        report=report.raw,
        certificates=order_chain(report, found, certificates),
        crl=None if "crl" not in found else crl_der(found["crl"]),
    )


def distribution_addresses(report: SnpReport) -> tuple[str, str] | None:
    """Where AMD publishes a report's VCEK and its issuers; ``None`` where the report hides it.

    Not of a VLEK, which only its cloud has, nor of version 2, which does not name its product.
    """
    product = report.product
    if report.signing_key != "vcek" or report.chip_id_masked or product is None:
        return None
    tcb = tcb_of(report.reported_tcb, product)
    levels = [("bl", tcb.bootloader), ("tee", tcb.tee), ("snp", tcb.snp), ("ucode", tcb.microcode)]
    if tcb.fmc is not None:
        levels.insert(0, ("fmc", tcb.fmc))
    chip = report.chip_id[:16] if product == "Turin" else report.chip_id
    query = "&".join(f"{name}SPL={level:02}" for name, level in levels)
    base = f"{SERVICE}/vcek/v1/{product}"
    return f"{base}/{chip}?{query}", f"{base}/cert_chain"


def _read_extended_report(device: Path, report_data: bytes, ioctl: Ioctl) -> tuple[bytes, bytes]:
    if len(report_data) != 64:
        raise EvidenceMalformed(
            "report data has the wrong length", got=len(report_data), expected=64
        )
    # The driver writes whole pages of certificates; a mapping begins at one. It goes with the array
    # that points into it.
    certificates = (ctypes.c_uint8 * _CERTIFICATES_BYTES).from_buffer(
        mmap.mmap(-1, _CERTIFICATES_BYTES)
    )
    response = (ctypes.c_uint8 * _RESPONSE_BYTES)()
    request = _ReportRequest(
        user_data=(ctypes.c_uint8 * 64)(*report_data),
        certs_address=ctypes.addressof(certificates),
        certs_len=_CERTIFICATES_BYTES,
    )
    call = _GuestRequest(
        msg_version=1, req_data=ctypes.addressof(request), resp_data=ctypes.addressof(response)
    )
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            ioctl(descriptor, _GET_EXTENDED_REPORT, call)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GuestApiUnreachable(
            f"no attestation report from {device}",
            check="TEE device",
            got=f"{error.strerror}, firmware and host said {call.exitinfo2:#x}",
            hint="run this as root inside a SEV-SNP guest with the sev-guest driver",
        ) from error
    answer = bytes(response)
    status, size = (int.from_bytes(answer[at : at + 4], "little") for at in (0, 4))
    if status != 0 or size != REPORT_BYTES:
        raise GuestApiUnreachable(
            "the firmware made no report",
            check="TEE device",
            got=f"status {status:#x}, {size} bytes",
            expected=f"status 0, {REPORT_BYTES} bytes",
        )
    report = answer[_RESPONSE_HEADER_BYTES : _RESPONSE_HEADER_BYTES + REPORT_BYTES]
    return report, bytes(certificates)


def order_chain(
    report: SnpReport, table: dict[str, bytes], more: tuple[bytes, ...]
) -> tuple[bytes, bytes, bytes]:
    """Leaf by its kind, issuer and root by their names; whether they fit is verified elsewhere.

    Args:
        report: Names the kind of its leaf.
        table: As ``parse_table`` gives it.
        more: Further certificates, DER or PEM.

    Raises:
        CollateralUnreachable: One of the three is missing.
        EvidenceMalformed: A certificate cannot be read.
    """
    leaves = [table[report.signing_key]] if report.signing_key in table else []
    known = [*leaves, *(table[name] for name in ("ask", "ark") if name in table), *more]
    found = [(der, load_certificate(der)) for der in map(_der, known)]
    leaf = next((pair for pair in found if _is_leaf(pair[1], report)), None)
    if leaf is None:
        raise _missing(report, "the report's own certificate")
    chain = [leaf]
    for what in ("the issuer's certificate (ASK or ASVK)", "the root certificate (ARK)"):
        above = chain[-1][1].issuer
        issuer = next((pair for pair in found if pair[1].subject == above), None)
        if issuer is None:
            raise _missing(report, what)
        chain.append(issuer)
    return chain[0][0], chain[1][0], chain[2][0]


def _is_leaf(certificate: x509.Certificate, report: SnpReport) -> bool:
    name = common_name(certificate).removeprefix("SIMULATED ")
    return name == f"SEV-{report.signing_key.upper()}"


def _der(found: bytes) -> bytes:
    """Hosts store what their operator gave them: DER as specified, or PEM."""
    if not found.startswith(b"-----BEGIN"):
        return found
    try:
        return certificates_of_pem(found)[0]
    except DataInvalid as error:
        raise EvidenceMalformed(
            f"a certificate from the host: {error.message}", check="certificate table"
        ) from error


def _missing(report: SnpReport, what: str) -> CollateralUnreachable:
    addresses = distribution_addresses(report)
    hint = "ask the cloud for its VLEK chain, or the host for a certificate table"
    if addresses is not None:
        hint = f"fetch {addresses[0]} and {addresses[1]} once and give them to the guest"
    return CollateralUnreachable(
        f"the host hands out no certificate for this report: {what} is missing",
        check="certificate table",
        hint=hint,
    )


def certificates_in(folder: Path | None) -> tuple[bytes, ...]:
    """AMD's certificates in a folder (``*.der``); none where no folder is named.

    Raises:
        UsageError: A file cannot be read.
    """
    if folder is None:
        return ()
    try:
        found = sorted(folder.glob("*.der"))[:_MAX_CERTIFICATES]
        return tuple(read_bounded(path, _MAX_CERTIFICATE_BYTES) for path in found)
    except DataInvalid as error:
        raise UsageError(
            f"certificates cannot be read: {error.message}", check="guest", hint=error.hint
        ) from error


def revocations_in(folder: Path | None) -> bytes | None:
    """The revocation list beside the certificates, read anew: it is renewed while a run lasts.

    Raises:
        UsageError: It cannot be read.
    """
    if folder is None or not (folder / _CRL).exists():
        return None
    try:
        return crl_der(read_bounded(folder / _CRL, _MAX_CERTIFICATE_BYTES))
    except (DataInvalid, RevocationUnknown) as error:
        raise UsageError(
            f"revocation list cannot be read: {error.message}", check="guest", hint=error.hint
        ) from error


CERTIFICATE_GUIDS = {
    "vcek": UUID("63da758d-e664-4564-adc5-f4b93be8accd"),
    "vlek": UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1"),
    "ask": UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782"),
    "ark": UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae"),
    "crl": UUID("92f81bc3-5811-4d3d-97ff-d19f88dc67ea"),
}
"""What the entries of a table are called."""

_NAMES = {guid.bytes: name for name, guid in CERTIFICATE_GUIDS.items()}
_ENTRY = struct.Struct("<16sII")
_MAX_TABLE_BYTES = 128 << 10
_MAX_ENTRIES = 64


def is_table(raw: bytes) -> bool:
    """Whether bytes begin as a table does: with an entry under one of the names above."""
    return raw[:16] in _NAMES


def parse_table(raw: bytes) -> dict[str, bytes]:
    """What a table holds, by the names above; entries under other GUIDs are left out.

    An empty table, or one of zeros alone, is a host that hands out nothing.

    Raises:
        EvidenceMalformed: Too long, no end, something named twice, or bytes outside the table.
    """
    if len(raw) > _MAX_TABLE_BYTES:
        raise _wrong("is too long", len(raw), f"at most {_MAX_TABLE_BYTES} bytes")
    if not any(raw):
        return {}
    entries: list[tuple[bytes, int, int]] = []
    while True:
        at = _ENTRY.size * len(entries)
        if len(entries) > _MAX_ENTRIES or at + _ENTRY.size > len(raw):
            raise _wrong("has no end", len(entries), f"at most {_MAX_ENTRIES} entries and zeros")
        guid, offset, length = _ENTRY.unpack_from(raw, at)
        if not any(guid):
            break
        entries.append((guid, offset, length))
    first = _ENTRY.size * (len(entries) + 1)
    found: dict[str, bytes] = {}
    for guid, offset, length in entries:
        if offset < first or offset + length > len(raw):
            raise _wrong("names bytes outside it", f"{offset} + {length}", f"{first} to {len(raw)}")
        name = _NAMES.get(guid)
        if name is None or length == 0:
            continue
        if name in found:
            raise _wrong("names something twice", name, "each at most once")
        found[name] = bytes(raw[offset : offset + length])
    return found


def _wrong(message: str, got: object, expected: object) -> EvidenceMalformed:
    return EvidenceMalformed(
        f"the host's certificate table {message}",
        check="certificate table",
        got=got,
        expected=expected,
    )
