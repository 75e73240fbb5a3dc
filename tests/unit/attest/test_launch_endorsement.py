"""Google's endorsement of a firmware: believed under a named root alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    QuoteInvalid,
    QuoteRootUntrusted,
)
from sealtrain.attest.gcp.endorsement import verify_endorsement
from sealtrain.cli import app
from sealtrain.errors import EvidenceRefused, UsageError

pytestmark = pytest.mark.claim("C721")

NOW = 1_800_000_000
MRTD = bytes(range(48))
LAUNCH = bytes(range(48, 96))


def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


ROOT_KEY, SIGNER_KEY, OTHER_KEY = key(), key(), key()


def certificate(
    name: str,
    subject: rsa.RSAPrivateKey,
    issuer: str,
    by: rsa.RSAPrivateKey,
    *,
    days: tuple[int, int] = (-10, 10),
    signs: bool = True,
) -> bytes:
    at = datetime.fromtimestamp(NOW, UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    pss = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(subject.public_key())
        .serial_number(1)
        .not_valid_before(at + timedelta(days=days[0]))
        .not_valid_after(at + timedelta(days=days[1]))
        .add_extension(
            x509.KeyUsage(signs, False, False, False, False, not signs, False, False, False),
            critical=True,
        )
        .sign(by, hashes.SHA256(), rsa_padding=pss)
        .public_bytes(Encoding.DER)
    )


ROOT = certificate("GCE-cc-tcb-root", ROOT_KEY, "GCE-cc-tcb-root", ROOT_KEY)
SIGNER = certificate("GCE-uefi-signer", SIGNER_KEY, "GCE-cc-tcb-root", ROOT_KEY)


def number(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(index: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return number(index << 3) + number(value)
    return number(index << 3 | 2) + number(len(value)) + value


def golden(signer: bytes = SIGNER, **changed: bytes) -> bytes:
    """``VMGoldenMeasurement``."""
    tdx = field(1, 3) + field(2, field(1, 16) + field(2, 1) + field(3, MRTD))
    snp = field(1, 2) + field(2, field(1, 4) + field(2, LAUNCH)) + field(5, 0x30000)
    parts = {
        "timestamp": field(1, field(1, NOW - 100)),
        "source": field(2, 7) + field(3, b"commit"),
        "cert": field(4, signer),
        "digest": field(5, bytes(48)),
        "bundle": field(6, b"ignored"),
        "snp": field(7, snp),
        "tdx": field(8, tdx),
    }
    return b"".join((parts | changed).values())


def endorsed(signed: bytes, by: rsa.RSAPrivateKey = SIGNER_KEY, *, salt: int = 32) -> bytes:
    scheme = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=salt)
    return field(1, signed) + field(2, by.sign(signed, scheme, hashes.SHA256()))


HONEST = endorsed(golden())


def test_values_are_google_s_under_the_named_root() -> None:
    pem = x509.load_der_x509_certificate(ROOT).public_bytes(Encoding.PEM)
    for root in (ROOT, pem):
        found = verify_endorsement(HONEST, root, now=NOW)
        assert found.tdx == ((16, True, MRTD.hex()),)
        assert found.snp == ((4, LAUNCH.hex()),)
        assert found.made == NOW - 100
        assert len(found.root) == 64


def test_an_unsigned_or_foreign_endorsement_proves_nothing() -> None:
    own = certificate("GCE-cc-tcb-root", OTHER_KEY, "GCE-cc-tcb-root", OTHER_KEY)
    theirs = certificate("GCE-uefi-signer", SIGNER_KEY, "GCE-cc-tcb-root", OTHER_KEY)
    with pytest.raises(QuoteRootUntrusted):  # a root that names itself Google's
        verify_endorsement(endorsed(golden(theirs)), ROOT, now=NOW)
    assert verify_endorsement(endorsed(golden(theirs)), own, now=NOW).tdx
    with pytest.raises(QuoteRootUntrusted):
        verify_endorsement(field(1, golden(cert=b"")) + field(2, bytes(256)), ROOT, now=NOW)
    with pytest.raises(QuoteInvalid):  # a good certificate beside another key's signature
        verify_endorsement(endorsed(golden(), OTHER_KEY), ROOT, now=NOW)
    with pytest.raises(QuoteInvalid):
        verify_endorsement(field(1, golden()), ROOT, now=NOW)
    with pytest.raises(QuoteInvalid):
        verify_endorsement(endorsed(golden(), salt=20), ROOT, now=NOW)


@pytest.mark.parametrize("when", [-11, 11])
def test_a_certificate_outside_its_time_is_refused(when: int) -> None:
    with pytest.raises(CertificateChainInvalid):
        verify_endorsement(HONEST, ROOT, now=NOW + when * 86400)


def test_a_certificate_for_something_else_is_refused() -> None:
    issuing = certificate("GCE-other", SIGNER_KEY, "GCE-cc-tcb-root", ROOT_KEY, signs=False)
    with pytest.raises(CertificateChainInvalid):
        verify_endorsement(endorsed(golden(issuing)), ROOT, now=NOW)


SHORT = field(8, field(2, field(3, MRTD[:47])))
TWICE = field(7, 2 * field(2, field(1, 4) + field(2, LAUNCH)))


@pytest.mark.parametrize(
    "signed",
    [
        golden(tdx=SHORT),
        golden(snp=TWICE),
        golden(digest=field(5, bytes(48)) * 2),
        golden(tdx=field(8, 1)),
        golden(tdx=b"\x42\x7f"),
        golden(tdx=b"\xff" * 11),
        golden(tdx=b"\x43"),
        golden(tdx=b"\x00\x00"),
    ],
)
def test_another_form_is_refused_though_it_is_signed(signed: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        verify_endorsement(endorsed(signed), ROOT, now=NOW)


def test_every_cut_and_every_flipped_byte_is_refused() -> None:
    for at in range(0, len(HONEST), 5):
        altered = HONEST[:at] + bytes([HONEST[at] ^ 1]) + HONEST[at + 1 :]
        for raw in (HONEST[:at], altered):
            with pytest.raises(EvidenceRefused):
                verify_endorsement(raw, ROOT, now=NOW)


@pytest.mark.parametrize("root", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----"])
def test_what_is_no_root_is_refused(root: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        verify_endorsement(HONEST, root, now=NOW)


def test_a_long_file_is_refused() -> None:
    with pytest.raises(EvidenceMalformed):
        verify_endorsement(HONEST + bytes(1 << 20), ROOT, now=NOW)


def test_the_command_asks_for_the_root(tmp_path: Path) -> None:
    (tmp_path / "e.binarypb").write_bytes(HONEST)
    words = ["image", "measure", "--google-endorsement", str(tmp_path / "e.binarypb")]
    assert isinstance(CliRunner().invoke(app, words).exception, UsageError)
