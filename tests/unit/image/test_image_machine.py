"""Registers computed from files are those that real machines, and other calculators, have."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from boot_files import enclave, googles_firmware, kernel, program
from carrying import carries
from public_evidence import published

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.enclavefile import measure_enclave
from sealtrain.image.machine.pe_file import Portable
from sealtrain.image.machine.registers import (
    BOOT_OPTION,
    EXIT_EVENTS,
    SEPARATOR,
    digest_of,
    extend,
)
from sealtrain.image.machine.trustdomain import load_as_qemu, measure_firmware, rtmr1, rtmr2
from sealtrain.image.machine.unified import Unified, measure_unified, secure_boot_off

GOOGLES = (
    "6e540be4917f24f74cc3292b59803d06dc7c38eb4a3c1fd6"
    "be9c735ba74bb7a23e25f98da94779d17508b243e4fb582b"
)
"""MRTD of ``googles_firmware``: google/gce-tcb-verifier@74582c07, verify/verifytest."""
CAUTIONS = "21b9efbc18480766"
"""Begins PCR 2 of every enclave image with one ramdisk, as recorded for Caution's."""
DIRECT = "a TDX guest that QEMU booted directly"
NITRO_TPM = "a NitroTPM without Secure Boot"


# --- Public values --------------------------------------------------------------------------------


def test_mrtd_of_googles_firmware_is_the_one_that_google_expects() -> None:
    found = measure_firmware(googles_firmware())
    assert found.single_pass == GOOGLES
    assert found.two_pass != GOOGLES


def test_rtmrs_of_a_real_guest_follow_from_what_dstack_measured_of_its_files() -> None:
    """A real quote of dstack 0.6.0; its image is too large to be kept anywhere here."""
    cbor2 = pytest.importorskip("cbor2")
    told = json.loads(published(DIRECT))
    quote = bytes.fromhex(told["quote"])
    mrtd, registers = quote[184:232], [quote[376 + 48 * n : 424 + 48 * n] for n in range(4)]
    from base64 import b64decode

    measured = json.loads(told["vm_config"])["tdx_measurement"]["measurement"]
    files = cbor2.loads(b64decode(measured))
    assert mrtd == files["tdvf"]["mrtd"]["two_pass"]
    texts = [digest_of(value, "sha384") for value in (BOOT_OPTION, SEPARATOR, *EXIT_EVENTS)]
    image = files["image"]
    assert extend([image["kernel_authenticode"], *texts], "sha384") == registers[1]
    assert extend([image["cmdline_sha384"], image["initrd_sha384"]], "sha384") == registers[2]


def test_pcr_7_of_a_real_machine_without_secure_boot() -> None:
    told = json.loads(published(NITRO_TPM))["pcrs"]["sha384"]
    assert secure_boot_off("sha384") == told["7"]
    assert extend([digest_of(SEPARATOR, "sha384")], "sha384").hex() == told["3"] == told["6"]


def test_pcr_2_of_an_enclave_without_a_second_ramdisk_is_a_constant() -> None:
    found = measure_enclave(enclave(b"init"))
    assert found[2].startswith(CAUTIONS)
    again = hashlib.sha384(bytes(48) + hashlib.sha384(b"").digest()).hexdigest()
    assert found[2] == again


# --- Another file gives another value -------------------------------------------------------------


def test_each_byte_of_measured_firmware_counts() -> None:
    firmware = googles_firmware()
    honest = measure_firmware(firmware)
    for at in (0x20000, 0x21000, 0x1FFFF0 - 0x100):
        changed = bytearray(firmware)
        changed[at] ^= 1
        found = measure_firmware(bytes(changed))
        assert found.single_pass != honest.single_pass
        assert found.two_pass != honest.two_pass


def initrd_at(loaded: bytes) -> int:
    return int.from_bytes(loaded[0x218:0x21C], "little")


def test_qemu_puts_the_initrd_where_memory_lets_it() -> None:
    """The places that dstack-mr's own test distinguishes."""
    places = {
        memory: initrd_at(load_as_qemu(kernel(), 1 << 20, memory))
        for memory in (0x7FFFF000, 0x80000000, 0xAFFFF000, 0xB0000000, 0xF0000000)
    }
    assert places[0x80000000] == places[0xB0000000] == places[0xF0000000]
    assert len(set(places.values())) == 3
    assert places[0x80000000] == (0x80000000 - 0x28000 - 1 - (1 << 20)) & ~0xFFF


def test_command_line_initrd_and_memory_change_their_register_alone() -> None:
    first = (rtmr1(kernel(), 1 << 20, 1 << 30), rtmr2("quiet", b"initrd"))
    assert rtmr1(kernel(), 1 << 20, 3 << 29) != first[0]
    assert rtmr1(kernel(), 2 << 20, 1 << 30) != first[0]
    assert rtmr2("quiet ", b"initrd") != first[1]
    assert rtmr2("quiet", b"initrd ") != first[1]


UKI = (
    (".linux", program((".text", b"kernel"))),
    (".osrel", b"ID=sealtrain\n"),
    (".cmdline", b"quiet"),
    (".initrd", b"initrd"),
    (".uname", b"6.12"),
)
HOW = Unified(algorithm="sha384", stub_loads_kernel=True)


@pytest.mark.claim("C665")
def test_pcr_9_has_what_the_stub_hands_to_the_initrd() -> None:
    """As Linux 7.3 in QEMU measured it behind stub 257 of Debian."""
    uki = program(*UKI)
    how = Unified(algorithm="sha256", stub_loads_kernel=True, shows_release=True)
    none = "0" * 8
    folder = ["070701", "00000001", "0000416d", none, none, "00000001", none, none]
    folder += [none, none, none, none, "00000007", none]
    file = ["070701", "00000002", "00008124", none, none, "00000001", none, "0000000d"]
    file += [none, none, none, none, "00000012", none]
    last = ["070701", none, none, none, none, "00000001", *[none] * 6, "0000000B", none]
    archive = b"".join(
        (
            "".join(folder).encode() + b".extra\0\0\0\0",
            "".join(file).encode() + b".extra/os-release\0",
            b"\0" * (-(110 + 18) % 4) + b"ID=sealtrain\n\0\0\0",
            "".join(last).encode() + b"TRAILER!!!\0\0\0\0",
        )
    )
    digests = [
        hashlib.sha256("quiet\0".encode("utf-16-le")).digest(),
        hashlib.sha256(b"initrd\0\0" + archive).digest(),
    ]
    assert measure_unified(uki, how)[9] == extend(digests, "sha256").hex()


def test_another_section_or_way_of_booting_gives_another_pcr() -> None:
    honest = measure_unified(program(*UKI), HOW)
    for number, (name, content) in enumerate(UKI[1:], 1):
        sections = [*UKI[:number], (name, content + b"x"), *UKI[number + 1 :]]
        found = measure_unified(program(*sections), HOW)
        differ = {pcr for pcr in honest if found[pcr] != honest[pcr]}
        assert differ == {4, 11} | ({9} if name in (".cmdline", ".initrd") else set())
    early = Unified(algorithm="sha384", stub_loads_kernel=True, early_stub=True)
    assert measure_unified(program(*UKI), early)[11] != honest[11]
    later = Unified(algorithm="sha384", stub_loads_kernel=False)
    assert measure_unified(program(*UKI), later)[4] != honest[4]
    told = Unified(algorithm="sha384", stub_loads_kernel=True, command_line="init=/bin/sh")
    found = measure_unified(program(*UKI), told)
    assert {pcr for pcr in honest if found[pcr] != honest[pcr]} == {9, 12}
    assert honest[12] == "0" * 96


def test_pcr_11_is_what_systemds_own_program_computes() -> None:
    """Names and contents in the stub's order, by the rule of its manual page."""
    value = bytes(48)
    for name, content in UKI:
        for measured in (f"{name}\0".encode(), content):
            value = hashlib.sha384(value + hashlib.sha384(measured).digest()).digest()
    assert measure_unified(program(*UKI), HOW)[11] == value.hex()


def test_a_signature_changes_no_digest_of_a_program() -> None:
    bare, signed = program(*UKI), program(*UKI, signed=bytes(512))
    digests = {Portable(value, "it").authenticode("sha256") for value in (bare, signed)}
    assert len(digests) == 1
    changed = bytearray(bare)
    changed[0x98 + 64] ^= 1  # the checksum
    assert Portable(bytes(changed), "it").authenticode("sha256") in digests
    changed[0x98 + 72] ^= 1
    assert Portable(bytes(changed), "it").authenticode("sha256") not in digests


def test_each_part_of_an_enclave_is_in_its_registers() -> None:
    honest = measure_enclave(enclave(b"init", b"root"))
    for other, differ in (
        (enclave(b"init", b"root", kernel=b"kernem"), {0, 1}),
        (enclave(b"inix", b"root"), {0, 1}),
        (enclave(b"init", b"roox"), {0, 2}),
        (enclave(b"initroot"), {1, 2}),
    ):
        found = measure_enclave(other)
        assert {pcr for pcr in honest if found[pcr] != honest[pcr]} == differ


# --- Files of another form ------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 16, 18, 40, 1000])
def test_firmware_without_its_table_is_refused(cut: int) -> None:
    firmware = googles_firmware()
    with pytest.raises(ImageRefused, check=carries(check="firmware")):
        measure_firmware(firmware[: len(firmware) - cut - 1] if cut else b"")


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.__setitem__(slice(0x110, 0x114), b"TDVG"),
        lambda made: struct.pack_into("<I", made, 0x118, 2),
        lambda made: struct.pack_into("<I", made, 0x11C, 1 << 31),
        lambda made: struct.pack_into("<Q", made, 0x120 + 16, 1 << 62),
        lambda made: struct.pack_into("<Q", made, 0x120 + 16, 4097),
        lambda made: struct.pack_into("<I", made, 0x120, 1 << 31),
    ],
    ids=["signature", "version", "count", "memory", "half a page", "place"],
)
def test_metadata_that_name_what_is_not_there_are_refused(change: object) -> None:
    made = bytearray(googles_firmware())
    change(made)  # type: ignore[operator]
    with pytest.raises(ImageRefused, check=carries(check="firmware")):
        measure_firmware(bytes(made))


@pytest.mark.parametrize("at", range(0, 600, 7))
def test_an_enclave_file_with_a_changed_byte_is_refused(at: int) -> None:
    made = bytearray(enclave(b"init", b"root"))
    made[at] ^= 1
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        measure_enclave(bytes(made))


@pytest.mark.parametrize("size", [0, 1, 64, 200, 511, 700])
def test_a_program_that_ends_too_soon_is_refused(size: int) -> None:
    with pytest.raises(ImageRefused):
        Portable(program(*UKI)[:size], "it").authenticode("sha256")


@pytest.mark.parametrize("size", [0, 0x205, 0x1000])
def test_a_kernel_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(ImageRefused, check=carries(check="kernel")):
        rtmr1(bytes(size), 1, 1 << 30)


def test_an_initrd_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ImageRefused, check=carries(check="initrd")):
        rtmr1(kernel(), 1 << 30, 1 << 30)


def test_an_enclave_with_bytes_behind_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        measure_enclave(enclave(b"init") + b"\0")
