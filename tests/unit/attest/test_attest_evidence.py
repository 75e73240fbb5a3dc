"""Evidence documents and report data: canonical, bounded, domain-separated."""

from __future__ import annotations

import hashlib
import json

import pytest

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.evidence import MAX_LOG_ENTRIES, Evidence
from sealtrain.attest.report_data import report_data
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_800_000_000


@pytest.fixture
def evidence(guest: SimulatedGuest, pki: SimulatedPki) -> Evidence:
    return guest.evidence(report_data("unit", {}), collateral=pki.collateral(NOW))


def test_report_data_is_the_documented_hash() -> None:
    expected = hashlib.sha512(b'sealtrain/release/v1:{"a":1,"b":"x"}').digest()
    assert report_data("release", {"b": "x", "a": 1}) == expected


def test_report_data_separates_purposes_and_transcripts() -> None:
    values = {report_data(purpose, t) for purpose in ("release", "renew") for t in ({}, {"a": 1})}
    assert len(values) == 4


@pytest.mark.parametrize("purpose", ["", "Release", "a b", "a/v1:", "-a", "a" * 64, "é"])
def test_a_purpose_that_could_blur_the_prefix_is_refused(purpose: str) -> None:
    with pytest.raises(DataInvalid):
        report_data(purpose, {})


def test_evidence_survives_its_bytes(evidence: Evidence) -> None:
    data = evidence.to_bytes()
    again = Evidence.from_bytes(data)
    assert again == evidence
    assert again.to_bytes() == data
    assert evidence.digest == hashlib.sha256(data).hexdigest()


def test_evidence_keeps_the_deployment_document_byte_for_byte(guest: SimulatedGuest) -> None:
    evidence = guest.evidence(bytes(64), collateral=None)
    assert evidence.cpu.app_compose_bytes == guest.compose


def test_another_spelling_of_the_same_document_is_refused(evidence: Evidence) -> None:
    spaced = json.dumps(evidence.to_dict()).encode()
    for data in (spaced, evidence.to_bytes() + b"\n", b"", b"{", b"\xff", b"[" * 5000):
        with pytest.raises(EvidenceMalformed):
            Evidence.from_bytes(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 1),
        ("version", True),
        ("platform", "nitro"),
        ("platform", "cloud"),
        ("cpu", {}),
        ("gpu", {}),
        ("collateral", {}),
        ("gpu_collateral", {"rims": {}, "ocsp": [], "nras": None}),
        ("surprise", 1),
    ],
)
def test_a_field_of_another_form_is_refused(evidence: Evidence, name: str, value: object) -> None:
    with pytest.raises(EvidenceMalformed):
        Evidence.from_bytes(canonical_json({**evidence.to_dict(), name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tee", "nitro"),
        ("tee", "sgx"),
        ("quote", "AAA"),
        ("quote", "AA==\n"),
        ("quote", "AAB="),
        ("quote", "A" * 100_000),
        ("event_log", []),
        ("event_log", [{}]),
        ("app_compose", ""),
        ("app_compose", 7),
        ("vm_config", {}),
        ("surprise", 1),
    ],
)
def test_a_part_of_another_form_is_refused(evidence: Evidence, name: str, value: object) -> None:
    document = evidence.to_dict()
    document["cpu"][name] = value
    with pytest.raises(EvidenceMalformed):
        Evidence.from_bytes(canonical_json(document))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("imr", 4),
        ("imr", -1),
        ("event_type", 1 << 32),
        ("digest", "ab"),
        ("digest", "AB" * 48),
        ("event", "x" * 257),
        ("event_payload", "abc"),
        ("event_payload", "ab" * (65 << 10)),
        ("version", 3),
    ],
)
def test_a_log_entry_of_another_form_is_refused(
    evidence: Evidence, name: str, value: object
) -> None:
    document = evidence.to_dict()
    document["cpu"]["event_log"][0][name] = value
    with pytest.raises(EvidenceMalformed):
        Evidence.from_bytes(canonical_json(document))


def test_a_log_over_the_limit_is_refused(evidence: Evidence) -> None:
    document = evidence.to_dict()
    document["cpu"]["event_log"] = [document["cpu"]["event_log"][0]] * (MAX_LOG_ENTRIES + 1)
    with pytest.raises(EvidenceMalformed):
        Evidence.from_bytes(canonical_json(document))


def test_a_document_that_is_not_text_is_refused(guest: SimulatedGuest) -> None:
    with pytest.raises(EvidenceMalformed):
        Evidence.build(
            "simulator", tee="tdx", quote=to_base64(guest.quote(bytes(64))), app_compose=b"\xff\xfe"
        )
