"""Evidence inside certificates, and the older attestation blob."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier
from guests import verify_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.attest.dstack.msgpack import pack
from sealtrain.attest.dstack.parse import log_entries, parse_attestation
from sealtrain.attest.dstack.ratls import evidence_of_certificate, ratls_report_data
from sealtrain.attest.errors import (
    EvidenceMalformed,
    PlatformMismatch,
    QuoteInvalid,
    ReportDataMismatch,
)
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.guest import SimulatedGuest

ARC = "1.3.6.1.4.1.62397.1"
bounded = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
KEY = ec.derive_private_key(7, ec.SECP256R1())
SPKI = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def octets(value: bytes) -> bytes:
    """DER OCTET STRING."""
    size = len(value)
    if size < 0x80:
        return bytes([4, size]) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([4, 0x80 | len(length)]) + length + value


def certificate(extensions: dict[int, bytes], *, wrap: Callable[[bytes], bytes] = octets) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "guest")])
    builder = x509.CertificateBuilder(
        name,
        name,
        KEY.public_key(),
        1,
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2036, 1, 1, tzinfo=UTC),
    )
    for number, value in extensions.items():
        oid = ObjectIdentifier(f"{ARC}.{number}")
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, wrap(value)), False)
    return builder.sign(KEY, hashes.SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER)


@pytest.fixture(scope="module")
def quote(guest: SimulatedGuest) -> bytes:
    return guest.quote(ratls_report_data(SPKI))


@pytest.fixture(scope="module")
def log(guest: SimulatedGuest) -> bytes:
    return json.dumps(guest.event_log()).encode()


@pytest.fixture(scope="module")
def blob(guest: SimulatedGuest) -> bytes:
    return guest.attestation(ratls_report_data(SPKI))


def zipped(data: bytes) -> bytes:
    return b"ELGZv1" + gzip.compress(data)


def test_quote_and_log_of_a_certificate(guest: SimulatedGuest, quote: bytes, log: bytes) -> None:
    fields = {1: quote, 2: log, 3: guest.app_id, 4: b"app:custom"}
    for text in (log, zipped(log)):
        found = evidence_of_certificate(certificate({**fields, 2: text}))
        assert found.quote == quote
        assert found.public_key == SPKI
        assert found.event_log == log_entries(guest.event_log())
        assert (found.app_id, found.usage) == (guest.app_id.hex(), "app:custom")
        assert (found.vm_config, found.app_info) == (None, None)
        parsed = parse_quote(found.quote)
        assert parsed.report_data == found.report_data == ratls_report_data(SPKI)
        verify_log(found.event_log, parsed.rtmr, parsed.mr_config_id, guest.compose)


def test_a_versioned_attestation_in_a_certificate(
    guest: SimulatedGuest, quote: bytes, blob: bytes
) -> None:
    info = {"app_id": guest.app_id, "name": "unit"}
    for value in (blob, zipped(blob)):
        found = evidence_of_certificate(certificate({8: value, 9: pack(info)}))
        assert (found.quote, found.app_info) == (quote, info)
        assert found.vm_config == guest.vm_config()
        assert [entry.event for entry in found.event_log][-1] == "system-ready"
    both = evidence_of_certificate(certificate({1: quote, 8: blob}))
    assert both.quote == quote


def test_platform_padding_is_cut(quote: bytes, log: bytes) -> None:
    padded = certificate({1: quote.ljust(5006, b"\0"), 2: log})
    assert evidence_of_certificate(padded).quote == quote


@pytest.mark.negative(8)
def test_a_quote_made_for_another_key_is_refused(guest: SimulatedGuest, log: bytes) -> None:
    """Copying a genuine guest's evidence into one's own certificate is the obvious attack."""
    other = ec.derive_private_key(8, ec.SECP256R1()).public_key()
    spki = other.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    right = ratls_report_data(SPKI)
    for data in (ratls_report_data(spki), bytes(64), right[:32] + bytes(32)):
        with pytest.raises(ReportDataMismatch):
            evidence_of_certificate(certificate({1: guest.quote(data), 2: log}))
        with pytest.raises(ReportDataMismatch):
            evidence_of_certificate(certificate({8: guest.attestation(data)}))


def test_two_quotes_that_differ_are_refused(guest: SimulatedGuest, blob: bytes) -> None:
    with pytest.raises(EvidenceMalformed, check=carries(check="RA-TLS")):
        evidence_of_certificate(certificate({1: guest.quote(bytes(64)), 8: blob}))


def test_what_carries_no_evidence_is_refused(quote: bytes, log: bytes) -> None:
    for fields in ({}, {1: quote}, {2: log}, {3: b"app", 9: pack({})}):
        with pytest.raises(EvidenceMalformed, check=carries(check="RA-TLS")):
            evidence_of_certificate(certificate(fields))


@pytest.mark.parametrize("der", [b"", b"\x30\x00", b"certificate", b"\0" * (300 << 10)])
def test_what_is_no_certificate_is_refused(der: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        evidence_of_certificate(der)


def test_bytes_after_a_certificate_are_refused(quote: bytes, log: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        evidence_of_certificate(certificate({1: quote, 2: log}) + b"\0")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: value,
        lambda value: octets(value) + b"\0",
        lambda value: b"\x24" + octets(value)[1:],
        lambda value: b"\x04\x80" + octets(value) + b"\0\0",
        lambda value: b"\x04\x84" + len(value).to_bytes(4, "big") + value,
    ],
    ids=["bare", "prolonged", "constructed", "indefinite", "long length"],
)
def test_an_extension_in_another_encoding_is_refused(
    quote: bytes, log: bytes, wrap: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(EvidenceMalformed):
        evidence_of_certificate(certificate({1: quote, 2: log}, wrap=wrap))


def test_packed_evidence_unpacks_within_limits(quote: bytes, log: bytes) -> None:
    packed = zipped(log)
    for value in (
        packed[:-9],
        packed + b"\0",
        packed + gzip.compress(b"x"),
        b"ELGZv1",
        b"ELGZv1" + zlib.compress(log),
        zipped(b" " * (1 << 26)),
        b"[" + b" " * (17 << 10) + b"]",
    ):
        with pytest.raises(EvidenceMalformed):
            evidence_of_certificate(certificate({1: quote, 2: value}))


@pytest.mark.parametrize(
    ("number", "value"),
    [(2, b"\xff"), (2, b"{}"), (8, b""), (8, b"\xc1"), (9, b"\x01"), (4, b"\xff")],
)
def test_a_malformed_part_is_refused(quote: bytes, log: bytes, number: int, value: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        evidence_of_certificate(certificate({1: quote, 2: log, number: value}))
    with pytest.raises(QuoteInvalid):
        evidence_of_certificate(certificate({1: quote[:700], 2: log}))


@bounded
@given(data=st.data())
def test_no_damaged_certificate_gets_past_with_an_untyped_error(
    data: st.DataObject, quote: bytes, log: bytes
) -> None:
    der = bytearray(certificate({1: quote, 2: log}))
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(len(der) // 2, len(der)))
    with suppress(EvidenceRefused):
        evidence_of_certificate(bytes(der[:cut]))


# --- The older blob ----------------------------------------------------------------------------


def compact(value: int) -> bytes:
    if value < 1 << 6:
        return bytes([value << 2])
    if value < 1 << 14:
        return (value << 2 | 1).to_bytes(2, "little")
    return (value << 2 | 2).to_bytes(4, "little")


def vector(value: bytes) -> bytes:
    return compact(len(value)) + value


def scale(guest: SimulatedGuest, **changed: Any) -> bytes:
    parts: dict[str, Any] = {
        "variant": 0,
        "quote": guest.quote(bytes(64)),
        "events": guest.event_log(),
        "config": guest.vm_config().encode(),
    } | changed
    log = parts["events"]
    runtime = [entry for entry in log if entry["imr"] == 3]
    google = vector(b"") * 2 + compact(0) + vector(b"") + b"\1" + compact(0)
    if parts["variant"] == 4:
        return b"".join(
            (
                b"\0\4" + vector(b"document") + compact(1),
                vector(b"app-id") + vector(b"\x0a") + bytes(64) + vector(parts["config"]),
            )
        )
    return b"".join(
        (
            bytes([0, parts["variant"]]),
            vector(parts["quote"]),
            compact(len(log)),
            *(
                struct.pack("<II", entry["imr"], entry["event_type"])
                + vector(bytes.fromhex(entry["digest"]))
                + vector(entry["event"].encode())
                + vector(bytes.fromhex(entry["event_payload"]))
                for entry in log
            ),
            google if parts["variant"] == 1 else b"",
            compact(len(runtime)),
            *(
                vector(entry["event"].encode()) + vector(bytes.fromhex(entry["event_payload"]))
                for entry in runtime
            ),
            bytes(64),
            vector(parts["config"]),
        )
    )


def test_both_versions_of_the_blob_say_the_same(guest: SimulatedGuest) -> None:
    assert parse_attestation(scale(guest)) == parse_attestation(guest.attestation(bytes(64)))
    assert parse_attestation(scale(guest, variant=1)) == parse_attestation(scale(guest))


def test_an_upstream_blob_replays_to_its_quote(shared: Path) -> None:
    """Written by dstack's own simulator. Its deployment document is another one."""
    data = (shared / "vectors/dstack/simulator-head/attestation.bin").read_bytes()
    quote, log, config, report_data = parse_attestation(data)
    parsed = parse_quote(canonical_quote(quote))
    assert len(report_data) == 64
    assert "dstack-0.6.0" in config
    with pytest.raises(EvidenceRefused) as caught:
        verify_log(log, parsed.rtmr, parsed.mr_config_id, b"{}")
    assert caught.value.code == "compose-hash-mismatch"  # replay and rules come before


def test_damaged_blobs_are_refused(guest: SimulatedGuest) -> None:
    whole = scale(guest)
    refused = [whole[:cut] for cut in range(0, len(whole), 97)]
    refused += [whole + b"\0", whole[:-1], b"\0", b"\0\0", b"\0\0\x03", b"\0" * (11 << 20)]
    refused.append(scale(guest, variant=9))
    refused += [scale(guest, config=b"\xff"), scale(guest, events=[])]
    refused.append(whole.replace(vector(b"app-id"), b"\x19\0app-id"))  # not the shortest length
    refused.append(b"\0\0" + compact((1 << 30) - 1) + b"x")
    for data in refused:
        with pytest.raises(EvidenceMalformed):
            parse_attestation(data)
    for variant in (2, 3, 4):
        with pytest.raises(PlatformMismatch):
            parse_attestation(scale(guest, variant=variant))


@bounded
@given(data=st.data())
def test_no_blob_of_any_bytes_escapes_with_an_untyped_error(
    data: st.DataObject, guest: SimulatedGuest
) -> None:
    whole = bytearray(scale(guest))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(1, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(EvidenceRefused):
        parse_attestation(bytes(whole))
