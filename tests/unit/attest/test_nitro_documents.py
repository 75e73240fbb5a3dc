"""Documents of real enclaves: accepted at their times, refused outside, no byte of them free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from nitro_world import PKI, fields

from sealtrain.attest.errors import CertificateChainInvalid, EvidenceMalformed, QuoteRootUntrusted
from sealtrain.attest.nitro.parse import parse_document
from sealtrain.attest.nitro.verify import extend, verify_document
from sealtrain.base.clock import from_rfc3339
from sealtrain.errors import EvidenceRefused

pytestmark = pytest.mark.claim("C16")

POSITIVE = (
    "prod_2022_pcr8",
    "debug_2023",
    "debug_2024_userdata_nonce",
    "prod_2025_pubkey",
    "prod_2026_indefinite_map",
)
# Every byte of five documents would be 22,000 signatures or 25 s. A stride that shares no factor
# with the lengths of registers and names, begun elsewhere in each document, still meets every field
# of the form; the COSE header and the signature are met byte by byte.
STRIDE = 17


@pytest.fixture(params=POSITIVE)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def raw(shared: Path, name: str) -> bytes:
    return (shared / f"vectors/nitro/{name}.cose").read_bytes()


@pytest.fixture
def known(shared: Path, name: str) -> dict[str, Any]:
    listed: dict[str, Any] = json.loads((shared / "vectors/nitro/expected.json").read_text())
    return listed[f"{name}.cose"]


def seconds(text: str) -> int:
    return from_rfc3339(text.replace("+00:00", "Z"))


def test_a_real_document_says_what_it_said(raw: bytes, known: dict[str, Any]) -> None:
    facts = verify_document(raw, simulator_root=None, now=known["timestamp_ms"] // 1000)
    document = facts.document
    assert (facts.simulated, facts.debug) == (False, known["debug_mode"])
    assert document.module_id == known["module_id"]
    assert document.timestamp_ms == known["timestamp_ms"]
    assert len(document.pcrs) == known["n_pcrs"]
    assert {index: document.pcr(int(index)) for index in known["pcrs"]} == known["pcrs"]
    for field in ("public_key", "user_data", "nonce"):
        value = getattr(document, field)
        assert (None if value is None else value.hex()) == known[field]
    assert document.unknown_fields == ()
    assert document.pcrs[4] == extend(bytes(48), document.parent_id.encode())
    assert document.enclave_id == known["module_id"][-16:]


def test_a_real_document_holds_while_its_certificates_do(raw: bytes, known: dict[str, Any]) -> None:
    first, last = seconds(known["chain_valid_from"]), seconds(known["chain_valid_to"])
    facts = verify_document(raw, simulator_root=None, now=first)
    assert (facts.valid_from, facts.valid_until) == (first, last)
    assert verify_document(raw, simulator_root=None, now=last)
    for now in (first - 1, last + 1, 0, 1 << 40):
        with pytest.raises(CertificateChainInvalid):
            verify_document(raw, simulator_root=None, now=now)


def test_a_real_document_is_refused_under_another_root(raw: bytes, known: dict[str, Any]) -> None:
    with pytest.raises(QuoteRootUntrusted):
        verify_document(raw, simulator_root=PKI.root_der, now=known["timestamp_ms"] // 1000)


def test_the_pinned_root_is_the_published_one(shared: Path) -> None:
    from cryptography.x509 import load_pem_x509_certificate

    from sealtrain.attest.nitro.chain import AWS_NITRO_ROOT_SHA256
    from sealtrain.base.digests import sha256_hex

    pem = (shared / "vectors/nitro/aws_nitro_root_g1.pem").read_bytes()
    from cryptography.hazmat.primitives.serialization import Encoding

    der = load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    assert sha256_hex(der) == AWS_NITRO_ROOT_SHA256


def test_no_flipped_byte_of_a_real_document_is_accepted(
    raw: bytes, known: dict[str, Any], name: str
) -> None:
    now = known["timestamp_ms"] // 1000
    start = POSITIVE.index(name) * 3
    edges = {*range(12), *range(len(raw) - 98, len(raw))}
    for at in sorted({*range(start, len(raw), STRIDE), *edges}):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(EvidenceRefused):
            verify_document(bytes(flipped), simulator_root=None, now=now)


def test_no_flipped_bit_of_the_outer_form_is_accepted(raw: bytes, known: dict[str, Any]) -> None:
    """Heads are not signed: all bits of array, header, payload's and signature's length."""
    now = known["timestamp_ms"] // 1000
    for at in (*range(10), len(raw) - 98, len(raw) - 97):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            with pytest.raises(EvidenceRefused):
                verify_document(bytes(flipped), simulator_root=None, now=now)


def test_no_shortened_document_is_accepted(raw: bytes) -> None:
    for length in {*range(0, len(raw), 23), *range(100), *range(len(raw) - 100, len(raw))}:
        with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
            parse_document(raw[:length])


def test_a_document_above_the_limit_is_refused_unread() -> None:
    with pytest.raises(EvidenceMalformed, check=carries(check="document form", got="16385 bytes")):
        parse_document(bytes((16 << 10) + 1))


def test_unknown_fields_are_named_and_kept_apart() -> None:
    """The next version of the module may say more; the signature covers it, we do not know it."""
    from nitro_world import forge, verified

    forged = forge(weather={"sun": [1, 2]}, another=None)
    facts = verified(forged.document, simulator_root=forged.root)
    assert facts.signed.unknown_fields == ("another", "weather")
    from nitro_world import NOW, claims_of, policy

    claim = claims_of(facts, policy(), NOW)[-1]
    assert (claim.name, claim.got, claim.outcome) == ("unknown fields", "another, weather", "any")


def test_absent_and_null_fields_are_the_same() -> None:
    from nitro_world import forge, verified

    for forged in (forge(nonce=None, public_key=None), forge(without=("nonce", "public_key"))):
        facts = verified(forged.document, simulator_root=forged.root)
        assert fields(forged.document).get("nonce") is None
        assert len(facts.report_data) == 64
