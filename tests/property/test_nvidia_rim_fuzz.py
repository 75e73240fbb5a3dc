"""Whatever arrives as NVIDIA's collateral ends in a value or a typed error, promptly."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia_world import NONCE, NOW, PKI, Service, answer, device_claims, digest, rim
from variants import examples

from sealtrain.attest.errors import (
    CertificateRevoked,
    EvidenceMalformed,
    ReferenceValueInvalid,
    RemoteVerdictRefused,
    RevocationUnknown,
)
from sealtrain.attest.nvidia.collateral import GpuCollateral, RemoteVerdict
from sealtrain.attest.nvidia.nras import verify_remote_verdict
from sealtrain.attest.nvidia.ocsp import check_answers
from sealtrain.attest.nvidia.rim import parse_rim, verify_rim

ROOT = PKI.rim_signer[-1].der
GENUINE = rim("590.12", {3: [digest("a")], 5: [digest("b"), digest("c")]})
VALUES = parse_rim(GENUINE).measurements
CHAIN = tuple(certificate.der for certificate in PKI.device("GH100", 0).chain)
SIGNERS = PKI.device("GH100", 0).chain
ANSWERS = [answer(SIGNERS[at].certificate, SIGNERS[at + 1]) for at in (1, 2, 3)]
SERVICE = Service()
VERDICT = SERVICE.verdict({"GPU-0": device_claims()})
BOUNDED = settings(max_examples=examples(60), deadline=2000)

_TOKENS = st.sampled_from(
    [
        '<SoftwareIdentity xmlns="http://standards.iso.org/iso/19770/-2/2015/schema.xsd">',
        "</SoftwareIdentity>",
        '<Meta colloquialVersion="1"/>',
        "<Payload>",
        "</Payload>",
        '<Resource type="Measurement" index="1" active="True" alternatives="1" size="48"/>',
        '<ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#">',
        "<ds:SignedInfo/>",
        "<ds:KeyInfo><ds:X509Data><ds:X509Certificate/></ds:X509Data></ds:KeyInfo>",
        "</ds:Signature>",
        "<!-- -->",
        "<![CDATA[",
        "]]>",
        "<?a b?>",
        "&amp;",
        "&#0;",
        "&a;",
        "<!DOCTYPE a>",
        "\ufeff",
        "\0",
    ]
)


def judged(xml: bytes) -> Any:
    try:
        return verify_rim(xml, simulator_root=ROOT, now=NOW, pinned=True).rim.measurements
    except ReferenceValueInvalid:
        return None


def edits(whole: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with some exchanged, cut out, doubled or put in."""
    places = st.integers(0, len(whole))

    def edited(change: tuple[int, int, bytes]) -> bytes:
        start, end = sorted(change[:2])
        return whole[:start] + change[2] + whole[end:]

    near = places.flatmap(
        lambda at: st.tuples(
            st.just(at), st.integers(at, min(len(whole), at + 40)), st.binary(max_size=8)
        )
    )
    return st.one_of(st.tuples(places, places, st.binary(max_size=40)), near).map(edited)


@BOUNDED
@given(st.binary(max_size=400) | st.lists(_TOKENS, max_size=40).map("".join).map(str.encode))
def test_anything_read_as_reference_values_ends_well(data: bytes) -> None:
    assert judged(data) is None
    with contextlib.suppress(ReferenceValueInvalid):
        parse_rim(data)


@BOUNDED
@given(edits(GENUINE))
def test_an_edited_file_says_what_was_signed_or_nothing(data: bytes) -> None:
    found = judged(data)
    assert found is None or found == VALUES


@BOUNDED
@given(st.data(), st.integers(0, 2))
def test_an_edited_answer_never_clears_more(data: st.DataObject, at: int) -> None:
    answers = list(ANSWERS)
    answers[at] = data.draw(edits(answers[at]) | st.binary(max_size=200))
    try:
        claim = check_answers(CHAIN, answers, now=NOW, max_age=86400)
    except (RevocationUnknown, CertificateRevoked):
        return
    assert claim == check_answers(CHAIN, ANSWERS, now=NOW, max_age=86400)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@BOUNDED
@given(
    st.text(max_size=80) | _JSON.map(json.dumps),
    st.text(max_size=80) | _JSON.map(json.dumps) | st.just(SERVICE.jwks),
)
def test_anything_read_as_a_verdict_is_refused(token: str, jwks: str) -> None:
    try:
        verify_remote_verdict(
            RemoteVerdict.model_construct(token=token, jwks=jwks),
            nonce=NONCE,
            gpu_count=1,
            now=NOW,
        )
    except RemoteVerdictRefused:
        return
    raise AssertionError("a verdict out of nothing")


@BOUNDED
@given(st.data())
def test_an_edited_verdict_is_refused_or_the_same(data: st.DataObject) -> None:
    text = data.draw(edits(VERDICT.token.encode())).decode("utf-8", "replace")
    try:
        found = verify_remote_verdict(
            RemoteVerdict.model_construct(token=text, jwks=VERDICT.jwks),
            nonce=NONCE,
            gpu_count=1,
            now=NOW,
        )
    except RemoteVerdictRefused:
        return
    assert found == verify_remote_verdict(VERDICT, nonce=NONCE, gpu_count=1, now=NOW)


@BOUNDED
@given(
    st.dictionaries(
        st.sampled_from(["nbf", "exp", "iss", "eat_nonce", "submods", "x-nvidia-ver", "other"]),
        _JSON,
        min_size=1,
    )
)
def test_signed_nonsense_is_refused_too(changes: dict[str, Any]) -> None:
    changed = {name: value for name, value in changes.items() if name != "other"}
    verdict = SERVICE.verdict(
        {"GPU-0": device_claims()}, overall=lambda claims: claims.update(changed)
    )
    try:
        verify_remote_verdict(verdict, nonce=NONCE, gpu_count=1, now=NOW)
    except RemoteVerdictRefused:
        return
    # Another start or end that still holds ``now`` is all that may be changed to some other value.
    assert set(changed) <= {"nbf", "exp"}


@BOUNDED
@given(st.binary(max_size=200) | _JSON.map(json.dumps).map(str.encode))
def test_anything_read_as_collateral_ends_well(data: bytes) -> None:
    try:
        kept = GpuCollateral.from_bytes(data)
    except EvidenceMalformed:
        return
    assert kept.to_bytes() == data
