"""DSSE envelopes: the specification's own example, two other implementations, and strictness."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import SignatureInvalid
from sealtrain.signing import dsse
from sealtrain.signing.dsse import Ed25519Signer, Envelope

if not COLLECTING:
    from securesystemslib import dsse as other_dsse
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import CryptoSigner, SSlibKey

TYPE = "http://example.com/HelloWorld"


def private(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


ALICE, BOB, EVE = (Ed25519Signer(private(number)) for number in (1, 2, 3))


def foreign_key(signer: Ed25519Signer) -> SSlibKey:
    public = Ed25519PublicKey.from_public_bytes(signer.public)
    return SSlibKey.from_crypto(public, keyid=signer.key_id)


def test_the_encoding_that_is_signed_is_the_specifications() -> None:
    assert (
        dsse.pae(TYPE, b"hello world") == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert dsse.pae("", b"") == b"DSSEv1 0  0 "


def test_lengths_in_the_encoding_count_bytes_not_characters() -> None:
    assert dsse.pae("é", "ü".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xbc"


def test_what_was_signed_comes_back_and_survives_the_file() -> None:
    envelope = dsse.sign(b"hello world", TYPE, ALICE)
    read = Envelope.from_bytes(envelope.to_bytes())
    assert read == envelope
    assert dsse.verify(read, [BOB.public, ALICE.public], payload_type=TYPE) == b"hello world"


def test_the_file_is_canonical_json_and_the_digest_is_the_files() -> None:
    envelope = dsse.sign(b"hello world", TYPE, ALICE)
    assert envelope.to_bytes() == canonical_json(json.loads(envelope.to_bytes()))
    assert sorted(json.loads(envelope.to_bytes())) == ["payload", "payloadType", "signatures"]
    assert len(envelope.digest) == 64


def test_another_implementation_verifies_our_envelope_and_notices_a_change() -> None:
    document = dsse.sign(b"hello world", TYPE, ALICE).to_dict()
    theirs = other_dsse.Envelope.from_dict(document)
    assert theirs.verify([foreign_key(ALICE)], 1)
    changed = dsse.sign(b"hello world", TYPE, ALICE).to_dict()
    altered = other_dsse.Envelope.from_dict({**changed, "payloadType": "text/plain"})
    with pytest.raises(VerificationError):
        altered.verify([foreign_key(ALICE)], 1)


def test_we_verify_another_implementations_envelope() -> None:
    theirs = other_dsse.Envelope(b"hello world", TYPE, {})
    theirs.sign(CryptoSigner(private(1), foreign_key(ALICE)))
    envelope = Envelope.from_dict(theirs.to_dict())
    assert dsse.verify(envelope, [ALICE.public], payload_type=TYPE) == b"hello world"


@pytest.mark.needs("openssl")
def test_openssl_verifies_an_exported_signature(tmp_path: Path) -> None:
    envelope = dsse.sign(b"hello world", TYPE, ALICE)
    pem = Ed25519PublicKey.from_public_bytes(ALICE.public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "sig").write_bytes(envelope.signatures[0].sig)
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "key.pem"]
    command += ["-sigfile", "sig", "-in", "message"]
    for payload, expected in ((b"hello world", 0), (b"hello_world", 1)):
        (tmp_path / "message").write_bytes(dsse.pae(TYPE, payload))
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert ran.returncode == expected


def test_the_threshold_counts_different_keys() -> None:
    envelope = dsse.sign(b"x", TYPE, ALICE, BOB)
    keys = [ALICE.public, BOB.public]
    assert dsse.verify(envelope, keys, payload_type=TYPE, threshold=2) == b"x"
    with pytest.raises(SignatureInvalid, check=carries(check="signature threshold", got="2")):
        dsse.verify(envelope, keys, payload_type=TYPE, threshold=3)
    one = dsse.sign(b"x", TYPE, ALICE)
    with pytest.raises(SignatureInvalid, check=carries(check="signature threshold", got="1")):
        dsse.verify(one, [ALICE.public, ALICE.public], payload_type=TYPE, threshold=2)


def test_one_signature_by_a_stranger_spoils_the_envelope() -> None:
    envelope = dsse.sign(b"x", TYPE, ALICE, EVE)
    with pytest.raises(SignatureInvalid, check=carries(check="signer")):
        dsse.verify(envelope, [ALICE.public, BOB.public], payload_type=TYPE)


def test_a_trusted_key_that_signed_something_else_spoils_the_envelope() -> None:
    good, bad = dsse.sign(b"x", TYPE, ALICE), dsse.sign(b"y", TYPE, BOB)
    mixed = Envelope(
        payload=b"x", payload_type=TYPE, signatures=(*good.signatures, *bad.signatures)
    )
    with pytest.raises(SignatureInvalid, check=carries(check="signature")):
        dsse.verify(mixed, [ALICE.public, BOB.public], payload_type=TYPE)


def test_the_same_key_twice_is_refused() -> None:
    good = dsse.sign(b"x", TYPE, ALICE)
    twice = Envelope(payload=b"x", payload_type=TYPE, signatures=good.signatures * 2)
    with pytest.raises(SignatureInvalid, check=carries(check="signatures")):
        dsse.verify(twice, [ALICE.public], payload_type=TYPE)
    with pytest.raises(ValueError):
        dsse.sign(b"x", TYPE, ALICE, ALICE)


def test_another_payload_type_is_refused_even_when_signed() -> None:
    with pytest.raises(
        SignatureInvalid, check=carries(check="payload type", expected="text/plain")
    ):
        dsse.verify(dsse.sign(b"x", TYPE, ALICE), [ALICE.public], payload_type="text/plain")


def test_nobody_trusted_means_nobody_signed() -> None:
    with pytest.raises(SignatureInvalid):
        dsse.verify(dsse.sign(b"x", TYPE, ALICE), [], payload_type=TYPE)
    unsigned = Envelope(payload=b"x", payload_type=TYPE, signatures=())
    with pytest.raises(SignatureInvalid, check=carries(check="signatures")):
        dsse.verify(unsigned, [ALICE.public], payload_type=TYPE)
    with pytest.raises(ValueError):
        dsse.verify(unsigned, [ALICE.public], payload_type=TYPE, threshold=0)


GOOD: dict[str, Any] = dsse.sign(b"hello world", TYPE, ALICE).to_dict()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param([], id="not an object"),
        pytest.param({**GOOD, "extra": 1}, id="unknown field"),
        pytest.param({key: GOOD[key] for key in ("payload", "signatures")}, id="missing field"),
        pytest.param({**GOOD, "payload": None}, id="payload not a text"),
        pytest.param({**GOOD, "payload": "aGVsbG8gd29ybGQ"}, id="payload without padding"),
        pytest.param({**GOOD, "payload": "_-=="}, id="payload in the other alphabet"),
        pytest.param({**GOOD, "payload": "aGk\n="}, id="payload with a newline"),
        pytest.param({**GOOD, "payloadType": ""}, id="no type"),
        pytest.param({**GOOD, "payloadType": "é"}, id="type beyond ascii"),
        pytest.param({**GOOD, "payloadType": "t" * 129}, id="type too long"),
        pytest.param({**GOOD, "payloadType": 3}, id="type a number"),
        pytest.param({**GOOD, "signatures": []}, id="no signature"),
        pytest.param({**GOOD, "signatures": {}}, id="signatures an object"),
        pytest.param({**GOOD, "signatures": GOOD["signatures"] * 65}, id="too many signatures"),
        pytest.param({**GOOD, "signatures": [{"sig": "AA=="}]}, id="signature without key id"),
        pytest.param(
            {**GOOD, "signatures": [{**GOOD["signatures"][0], "cert": ""}]}, id="signature field"
        ),
        pytest.param(
            {**GOOD, "signatures": [{**GOOD["signatures"][0], "sig": "AA=="}]}, id="short signature"
        ),
        pytest.param(
            {**GOOD, "signatures": [{**GOOD["signatures"][0], "keyid": ""}]}, id="empty key id"
        ),
    ],
)
def test_an_envelope_of_another_shape_is_refused(document: Any) -> None:
    with pytest.raises(SignatureInvalid, check=carries(check="envelope")) as caught:
        Envelope.from_bytes(canonical_json(document))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"null", b'{"payload":"","payload":""}'])
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        Envelope.from_bytes(data)


def test_only_one_spelling_of_an_envelope_is_read() -> None:
    with pytest.raises(SignatureInvalid, check=carries(check="envelope")):
        Envelope.from_bytes(json.dumps(GOOD, indent=1).encode())


def test_an_envelope_beyond_the_cap_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(SignatureInvalid, check=carries(check="envelope")):
        Envelope.from_bytes(b"[" * (dsse.MAX_ENVELOPE_BYTES + 1))


def test_a_signer_shows_its_public_half_only() -> None:
    shown = repr(ALICE)
    assert ALICE.key_id in shown
    assert private(1).private_bytes_raw().hex() not in shown
