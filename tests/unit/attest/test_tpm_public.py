"""Quotes, logs and reports of other people's machines, verified by the room of TPM 2.0."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_public_key
from public_evidence import published

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    QuoteInvalid,
    ReportDataMismatch,
)
from sealtrain.attest.nitro.parse import NITRO_TPM, parse_document
from sealtrain.attest.nitro.verify import verify_document
from sealtrain.attest.roots import GOOGLE_EKAK_ROOT_SHA256
from sealtrain.attest.tpm.chain import verify_key_chain
from sealtrain.attest.tpm.hcl import check_runtime, parse_hcl
from sealtrain.attest.tpm.log import check_replay, parse_log
from sealtrain.attest.tpm.quote import (
    BANK_BYTES,
    Bank,
    check_key,
    check_registers,
    check_signature,
    parse_quote,
)

pytestmark = pytest.mark.claim("C401")

NOW = 1_780_000_000
SEPARATOR = 4


def _ecdsa(der: bytes) -> bytes:
    """The fixtures hold signatures in DER; a TPM writes two numbers behind their lengths."""
    halves = (half.to_bytes(32, "big") for half in decode_dss_signature(der))
    return b"\0\x18\0\x0b" + b"".join(struct.pack(">H", 32) + half for half in halves)


def _fixture(name: str, bank: Bank) -> tuple[dict[str, Any], bytes, bytes, dict[int, bytes]]:
    document = json.loads(published(name))
    shown = document["attestation"]["tpm"]["ecc_p256"]
    pcrs = {int(index): bytes.fromhex(value) for index, value in document["pcrs"][bank].items()}
    return (
        document,
        bytes.fromhex(shown["attest_data"]),
        _ecdsa(bytes.fromhex(shown["signature"])),
        pcrs,
    )


@pytest.mark.parametrize("tee", ["TDX", "SEV-SNP"])
def test_google_vtpm(tee: str) -> None:
    """Chain to the pinned root, signature, nonce, and the digest over all 24 registers."""
    document, message, signature, pcrs = _fixture(
        f"the vTPM of a Google machine with {tee}", "sha256"
    )
    pem = document["attestation"]["gcp"]["ak_cert_chain"].encode("ascii")
    chain = tuple(
        certificate.public_bytes(Encoding.DER)
        for certificate in x509.load_pem_x509_certificates(pem)
    )
    found = verify_key_chain(chain, simulator_root=None, now=NOW)
    assert not found.simulated
    assert found.machine.production
    assert found.machine.zone.startswith("us-central1-")
    assert found.machine.project == "lockboot"
    quote = parse_quote(message)
    assert quote.qualifying_data.hex() == document["nonce"]
    assert (quote.bank, quote.selection) == ("sha256", tuple(range(24)))
    check_registers(quote, pcrs)
    check_signature(quote, signature, found.key)
    altered = bytearray(message)
    altered[-1] ^= 1
    with pytest.raises(QuoteInvalid):
        check_signature(parse_quote(bytes(altered)), signature, found.key)


def test_nitro_tpm_quote() -> None:
    """A NitroTPM's quote is of the SHA-384 bank; its key is in no certificate."""
    document, message, signature, pcrs = _fixture("a NitroTPM without Secure Boot", "sha384")
    point = document["ak_pubkeys"]["ecc_p256"]
    numbers = ec.EllipticCurvePublicNumbers(
        int(point["x"], 16), int(point["y"], 16), ec.SECP256R1()
    )
    quote = parse_quote(message)
    assert quote.qualifying_data.hex() == document["nonce"]
    assert (quote.bank, quote.selection) == ("sha384", tuple(range(24)))
    check_registers(quote, pcrs)
    check_signature(quote, signature, check_key(numbers.public_key()))


def test_nitro_tpm_document() -> None:
    """Of a real instance: chain to AWS's root, signature, registers; no enclave's document."""
    document = json.loads(published("a NitroTPM without Secure Boot"))
    raw = bytes.fromhex(document["attestation"]["nitro"]["document"])
    made = parse_document(raw, NITRO_TPM).timestamp_ms // 1000
    found = verify_document(raw, simulator_root=None, now=made, form=NITRO_TPM)
    assert not found.simulated
    assert found.module_id.startswith(f"{found.parent_id}-tpm")
    assert dict(found.pcrs) == {int(i): value for i, value in document["pcrs"]["sha384"].items()}
    with pytest.raises(CertificateChainInvalid):
        verify_document(raw, simulator_root=None, now=made + 4 * 3600, form=NITRO_TPM)
    with pytest.raises(EvidenceMalformed):
        parse_document(raw)


def test_quote_by_itself() -> None:
    """Parsed to what its publisher says of it."""
    quote = parse_quote(published("a quote of a TPM by itself"))
    assert quote.qualifying_data == bytes.fromhex("12345678")
    assert (quote.resets, quote.restarts, quote.safe) == (16, 0, True)
    assert (quote.bank, quote.selection) == ("sha256", (0, 1, 2))


def test_pinned_root() -> None:
    """The pin is the file that dstack publishes."""
    root = x509.load_pem_x509_certificate(published("Google's root of vTPM keys"))
    der = root.public_bytes(Encoding.DER)
    assert hashlib.sha256(der).hexdigest() == GOOGLE_EKAK_ROOT_SHA256


def test_google_boot_log() -> None:
    """Replayed whole; events by register and type, whose data the digest covers."""
    log = parse_log(published("a boot log of a Google machine"))
    assert log.banks == ("sha1", "sha256", "sha384")
    assert len(log.events) == 43
    quoted = {index: log.replay(index, "sha256") for index in range(24)}
    assert quoted[0].hex().startswith("0cca9ec161b09288")  # Google's firmware 2 with TDX
    check_replay(log, "sha256", quoted, range(8))
    for register in range(8):
        (separator,) = log.find(register, SEPARATOR)
        assert separator.shows_data("sha256")
        assert separator.shows_data("sha384")


def test_azure_quote() -> None:
    """RSASSA under the published key, the digest over 24 registers."""
    raw = published("a quote of an Azure vTPM")
    signature, message = raw[8 : 8 + 256], raw[8 + 256 + 8 :]
    size = int.from_bytes(raw[8 + 256 : 8 + 256 + 8], "little")
    message, rest = message[:size], message[size:]
    count = int.from_bytes(rest[:8], "little")
    values, at = {}, 8
    for index in range(count):
        values[index] = rest[at : at + 32]
        at += 32
    quote = parse_quote(message)
    assert quote.qualifying_data == b"challenge"
    assert at == len(rest)
    check_registers(quote, values)
    key = check_key(load_pem_public_key(published("the key of an Azure vTPM")))
    wrapped = b"\0\x14\0\x0b" + struct.pack(">H", len(signature)) + signature
    check_signature(quote, wrapped, key)
    with pytest.raises(QuoteInvalid):
        check_signature(
            quote, wrapped, parse_hcl(published("an HCL report on SEV-SNP")).runtime.key
        )


@pytest.mark.parametrize(("name", "secure"), [("SEV-SNP", True), ("TDX", False)])
def test_azure_hcl_report(name: str, secure: bool) -> None:
    """Report data are SHA-256 of the runtime data; the other machine's are not."""
    report = parse_hcl(published(f"an HCL report on {name}"))
    check_runtime(report.runtime, report.report_data)
    assert isinstance(report.runtime.key, rsa.RSAPublicKey)
    assert report.runtime.secure_boot is secure
    other = {"SEV-SNP": "TDX", "TDX": "SEV-SNP"}[name]
    with pytest.raises(ReportDataMismatch):
        check_runtime(report.runtime, parse_hcl(published(f"an HCL report on {other}")).report_data)


def test_banks_have_their_lengths() -> None:
    """What the fixtures rely on."""
    assert {bank: hashlib.new(bank).digest_size for bank in BANK_BYTES} == dict(BANK_BYTES)
