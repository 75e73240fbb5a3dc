"""Whatever arrives, attestation answers with evidence, a verdict, or an error of its own tree."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fuzzing import JSON, mutated, put_somewhere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.attest.dstack.msgpack import pack, unpack
from sealtrain.attest.dstack.parse import parse_attestation, parse_event_log
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import EvidenceRefused, SealtrainError, TrustInvalid
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_800_000_000
PKI = SimulatedPki(b"property tests of attestation....")
GUEST = SimulatedGuest(PKI, Secret(b"\x03" * 32), b'{"name":"fuzz"}')
POLICY = insecure_simulator_policy(PKI.root_der)
COLLATERAL = PKI.collateral(NOW)
EVIDENCE = GUEST.evidence(bytes(64), collateral=COLLATERAL)
QUOTE = EVIDENCE.cpu.quote_bytes
ASKED = Binding("fuzz", {})
DOCUMENT = EVIDENCE.to_bytes()
ATTESTATION = GUEST.attestation(bytes(64))

bounded = settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@bounded
@given(data=st.binary(max_size=400) | mutated(DOCUMENT))
def test_a_document_is_evidence_in_its_one_form_or_refused(data: bytes) -> None:
    try:
        evidence = Evidence.from_bytes(data)
    except EvidenceRefused:
        return
    assert evidence.to_bytes() == data


@bounded
@given(path=st.integers(0, 10**6), value=JSON)
def test_any_value_anywhere_in_evidence_verifies_identically_or_is_refused(
    path: int, value: Any
) -> None:
    document = json.loads(DOCUMENT)
    key, before = put_somewhere(document, path, value)
    try:
        facts = verify(Evidence.from_bytes(canonical_json(document)), POLICY, NOW, binding=ASKED)
    except EvidenceRefused:
        return
    assert key == "vm_config" or value == before
    assert facts.compose_hash == GUEST.compose_hash.hex()


@bounded
@given(quote=mutated(QUOTE) | st.binary(max_size=900))
def test_any_quote_verifies_to_the_signed_values_or_is_refused(quote: bytes) -> None:
    document = json.loads(DOCUMENT)
    document["cpu"]["quote"] = to_base64(quote)
    try:
        facts = verify(Evidence.from_bytes(canonical_json(document)), POLICY, NOW, binding=ASKED)
    except EvidenceRefused:
        return
    assert facts.quote_identity == parse_quote(QUOTE).identity


@bounded
@given(data=st.binary(max_size=900) | mutated(QUOTE))
def test_quote_parsers_end_in_their_own_errors(data: bytes) -> None:
    for parse in (parse_quote, canonical_quote):
        try:
            parse(data)
        except EvidenceRefused:
            continue


@bounded
@given(data=st.binary(max_size=300) | mutated(ATTESTATION))
def test_attestation_blobs_end_in_their_own_errors(data: bytes) -> None:
    for parse in (unpack, parse_attestation):
        try:
            parse(data)
        except EvidenceRefused:
            continue


@bounded
@given(text=st.text(max_size=300) | st.builds(json.dumps, JSON))
def test_event_logs_end_in_their_own_errors(text: str) -> None:
    try:
        parse_event_log(text)
    except EvidenceRefused:
        return


@bounded
@given(value=JSON)
def test_what_was_packed_unpacks(value: Any) -> None:
    try:
        packed = pack(value)
    except (TypeError, ValueError):
        return  # negative integers: the writer needs none
    assert unpack(packed) == value


@bounded
@given(value=JSON, name=st.sampled_from(sorted(POLICY.to_dict())), inner=st.booleans())
def test_policies_end_in_their_own_error(value: Any, name: str, inner: bool) -> None:
    document = POLICY.to_dict()
    changed = {**document["cpu"], name: value} if inner else value
    try:
        policy = policy_from_dict({**document, "cpu" if inner else name: changed})
    except TrustInvalid:
        return
    assert policy_from_dict(policy.to_dict()) == policy


@bounded
@given(data=st.binary(max_size=600))
def test_keccak_agrees_with_an_independent_implementation(data: bytes) -> None:
    keccak = pytest.importorskip("Crypto.Hash.keccak")
    assert keccak256(data) == keccak.new(digest_bits=256, data=data).digest()


@pytest.mark.parametrize(
    "blob",
    [
        b"\x91" * 5000,  # nesting
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million items
        b"\xdf\xff\xff\xff\xff\xa1a",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffa",
        b"\xcb" + bytes(8),  # a float
        b"\xc7\x01\x01\x00",  # an extension
        b"\x82\xa1a\x01\xa1a\x02",  # a repeated key
        b"\x81\x01\x02",  # a key that is no text
        b"\xa1\xff",
        b"\xc0\xc0",
        b"",
    ],
)
def test_hostile_blobs_are_refused_at_once(blob: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(SealtrainError):
        unpack(blob)
    assert time.thread_time() - started < 2


def test_a_hostile_number_in_a_document_is_refused() -> None:
    with pytest.raises(EvidenceRefused):
        Evidence.from_bytes(b'{"version":' + b"1" * 100_000 + b"}")
    with pytest.raises(EvidenceRefused):
        parse_event_log("[" + "1" * 100_000 + "]")
