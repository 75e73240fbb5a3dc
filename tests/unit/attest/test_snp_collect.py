"""Evidence from inside a SEV-SNP guest, with the kernel's two interfaces played by the test."""

from __future__ import annotations

import ctypes
import errno
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    CollateralUnreachable,
    EvidenceMalformed,
    GuestApiUnreachable,
    QuoteInvalid,
    RevocationUnknown,
)
from sealtrain.attest.snp.collect import collect, distribution_addresses, parse_table
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.snp.verify import verify_report
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

NOW = 1_800_000_000
COMPOSE = b'{"name":"unit"}'
ASKED = bytes(range(64))
# As the GHCB specification spells them; the product's own table is not used to make these.
GUIDS = {
    "vcek": "63da758de6644564adc5f4b93be8accd",
    "vlek": "a8074bc2a25a483eaae639c045a0b8a1",
    "ask": "4ab7b379bbac4fe4a02f05aef327c782",
    "ark": "c0b406a4a80349529743" + "3fb6014cd0ae",
    "crl": "92f81bc358114d3d97ffd19f88dc67ea",
}


@pytest.fixture(scope="module")
def guest() -> SimulatedSnp:
    return SimulatedSnp(b"unit tests of snp")


def table(entries: list[tuple[str, bytes]], *, pad: int = 0) -> bytes:
    at, head, body = 24 * (len(entries) + 1), b"", b""
    for guid, blob in entries:
        head += bytes.fromhex(guid) + struct.pack("<II", at + len(body), len(blob))
        body += blob
    return head + bytes(24) + body + bytes(pad)


def full_table(guest: SimulatedSnp, *, leaf: str = "vcek") -> bytes:
    names = (leaf, "ask", "ark")
    return table([(GUIDS[n], der) for n, der in zip(names, guest.certificates(), strict=True)])


class Kernel:
    """A real folder that behaves like configfs-tsm: making a report fills it, reading makes it."""

    def __init__(
        self, guest: SimulatedSnp, aux: bytes | None, *, provider: str = "sev_guest"
    ) -> None:
        self.guest, self.aux, self.provider = guest, aux, provider
        self.spoil: Callable[[bytes], bytes] = lambda report: report

    def make(self, path: Path) -> None:
        path.mkdir()
        (path / "provider").write_text(self.provider + "\n")
        (path / "generation").write_text("0\n")
        (path / "inblob").touch()

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        generation = path.with_name("generation")
        generation.write_text(f"{int(generation.read_text()) + 1}\n")

    def read(self, path: Path) -> bytes:
        if path.name == "outblob":
            asked = path.with_name("inblob").read_bytes()
            return self.spoil(self.guest.report(asked, COMPOSE))
        if path.name == "auxblob":
            if self.aux is None:
                raise OSError(errno.ENXIO, "no such device or address")
            return self.aux
        return path.read_bytes()

    def remove(self, path: Path) -> None:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


class Driver:
    """The ioctl of ``/dev/sev-guest``, reading and writing the caller's memory as the kernel does.

    Offsets are those of linux/sev-guest.h, spelled out here once more.
    """

    def __init__(self, guest: SimulatedSnp, certificates: bytes) -> None:
        self.guest, self.certificates = guest, certificates
        self.status, self.refuse = 0, False

    def __call__(self, descriptor: int, code: int, request: ctypes.Structure) -> int:
        assert descriptor >= 0
        assert code == 3 << 30 | 32 << 16 | ord("S") << 8 | 2
        assert ctypes.sizeof(request) == 32
        version, inside, outside, _ = struct.unpack("<B7xQQQ", bytes(request))
        assert version == 1
        asked = ctypes.string_at(inside, 112)
        user_data, vmpl, spare, address, length = struct.unpack("<64sI28sQI4x", asked)
        assert (vmpl, spare, length, address % 4096) == (0, bytes(28), 16384, 0)
        if self.refuse:
            raise OSError(errno.EIO, "Input/output error")
        ctypes.memmove(address, self.certificates, len(self.certificates))
        report = self.guest.report(user_data, COMPOSE)
        answer = struct.pack("<II24x", self.status, len(report)) + report
        ctypes.memmove(outside, answer, len(answer))
        return 0


def test_configfs_brings_report_and_chain(guest: SimulatedSnp, tmp_path: Path) -> None:
    found = collect(tmp_path, ASKED, folders=Kernel(guest, full_table(guest)))
    verified = verify_report(
        found.report, found.certificates, simulator_root=guest.root_der, now=NOW
    )
    assert found.crl is None
    assert verified.report.report_data == ASKED
    assert list(tmp_path.iterdir()) == []


def test_the_older_driver_brings_the_same(guest: SimulatedSnp, tmp_path: Path) -> None:
    device = tmp_path / "sev-guest"
    device.touch()
    driver = Driver(guest, full_table(guest))
    found = collect(device, ASKED, ioctl=driver)
    verified = verify_report(
        found.report, found.certificates, simulator_root=guest.root_der, now=NOW
    )
    assert verified.product == "Genoa"
    driver.status = 0x16
    with pytest.raises(
        GuestApiUnreachable, check=carries(check="TEE device", got="status 0x16, 1184 bytes")
    ) as caught:
        collect(device, ASKED, ioctl=driver)
    assert "0x16" in str(caught.value)
    driver.refuse = True
    with pytest.raises(GuestApiUnreachable):
        collect(device, ASKED, ioctl=driver)
    with pytest.raises(EvidenceMalformed):
        collect(device, ASKED[:63], ioctl=driver)
    with pytest.raises(GuestApiUnreachable):
        collect(tmp_path / "absent", ASKED, ioctl=driver)
    with pytest.raises(GuestApiUnreachable):
        collect(device, ASKED)  # a plain file answers no ioctl


def test_certificates_at_hand_complete_what_the_host_leaves_out(tmp_path: Path) -> None:
    """Some clouds hand out a VLEK and nothing above it, others nothing at all."""
    guest = SimulatedSnp(b"unit tests of snp", signing_key="vlek")
    leaf, issuer, root = guest.certificates()
    alone = Kernel(guest, table([(GUIDS["vlek"], leaf)], pad=100))
    with pytest.raises(CollateralUnreachable, match="ASK"):
        collect(tmp_path, ASKED, folders=alone)
    with pytest.raises(CollateralUnreachable, match="ARK"):
        collect(tmp_path, ASKED, certificates=(issuer,), folders=alone)
    for kernel, more in (
        (alone, (root, issuer)),
        (Kernel(guest, None), (root, issuer, leaf)),
        (Kernel(guest, bytes(4096)), (leaf, issuer, root)),
    ):
        found = collect(tmp_path, ASKED, certificates=more, folders=kernel)
        assert found.certificates == (leaf, issuer, root)
        verify_report(found.report, found.certificates, simulator_root=guest.root_der, now=NOW)


@pytest.mark.parametrize("pem", [False, True])
def test_a_revocation_list_of_the_host_is_carried_along(
    guest: SimulatedSnp, tmp_path: Path, pem: bool
) -> None:
    listed = guest.revocations(NOW)
    stored = x509.load_der_x509_crl(listed).public_bytes(Encoding.PEM) if pem else listed
    leaf, issuer, root = guest.certificates()
    aux = table(
        [
            (GUIDS["vcek"], leaf),
            (GUIDS["ask"], issuer),
            (GUIDS["ark"], root),
            (GUIDS["crl"], stored),
        ]
    )
    assert collect(tmp_path, ASKED, folders=Kernel(guest, aux)).crl == listed
    broken = aux.replace(stored, bytes(len(stored)))
    with pytest.raises(RevocationUnknown):
        collect(tmp_path, ASKED, folders=Kernel(guest, broken))


def test_a_host_may_store_pem(guest: SimulatedSnp, tmp_path: Path) -> None:
    pem = [
        x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
        for der in guest.certificates()
    ]
    names = ("vcek", "ask", "ark")
    aux = table([(GUIDS[name], text) for name, text in zip(names, pem, strict=True)])
    found = collect(tmp_path, ASKED, folders=Kernel(guest, aux))
    assert found.certificates == guest.certificates()
    with pytest.raises(EvidenceMalformed):
        collect(tmp_path, ASKED, folders=Kernel(guest, table([(GUIDS["vcek"], pem[0][:-40])])))


def test_a_refusal_names_where_amd_publishes_the_certificate(
    guest: SimulatedSnp, tmp_path: Path
) -> None:
    with pytest.raises(CollateralUnreachable) as caught:
        collect(tmp_path, ASKED, folders=Kernel(guest, None))
    report = parse_report(guest.report(ASKED, COMPOSE))
    addresses = distribution_addresses(report)
    assert addresses == (
        f"https://kdsintf.amd.com/vcek/v1/Genoa/{guest.chip_id}"
        "?blSPL=10&teeSPL=01&snpSPL=23&ucodeSPL=200",
        "https://kdsintf.amd.com/vcek/v1/Genoa/cert_chain",
    )
    assert caught.value.hint is not None
    assert addresses[0] in caught.value.hint
    turin = SimulatedSnp(b"unit tests of snp", product="Turin")
    found = distribution_addresses(parse_report(turin.report(ASKED, COMPOSE)))
    assert found is not None
    assert found[0].endswith(
        f"Turin/{turin.chip_id[:16]}?fmcSPL=01&blSPL=10&teeSPL=01&snpSPL=23&ucodeSPL=200"
    )
    for other in (
        SimulatedSnp(b"unit tests of snp", product="Milan"),
        SimulatedSnp(b"unit tests of snp", signing_key="vlek"),
    ):
        assert distribution_addresses(parse_report(other.report(ASKED, COMPOSE))) is None


def test_an_answer_that_is_no_report_over_this_data_is_refused(
    guest: SimulatedSnp, tmp_path: Path
) -> None:
    kernel = Kernel(guest, full_table(guest))
    kernel.spoil = lambda report: guest.report(bytes(64), COMPOSE)
    with pytest.raises(EvidenceMalformed):
        collect(tmp_path, ASKED, folders=kernel)
    kernel.spoil = lambda report: report + b"\x01"
    with pytest.raises(EvidenceMalformed):
        collect(tmp_path, ASKED, folders=kernel)
    kernel.spoil = lambda report: report[:-1]
    with pytest.raises(QuoteInvalid):
        collect(tmp_path, ASKED, folders=kernel)
    with pytest.raises(GuestApiUnreachable):
        collect(tmp_path, ASKED, folders=Kernel(guest, b"", provider="tdx_guest"))
    aux = table([(GUIDS["vcek"], b"no certificate")])
    with pytest.raises(CertificateChainInvalid):
        collect(tmp_path, ASKED, folders=Kernel(guest, aux))
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_read_by_its_guids() -> None:
    other = uuid.UUID(int=7).hex
    raw = table([(GUIDS[n], n.encode()) for n in GUIDS] + [(other, b"x")], pad=9)
    assert parse_table(raw) == {name: name.encode() for name in GUIDS}
    assert parse_table(b"") == {}
    assert parse_table(bytes(4096)) == {}
    assert parse_table(table([(GUIDS["ask"], b"")])) == {}
    mixed = uuid.UUID(GUIDS["ask"]).bytes_le.hex()
    assert parse_table(table([(mixed, b"x")])) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"\x01",
        table([(GUIDS["ask"], b"abc")])[:47],
        table([(GUIDS["ask"], b"abc")])[:-1],
        table([(GUIDS["ask"], b"abc"), (GUIDS["ask"], b"abc")]),
        bytes.fromhex(GUIDS["ask"]) + struct.pack("<II", 0, 4) + bytes(24) + b"abcd",
        bytes.fromhex(GUIDS["ask"]) + struct.pack("<II", 48, 0xFFFFFFFF) + bytes(24) + b"abcd",
        bytes.fromhex(GUIDS["ask"]) + struct.pack("<II", 0xFFFFFFFF, 1) + bytes(24) + b"abcd",
        table([(uuid.UUID(int=i + 1).hex, b"x") for i in range(65)]),
        b"\x01" * (128 << 10),
        bytes((128 << 10) + 1),
    ],
    ids=[
        "one byte",
        "no end",
        "cut",
        "twice",
        "points into itself",
        "too long",
        "far away",
        "too many",
        "endless",
        "oversized",
    ],
)
def test_a_malformed_table_is_refused(raw: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        parse_table(raw)
