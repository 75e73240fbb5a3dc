"""Chains of accelerators: five certificates that hold, and everything that is nearly one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier
from gpu_world import NOW, captured

from sealtrain.attest.errors import CertificateChainInvalid, QuoteRootUntrusted, SimulatedEvidence
from sealtrain.attest.nvidia.chain import NVIDIA_ROOT_SHA256, verify_chain
from sealtrain.attest.nvidia.fwid import composite_fwid, read_fwid, tcb_info_fwid
from sealtrain.base.digests import sha256_hex
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

DIGEST = bytes(range(48))
SHA384 = bytes.fromhex("0609608648016503040202")
FWID = b"\x30\x3d" + SHA384 + b"\x04\x30" + DIGEST
NAMES = (
    "GH100 A01 GSP FMC LF",
    "GH100 A01 GSP BROM",
    "SIMULATED Provisioner",
    "SIMULATED Family",
    "SIMULATED Root",
)


@dataclass(frozen=True)
class Link:
    """One certificate to make; a leaf's depth is 0."""

    name: str
    serial: str | None
    authority: bool
    sign: bool = True
    curve: Any = field(default_factory=ec.SECP384R1)
    hash: Any = field(default_factory=hashes.SHA384)
    path: int | None = None
    certifies: bool | None = None
    start: datetime = datetime(2020, 1, 1, tzinfo=UTC)
    end: datetime = datetime(9999, 12, 31, tzinfo=UTC)
    usage: bool = True
    extra: tuple[tuple[str, bytes, bool], ...] = ()
    issuer: str | None = None


LINKS = (
    Link(NAMES[0], "455472BB690155ACCC29161A19C7FE6144A8ED92", authority=False),
    Link(NAMES[1], "416A5FAFCBD9FA5CA3", authority=True),
    *(Link(name, None, authority=True) for name in NAMES[2:]),
)
KEYS = tuple(ec.generate_private_key(ec.SECP384R1()) for _ in LINKS)
FOREIGN = ec.generate_private_key(ec.SECP384R1())


def build(links: tuple[Link, ...], signers: dict[int, Any] | None = None) -> list[x509.Certificate]:
    keys = [
        key if isinstance(link.curve, ec.SECP384R1) else ec.generate_private_key(link.curve)
        for link, key in zip(links, (*KEYS, *KEYS), strict=False)
    ]
    made = []
    for depth, link in enumerate(links):
        above = min(depth + 1, len(links) - 1)
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, link.name)]
        if link.serial is not None:
            attributes.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, link.serial))
        issuer = [x509.NameAttribute(NameOID.COMMON_NAME, link.issuer or links[above].name)]
        serial = links[above].serial
        if serial is not None:
            issuer.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, serial))
        builder = x509.CertificateBuilder(
            x509.Name(issuer), x509.Name(attributes), keys[depth].public_key(), depth + 1
        )
        builder = builder.not_valid_before(link.start).not_valid_after(link.end)
        if link.authority:
            builder = builder.add_extension(x509.BasicConstraints(True, link.path), critical=True)
        if link.usage:
            builder = builder.add_extension(
                x509.KeyUsage(
                    digital_signature=link.sign and not link.authority,
                    content_commitment=False,
                    key_encipherment=not link.sign,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=(
                        link.sign and link.authority if link.certifies is None else link.certifies
                    ),
                    crl_sign=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        for oid, value, critical in link.extra:
            builder = builder.add_extension(
                x509.UnrecognizedExtension(ObjectIdentifier(oid), value), critical=critical
            )
        key = (signers or {}).get(depth, keys[above])
        made.append(builder.sign(key, link.hash))
    return made


def pem(certificates: list[x509.Certificate]) -> str:
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def changed(depth: int, **changes: Any) -> tuple[Link, ...]:
    return tuple(replace(link, **changes) if at == depth else link for at, link in enumerate(LINKS))


def test_a_chain_that_holds_names_its_device() -> None:
    made = build(changed(0, extra=(("2.23.133.5.4.1", b"\x30\x3f" + FWID, False),)))
    chain = verify_chain(pem(made), simulator_root=der(made[-1]), now=NOW)
    assert chain.architecture == "HOPPER"
    assert chain.chip == "GH100"
    assert chain.ueid == "455472bb690155accc29161a19c7fe6144a8ed92"
    assert chain.device_serial == "416a5fafcbd9fa5ca3"
    assert chain.hwmodel == "GH100 A01 GSP BROM"
    assert chain.fwid == DIGEST
    assert chain.simulated
    assert chain.certificates == tuple(der(case) for case in made)


@pytest.mark.parametrize(
    ("chip", "architecture"), [("GB100", "BLACKWELL"), ("LS_10", "LS10"), ("GH200", "HOPPER")]
)
def test_families_are_told_by_the_chip(chip: str, architecture: str) -> None:
    links = (replace(LINKS[0], name=f"{chip} LF"), replace(LINKS[1], name=f"{chip} BROM"))
    made = build((*links, *LINKS[2:]))
    chain = verify_chain(pem(made), simulator_root=der(made[-1]), now=NOW)
    assert (chain.architecture, chain.chip) == (architecture, chip.replace("_", ""))


REFUSED: dict[str, tuple[Link, ...]] = {
    "leaf is an authority": changed(0, authority=True),
    "leaf may not sign": changed(0, sign=False),
    "leaf may sign certificates": changed(0, certifies=True),
    "leaf says no use": changed(0, usage=False),
    "issuer is no authority": changed(1, authority=False),
    "issuer may sign certificates and is no authority": changed(1, authority=False, certifies=True),
    "issuer may not sign certificates": changed(2, sign=False),
    "vendor is no authority": changed(3, authority=False),
    "path of the provisioner too short": changed(2, path=0),
    "path of the root too short": changed(4, path=2),
    "leaf on P-256": changed(0, curve=ec.SECP256R1()),
    "device on P-256": changed(1, curve=ec.SECP256R1()),
    "leaf on P-521": changed(0, curve=ec.SECP521R1()),
    "leaf signed with SHA-256": changed(0, hash=hashes.SHA256()),
    "provisioner signed with SHA-512": changed(2, hash=hashes.SHA512()),
    "leaf names another issuer": changed(0, issuer="GH100 A01 GSP BROM 2"),
    "unknown critical extension": changed(0, extra=(("1.2.3.4", b"\x05\x00", True),)),
    "unknown critical extension above": changed(3, extra=(("1.2.3.4", b"\x05\x00", True),)),
    "leaf of another chip": changed(0, name="GB100 A01 GSP FMC LF"),
    "unknown family": changed(1, name="GA100 A01 GSP BROM"),
    "leaf without serial number": changed(0, serial=None),
    "serial number is no number": changed(0, serial="not hexadecimal"),
    "serial number too short": changed(0, serial="1234"),
    "two firmware ids": changed(
        0,
        extra=(
            ("2.23.133.5.4.1", b"\x30\x3f" + FWID, False),
            ("2.23.133.5.4.1.1", b"\x30\x41\xa6\x3f" + FWID, False),
        ),
    ),
    "firmware id cut short": changed(0, extra=(("2.23.133.5.4.1", FWID[:-1], False),)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_chains_with_one_wrong_certificate_are_refused(case: str) -> None:
    made = build(REFUSED[case])
    with pytest.raises(CertificateChainInvalid):
        verify_chain(pem(made), simulator_root=der(made[-1]), now=NOW)


@pytest.mark.negative(49)
@pytest.mark.parametrize("depth", range(4))
def test_a_certificate_signed_by_somebody_else_is_refused(depth: int) -> None:
    made = build(LINKS, {depth: FOREIGN})
    with pytest.raises(CertificateChainInvalid):
        verify_chain(pem(made), simulator_root=der(made[-1]), now=NOW)


def test_another_kind_of_key_is_refused() -> None:
    made = build(LINKS)
    key = rsa.generate_private_key(65537, 2048)
    leaf = x509.CertificateBuilder(
        made[1].subject, made[0].subject, key.public_key(), 1, LINKS[0].start, LINKS[0].end
    )
    leaf = leaf.add_extension(made[0].extensions[0].value, critical=True)
    made[0] = leaf.sign(KEYS[1], hashes.SHA384())
    with pytest.raises(CertificateChainInvalid, match="P-384"):
        verify_chain(pem(made), simulator_root=der(made[-1]), now=NOW)


@pytest.mark.parametrize("depth", range(5))
def test_every_certificate_must_be_valid_at_the_moment(depth: int) -> None:
    middle = datetime(2027, 1, 1, tzinfo=UTC)
    stamp = int(middle.timestamp())
    for changes, good, bad in (
        ({"end": middle}, stamp, stamp + 1),
        ({"start": middle}, stamp, stamp - 1),
    ):
        made = build(changed(depth, **changes))
        root = der(made[-1])
        assert verify_chain(pem(made), simulator_root=root, now=good).ueid
        with pytest.raises(CertificateChainInvalid, check=carries(check="GPU certificate chain")):
            verify_chain(pem(made), simulator_root=root, now=bad)


def chains(made: list[x509.Certificate]) -> Iterator[tuple[str, list[x509.Certificate]]]:
    yield "leaf missing", made[1:]
    yield "provisioner missing", [*made[:2], *made[3:]]
    yield "root twice", [*made, made[-1]]
    yield "family twice", [*made[:4], made[3], made[4]]
    yield "order of vendor reversed", [made[0], made[1], made[3], made[2], made[4]]
    yield "root alone", made[-1:]


@pytest.mark.parametrize("case", [name for name, _ in chains(build(LINKS))])
def test_chains_of_another_length_or_order_are_refused(case: str) -> None:
    made = build(LINKS)
    with pytest.raises(CertificateChainInvalid):
        verify_chain(pem(dict(chains(made))[case]), simulator_root=der(made[-1]), now=NOW)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "blank line behind": lambda text: text + "\n",
    "text before": lambda text: "subject=GH100\n" + text,
    "long lines": lambda text: text.replace("\n", "", 2),
    "other letters": lambda text: text + "é",
    "empty": lambda _: "",
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_one_chain_has_one_spelling(case: str) -> None:
    made = build(LINKS)
    with pytest.raises(CertificateChainInvalid):
        verify_chain(SPELLINGS[case](pem(made)), simulator_root=der(made[-1]), now=NOW)


@pytest.mark.negative(49)
def test_a_chain_to_another_root_is_refused_under_both_kinds_of_trust(shared: Path) -> None:
    simulated = SimulatedGpus(b"somebody's own simulator")
    other = SimulatedGpus(b"somebody else's simulator")
    shown = simulated.evidence(bytes(32)).devices[0].certificate_chain
    with pytest.raises(QuoteRootUntrusted):
        verify_chain(shown, simulator_root=other.root_der, now=NOW)
    with pytest.raises(SimulatedEvidence):
        verify_chain(shown, simulator_root=None, now=NOW)
    foreign = (*LINKS[:4], replace(LINKS[4], name="NVIDIA Device Identity CA"))
    with pytest.raises(QuoteRootUntrusted):
        verify_chain(pem(build(foreign)), simulator_root=None, now=NOW)
    (genuine,) = captured(shared, "hopper_535")
    with pytest.raises(QuoteRootUntrusted):
        verify_chain(genuine.certificate_chain, simulator_root=simulated.root_der, now=NOW)


def test_the_pinned_root_is_nvidias(shared: Path) -> None:
    text = (shared / "vectors" / "nvidia" / "roots" / "device_identity_ca.pem").read_bytes()
    assert sha256_hex(der(x509.load_pem_x509_certificate(text))) == NVIDIA_ROOT_SHA256


def test_a_root_that_is_no_certificate_is_refused() -> None:
    text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    with pytest.raises(CertificateChainInvalid):
        verify_chain(text, simulator_root=None, now=NOW)


def tcb_info(*entries: bytes, tag: int = 0xA6) -> bytes:
    listed = b"".join(entries)
    head = b"\x80\x06NVIDIA\x83\x01\x01\x84\x01\x00\x85\x01\x00"
    body = head + bytes([tag, len(listed)]) + listed + b"\x87\x05\x00\x80\x00\x00\x01"
    return b"\x30\x81" + bytes([len(body)]) + body


def test_blackwell_lists_its_firmware_first() -> None:
    second = b"\x30\x3d" + SHA384 + b"\x04\x30" + bytes(48)
    assert tcb_info_fwid(tcb_info(FWID, second)) == DIGEST
    made = build(changed(0, extra=(("2.23.133.5.4.1.1", tcb_info(FWID), True),)))
    assert read_fwid(made[0]) == DIGEST


MALFORMED = {
    "empty": b"",
    "no list": tcb_info(FWID, tag=0xA5),
    "empty list": tcb_info(),
    "two lists": b"\x30\x82\x00\x82" + (b"\xa6\x3f" + FWID) * 2,
    "other algorithm": tcb_info(FWID.replace(SHA384, SHA384[:-1] + b"\x01")),
    "digest too short": tcb_info(b"\x30\x3c" + SHA384 + b"\x04\x2f" + DIGEST[1:]),
    "digest runs past its end": tcb_info(b"\x30\x3d" + SHA384 + b"\x04\x31" + DIGEST),
    "bytes behind": tcb_info(FWID) + b"\0",
    "length of five bytes": b"\x30\x85\0\0\0\0\x01\0",
    "indefinite length": b"\x30\x80" + FWID + b"\0\0",
    "cut inside a head": b"\x30",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_firmware_ids_are_refused(case: str) -> None:
    with pytest.raises(CertificateChainInvalid):
        tcb_info_fwid(MALFORMED[case])


@pytest.mark.parametrize("value", [b"", FWID[:-1], FWID + b"\0", DIGEST])
def test_hoppers_firmware_id_ends_in_a_digest(value: bytes) -> None:
    assert composite_fwid(FWID) == DIGEST
    with pytest.raises(CertificateChainInvalid):
        composite_fwid(value)
