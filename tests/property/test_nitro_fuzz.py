"""Whatever arrives, the Nitro parsers answer with a document or an error of their own tree."""

from __future__ import annotations

import time
import tracemalloc
from datetime import UTC
from typing import Any

import cbor2
import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric import rsa
from fuzzing import mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from nitro_world import ASKED, PKI, enclave, fields, forge, genuine, verified
from variants import examples

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.nitro.cbor import decode, encode
from sealtrain.attest.nitro.collect import attestation, describe_pcr
from sealtrain.attest.nitro.parse import parse_document
from sealtrain.errors import EvidenceRefused, KmsAnswerInvalid
from sealtrain.keys.awskms import open_answer

bounded = settings(max_examples=examples(60), deadline=None)
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
IDENTITY = verified(genuine()).quote_identity

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=60)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 40), inner, max_size=4)
    ),
    max_leaves=12,
)
FOREIGN = st.recursive(
    LEAVES | st.floats() | st.datetimes() | st.decimals() | st.integers(2**64, 2**80),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@bounded
@given(data=st.binary(max_size=600) | mutated(genuine()))
def test_any_document_has_the_signed_identity_or_is_refused(data: bytes) -> None:
    try:
        facts = verified(data)
    except EvidenceRefused:
        return
    assert facts.quote_identity == IDENTITY


@bounded
@given(payload=mutated(cbor2.dumps(fields(genuine()))) | st.binary(max_size=400))
def test_any_payload_ends_in_a_document_or_in_its_own_error(payload: bytes) -> None:
    forged = forge(payload=payload)
    try:
        document = parse_document(forged.document)
    except EvidenceMalformed:
        return
    assert {len(value) for value in document.pcrs.values()} == {48}
    assert {0, 1, 2} <= set(document.pcrs) <= set(range(32))


@bounded
@given(name=st.sampled_from(sorted(fields(genuine()))), value=VALUES)
def test_any_value_in_any_field_is_read_exactly_or_refused(name: str, value: Any) -> None:
    forged = forge(**{name: value})
    try:
        document = parse_document(forged.document)
    except EvidenceMalformed:
        return
    if name in {"user_data", "nonce", "public_key", "module_id", "certificate"}:
        assert getattr(document, name) == value
    elif name == "timestamp":
        assert document.timestamp_ms == value
    elif name == "digest":
        assert value == "SHA384"


@bounded
@given(outer=st.lists(VALUES, max_size=5) | VALUES)
def test_any_outer_array_is_refused(outer: Any) -> None:
    with pytest.raises(EvidenceMalformed):
        parse_document(cbor2.dumps(outer))


@bounded
@given(value=VALUES)
def test_what_was_encoded_decodes_to_the_same(value: Any) -> None:
    assert decode(encode(value), "value") == value
    for cut in range(0, len(encode(value)), 3):
        with pytest.raises(EvidenceMalformed):
            decode(encode(value)[:cut], "value")
    with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
        decode(encode(value) + b"\0", "value")


@bounded
@given(data=st.binary(max_size=200))
def test_what_is_accepted_reads_as_the_library_reads_it(data: bytes) -> None:
    try:
        value = decode(data, "value")
    except EvidenceMalformed:
        return
    assert cbor2.loads(data) == value


@bounded
@given(value=FOREIGN)
def test_what_the_module_never_writes_is_refused(value: Any) -> None:
    data = cbor2.dumps(value, datetime_as_timestamp=True, timezone=UTC)
    try:
        found = decode(data, "value")
    except EvidenceMalformed:
        return
    assert cbor2.dumps(found) == data


@bounded
@given(answer=st.binary(max_size=200) | VALUES.map(cbor2.dumps))
def test_any_answer_of_a_module_ends_in_a_value_or_in_its_own_error(answer: bytes) -> None:
    for ask in (lambda nsm: attestation(nsm, user_data=ASKED), lambda nsm: describe_pcr(nsm, 0)):
        try:
            ask(lambda _: answer)
        except (EvidenceMalformed, GuestApiUnreachable):
            continue


@bounded
@given(
    request=st.binary(max_size=60)
    | st.dictionaries(
        st.sampled_from(["Attestation", "ExtendPCR", "LockPCR", "DescribePCR", "Else"]),
        VALUES | st.fixed_dictionaries({"index": st.integers(0, 40), "data": VALUES}),
        max_size=2,
    ).map(cbor2.dumps)
)
def test_a_simulated_module_answers_every_request(request: bytes) -> None:
    answer = cbor2.loads(enclave()(request))
    name = next(iter(answer)) if isinstance(answer, dict) else answer
    assert name in {"Attestation", "ExtendPCR", "LockPCR", "DescribePCR", "Error"}


@bounded
@given(data=st.binary(max_size=300))
def test_any_answer_of_a_kms_is_refused_in_its_own_words(data: bytes) -> None:
    with pytest.raises(KmsAnswerInvalid):
        open_answer(data, KEY)


HUGE = b"\xff" * 8
HOSTILE = {
    "nested arrays": b"\x81" * 9000,
    "nested open arrays": b"\x9f" * 16000,
    "nested maps": b"\xa1\x00" * 8000,
    "nested tags": b"\xc1" * 9000 + b"\x00",
    "array of 2^64": b"\x9b" + HUGE,
    "map of 2^64": b"\xbb" + HUGE,
    "bytes of 2^64": b"\x5b" + HUGE,
    "text of 2^63": b"\x7b\x7f" + HUGE[1:],
    "arrays of 2^32 in turn": b"\x9a\xff\xff\xff\xff" * 3000,
    "wide": b"\x99\x3e\x80" + b"\xf6" * 16000,
    "big number": b"\xc2\x59\x3f\x00" + b"\xff" * 16128,
    "decimal with a huge exponent": b"\xc4\x82\x1a\x7f\xff\xff\xff\x01",
    "regular expression": b"\xd8\x23\x78\x19" + b"(a{65535}){65535}(a+)+b$x",
    "shared value within itself": b"\xd8\x1c\x81\xd8\x1d\x00",
    "string references": b"\xd9\x01\x00\x82\x61a\xd8\x19\x00",
    "half float": b"\xf9\x7e\x00",
    "double": b"\xfb" + bytes(8),
    "undefined": b"\xf7",
    "simple value": b"\xf8\xff",
    "break alone": b"\xff",
    "break in a map's middle": b"\xbf\x00\xff",
    "break in a closed array": b"\x82\x00\xff",
    "chunks": b"\x5f" + b"\x41\x00" * 8000 + b"\xff",
    "chunks of chunks": b"\x5f\x5f\x41\x00\xff\xff",
    "reserved length": b"\x1c",
    "map as a key": b"\xa1\xa0\x00",
    "array as a key": b"\xa1\x81\x80\x00",
    "text that is no UTF-8": b"\x62\xc3\x28",
    "nothing": b"",
}


@pytest.mark.negative(31)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cbor_is_refused_in_bounded_time_and_memory(name: str) -> None:
    data = HOSTILE[name]
    forged = forge(payload=data).document if len(data) < 12_000 else data
    tracemalloc.start()
    started = time.thread_time()
    try:
        for value in (data, forged):
            with pytest.raises(EvidenceMalformed):
                verified(value)
        if name not in ("wide", "map as a key", "array as a key"):
            with pytest.raises(EvidenceMalformed):
                decode(data, "value")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.thread_time() - started < 1
    assert peak < 4 << 20


def test_the_root_is_what_the_fuzzers_verify_under() -> None:
    """Otherwise every refusal above could be that of a foreign root."""
    assert verified(genuine(), simulator_root=PKI.root_der).quote_identity == IDENTITY
