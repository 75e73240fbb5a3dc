"""MEASUREMENT, PCR 5 and PCR 14 computed from files are those that real machines have."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boot_files import disk_image, googles_firmware
from carrying import carries
from public_evidence import published

from sealtrain.attest.dstacksnp.exhibit import DstackSnp
from sealtrain.attest.exhibits import recognise
from sealtrain.errors import ImageRefused, UsageError
from sealtrain.image.machine.disk import PartitionTable, document_register, partition_register
from sealtrain.image.machine.launchdigest import Launch, launch_digest
from sealtrain.image.machine.registers import extend

pytestmark = pytest.mark.claim("C423")

GOOGLES = (
    "20ec0dbd1c0a26d184a6f11ec5a796d68ec03c9d101bdd84"
    "c03f3d9cbbc4a292a9fad098edacfa04da0da58f20be885e"
)
"""MEASUREMENT of ``googles_firmware``: google/gce-tcb-verifier@116e9ad9,
verify/verifytest/verifytest.go."""
GOOGLES_WAY = Launch(vcpus=1, vcpu_type="EPYC-Milan", monitor="gce")


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    pytest.importorskip("sevsnpmeasure", reason="the extra measure is not installed")
    path = tmp_path / "ovmf.fd"
    path.write_bytes(googles_firmware())
    return path


# --- SEV-SNP -----------------------------------------------------------------------------------


def test_the_launch_digest_of_googles_firmware_is_the_one_that_google_expects(
    firmware: Path,
) -> None:
    assert launch_digest(firmware, GOOGLES_WAY) == GOOGLES


def test_a_real_guests_digest_follows_from_what_dstack_measured_of_its_files() -> None:
    """A real report; the firmware itself is too large to be kept anywhere here."""
    pytest.importorskip("sevsnpmeasure", reason="the extra measure is not installed")
    from sevsnpmeasure.gctx import GCTX
    from sevsnpmeasure.ovmf import SectionType
    from sevsnpmeasure.sev_hashes import SevHashes
    from sevsnpmeasure.sev_mode import SevMode
    from sevsnpmeasure.vcpu_types import CPU_SIGS
    from sevsnpmeasure.vmm_types import VMMType
    from sevsnpmeasure.vmsa import VMSA

    shown = recognise(published("a dstack guest on SEV-SNP"))
    assert isinstance(shown, DstackSnp)
    told = json.loads(json.loads(shown.hosted.config)["sev_snp_measurement"])
    hashes = SevHashes.__new__(SevHashes)
    hashes.kernel_hash = bytes.fromhex(told["kernel_hash"])
    hashes.initrd_hash = bytes.fromhex(told["initrd_hash"])
    hashes.cmdline_hash = hashlib.sha256(told["base_cmdline"].encode() + b"\0").digest()
    context = GCTX(seed=bytes.fromhex(told["ovmf_hash"]))
    for section in told["ovmf_sections"]:
        place, size = section["gpa"], section["size"]
        match SectionType(section["section_type"]):
            case SectionType.SNP_SECRETS:
                context.update_secrets_page(place)
            case SectionType.CPUID:
                context.update_cpuid_page(place)
            case SectionType.SNP_KERNEL_HASHES:
                page = hashes.construct_page(told["sev_hashes_table_gpa"] & 0xFFF)
                context.update_normal_pages(place, page)
            case _:
                context.update_zero_pages(place, size)
    features = told["guest_features"]
    signature = CPU_SIGS[told["vcpu_type"]]
    state = VMSA(SevMode.SEV_SNP, told["sev_es_reset_eip"], signature, features, VMMType.QEMU)
    for page in state.pages(told["vcpus"]):
        context.update_vmsa_page(page)
    assert context.ld().hex() == shown.report.measurement


def test_each_property_of_the_machine_changes_the_digest(firmware: Path) -> None:
    ways = (
        Launch(vcpus=1, vcpu_type="EPYC-Milan"),
        Launch(vcpus=2, vcpu_type="EPYC-Milan"),
        Launch(vcpus=1, vcpu_type="EPYC-Genoa"),
        Launch(vcpus=1, vcpu_type="EPYC-Milan", monitor="gce"),
        Launch(vcpus=1, vcpu_type="EPYC-Milan", monitor="ec2"),
        Launch(vcpus=1, vcpu_type="EPYC-Milan", guest_features=0x21),
    )
    assert len({launch_digest(firmware, how) for how in ways}) == len(ways)


def test_a_kernel_needs_firmware_with_a_table_of_hashes(firmware: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "bzImage"
    kernel.write_bytes(b"kernel")
    how = Launch(vcpus=1, vcpu_type="EPYC-v4", kernel=kernel, command_line="quiet")
    with pytest.raises(ImageRefused, check=carries(check="firmware")):
        launch_digest(firmware, how)


@pytest.mark.parametrize("size", [0, 1, 50, 4096, (2 << 20) - 1])
def test_what_is_no_snp_firmware_is_refused(firmware: Path, size: int) -> None:
    firmware.write_bytes(googles_firmware()[:size])
    with pytest.raises(ImageRefused, check=carries(check="firmware")):
        launch_digest(firmware, GOOGLES_WAY)


@pytest.mark.parametrize(
    ("how", "check"),
    [
        (Launch(vcpus=1, vcpu_type="EPYC-Naples"), "--vcpu-type"),
        (Launch(vcpus=1, vcpu_type="EPYC-v4", monitor="xen"), "--monitor"),
    ],
)
def test_an_unknown_machine_is_a_wrong_call(firmware: Path, how: Launch, check: str) -> None:
    with pytest.raises(UsageError, check=carries(check=check)):
        launch_digest(firmware, how)


# --- PCR 5 -------------------------------------------------------------------------------------


def events(log: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Register, type, SHA-256 and data of each event of a log (TCG, crypto agile)."""
    (size,) = struct.unpack_from("<I", log, 28)
    spec, at = log[32 : 32 + size], 32 + size
    (count,) = struct.unpack_from("<I", spec, 24)
    sizes = dict(struct.unpack_from("<HH", spec, 28 + 4 * number) for number in range(count))
    while at + 12 <= len(log):
        register, kind, digests = struct.unpack_from("<III", log, at)
        at += 12
        found = {}
        for _ in range(digests):
            (name,) = struct.unpack_from("<H", log, at)
            found[name] = log[at + 2 : at + 2 + sizes[name]]
            at += 2 + sizes[name]
        if not digests:
            return
        (size,) = struct.unpack_from("<I", log, at)
        yield register, kind, found[0x0B], log[at + 4 : at + 4 + size]
        at += 4 + size


def disk_of(measured: bytes, sector: int = 512) -> bytes:
    """A disk whose table has the header and the entries that were measured."""
    header, entries = measured[:92], measured[100:]
    (first,) = struct.unpack_from("<Q", header, 72)
    (count,) = struct.unpack_from("<I", header, 80)
    disk = bytearray(first * sector + count * 128)
    disk[sector : sector + 92] = header
    disk[first * sector : first * sector + len(entries)] = entries
    return bytes(disk)


FIFTH = {
    "85": "e9e0b32564b6f8215b1bd43954d9f910682d39c3b18abd4737ac3b797cf269e0",
    "93": "74be59dc8066011eade913db9a3db7978f93852c04816cba9427dd59b87042cc",
    "101": "d1a1ab23a5c3d98fbacff3891bad42d8e9257d61e1f683f42c6c9fa949bf96c5",
}
"""PCR 5 of these machines: google/go-eventlog@b9c4e7a1, tpmeventlog/extract_test.go."""


@pytest.mark.parametrize("image", FIFTH)
def test_pcr_5_of_real_machines_of_google(image: str) -> None:
    """The checksums of a real header hold over the entries of its log, and so does the register."""
    log = published(f"the boot log of Container-Optimized OS {image}")
    fifth = [event for event in events(log) if event[0] == 5]
    (measured,) = [data for _, kind, _, data in fifth if kind == 0x80000006]
    table = PartitionTable.of_disk(disk_of(measured))
    assert table.measured == measured
    assert extend([digest for _, _, digest, _ in fifth], "sha256").hex() == FIFTH[image]
    assert partition_register(table, "sha256") == FIFTH[image]


def entry(number: int) -> bytes:
    return (
        bytes([number]) * 16
        + bytes([number + 64]) * 16
        + struct.pack("<QQQ", 34, 99, 0)
        + bytes(72)
    )


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_table_is_its_header_and_the_partitions_that_there_are(sector: int) -> None:
    whole = disk_image(entry(1), bytes(128), entry(2), sector=sector)
    table = PartitionTable.of_disk(whole)
    assert table.entries == (entry(1), entry(2))
    assert table.measured == table.header + struct.pack("<Q", 2) + entry(1) + entry(2)
    other = PartitionTable.of_disk(disk_image(entry(1), bytes(128), entry(3), sector=sector))
    for algorithm in ("sha256", "sha384"):
        first, second = (partition_register(value, algorithm) for value in (table, other))  # type: ignore[arg-type]
        assert first != second


@pytest.mark.parametrize(
    "changed",
    [
        {"signature": b"EFI PARS"},
        {"size": 512},
        {"own": 2},
        {"count": 0},
        {"count": 1 << 20},
        {"length": 256},
        {"table": 1 << 40},
        {"table_crc": 1},
        {"crc": 1},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_a_table_that_firmware_would_not_take_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ImageRefused, check=carries(check="GPT")):
        PartitionTable.of_disk(disk_image(entry(1), **changed))


def test_a_disk_that_ends_too_soon_is_refused() -> None:
    whole = disk_image(entry(1))
    for size in (0, 512, 520, 600, 1024, len(whole) - 1):
        with pytest.raises(ImageRefused, check=carries(check="GPT")):
            PartitionTable.of_disk(whole[:size])


# --- PCR 14 ------------------------------------------------------------------------------------


def test_pcr_14_is_one_extension_by_the_document() -> None:
    document = b'{"name":"an app"}\n'
    for name in ("sha256", "sha384"):
        digest = hashlib.new(name, document).digest()
        expected = hashlib.new(name, bytes(len(digest)) + digest).hexdigest()
        assert document_register(document, name) == expected  # type: ignore[arg-type]
        assert document_register(document + b" ", name) != expected  # type: ignore[arg-type]
