"""A root secret from AWS KMS: a real server, a real enclave's document, answers good and bad."""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asn1crypto import cms
from carrying import carries
from collecting import COLLECTING
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_private_key
from http_server import Handler, http_served
from nitro_world import COMPOSE, NOW, PKI, enclave

from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.attest.nitro.verify import compose_register, verify_document
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.errors import (
    ExtraMissing,
    KeyFileInvalid,
    KmsAnswerInvalid,
    KmsUnreachable,
    UsageError,
)
from sealtrain.keys import awskms
from sealtrain.keys.awskms import KmsKey, open_answer, parse_address, release
from sealtrain.keys.uris import root_secret

if not COLLECTING:
    import boto3

SECRET = bytes(range(100, 132))
CIPHERTEXT = b"what KMS calls a ciphertext blob"
ARN = "arn:aws:kms:eu-central-1:000000000000:key/00000000-0000-0000-0000-000000000000"
OAEP_PARAMETERS = {
    "hash_algorithm": {"algorithm": "sha256"},
    "mask_gen_algorithm": {"algorithm": "mgf1", "parameters": {"algorithm": "sha256"}},
    "p_source_algorithm": {"algorithm": "p_specified", "parameters": b""},
}


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    del name  # one key a name
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


if not COLLECTING:
    aws_session = cache(boto3.session.Session)


def padded(data: bytes) -> bytes:
    count = 16 - len(data) % 16
    return data + bytes([count]) * count


def enveloped(
    public: rsa.RSAPublicKey,
    content: bytes = padded(SECRET),
    *,
    oaep: dict[str, Any] | None = None,
    encryption: str = "rsaes_oaep",
    cipher: str = "aes256_cbc",
    content_key: bytes = b"K" * 32,
    hashed: hashes.HashAlgorithm | None = None,
    mask: hashes.HashAlgorithm | None = None,
    copies: int = 1,
    version: str = "v2",
    content_type: str = "data",
    rid: cms.RecipientIdentifier | None = None,
    **more: Any,
) -> bytes:
    """CMS as KMS writes it, but for what is asked; ``content`` is already padded."""
    vector = b"V" * 16
    encryptor = Cipher(algorithms.AES(content_key), modes.CBC(vector)).encryptor()
    scheme = padding.OAEP(
        mgf=padding.MGF1(mask or hashes.SHA256()), algorithm=hashed or hashes.SHA256(), label=None
    )
    if encryption == "rsaes_pkcs1v15":
        wrapped = public.encrypt(content_key, padding.PKCS1v15())
        algorithm: dict[str, Any] = {"algorithm": encryption}
    else:
        wrapped = public.encrypt(content_key, scheme)
        algorithm = {"algorithm": encryption, "parameters": OAEP_PARAMETERS | (oaep or {})}
    recipient = cms.RecipientInfo(
        name="ktri",
        value=cms.KeyTransRecipientInfo(
            {
                "version": version,
                "rid": rid or cms.RecipientIdentifier("subject_key_identifier", b"I" * 20),
                "key_encryption_algorithm": algorithm,
                "encrypted_key": wrapped,
            }
        ),
    )
    message = {
        "version": "v2",
        "recipient_infos": [recipient] * copies,
        "encrypted_content_info": {
            "content_type": content_type,
            "content_encryption_algorithm": {"algorithm": cipher, "parameters": vector},
            "encrypted_content": encryptor.update(content) + encryptor.finalize(),
        },
        **more,
    }
    dumped: bytes = cms.ContentInfo(
        {"content_type": "enveloped_data", "content": cms.EnvelopedData(message)}
    ).dump()
    return dumped


# What opens --------------------------------------------------------------------------------------


@pytest.fixture(params=["cms_enveloped_der.bin", "cms_enveloped_ber_indefinite.bin"])
def sample(shared: Path, request: pytest.FixtureRequest) -> bytes:
    return (shared / "vectors/nitro/kms" / request.param).read_bytes()


@pytest.fixture
def sample_key(shared: Path) -> rsa.RSAPrivateKey:
    pem = (shared / "vectors/nitro/kms/test_recipient_rsa2048_key.pem").read_bytes()
    key = load_pem_private_key(pem, None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


@pytest.fixture
def sample_secret(shared: Path) -> Secret:
    return Secret((shared / "vectors/nitro/kms/expected_plaintext.bin").read_bytes())


def test_another_programs_messages_open(
    sample: bytes, sample_key: rsa.RSAPrivateKey, sample_secret: Secret
) -> None:
    assert open_answer(sample, sample_key) == sample_secret
    key = rsa_key("ours")
    assert open_answer(enveloped(key.public_key()), key) == Secret(SECRET)


@pytest.mark.negative(36)
def test_a_message_for_another_recipient_does_not_open(
    sample: bytes, sample_key: rsa.RSAPrivateKey
) -> None:
    with pytest.raises(KmsAnswerInvalid):
        open_answer(sample, rsa_key("ours"))
    for copies in (0, 2):
        with pytest.raises(KmsAnswerInvalid, check=carries(check="root secret", expected="1")):
            open_answer(enveloped(sample_key.public_key(), copies=copies), sample_key)


SHA1 = {"algorithm": "sha1"}
ISSUER = cms.IssuerAndSerialNumber({"issuer": cms.Name.build({}), "serial_number": 1})
ALTERED: dict[str, dict[str, Any]] = {
    "OAEP with SHA-1": {
        "oaep": {
            "hash_algorithm": SHA1,
            "mask_gen_algorithm": {"algorithm": "mgf1", "parameters": SHA1},
        },
        "hashed": hashes.SHA1(),  # noqa: S303  # the weakness under test
        "mask": hashes.SHA1(),  # noqa: S303
    },
    "mask with SHA-1": {
        "oaep": {"mask_gen_algorithm": {"algorithm": "mgf1", "parameters": SHA1}},
        "mask": hashes.SHA1(),  # noqa: S303
    },
    "OAEP by default parameters": {"oaep": dict.fromkeys(OAEP_PARAMETERS)},
    "OAEP with a label": {
        "oaep": {"p_source_algorithm": {"algorithm": "p_specified", "parameters": b"label"}}
    },
    "PKCS #1 v1.5": {"encryption": "rsaes_pkcs1v15"},
    "AES-128": {"cipher": "aes128_cbc", "content_key": b"K" * 16},
    "AES-128 under the name of AES-256": {"content_key": b"K" * 16},
    "AES-256 under the name of AES-192": {"cipher": "aes192_cbc"},
    "padding of zero": {"content": SECRET + bytes(16)},
    "padding beyond a block": {"content": SECRET + b"\x11" * 16},
    "padding that differs within": {"content": SECRET + b"\x10" * 14 + b"\x0f\x10"},
    "no padding": {"content": SECRET},
    "signed data within": {"content_type": "signed_data"},
    "no content": {"content": b""},
    "recipient of version 0": {"version": "v0"},
    "recipient by issuer": {
        "rid": cms.RecipientIdentifier("issuer_and_serial_number", ISSUER),
    },
    "attributes": {
        "unprotected_attrs": [{"type": "content_type", "values": ["data"]}],
    },
}


@pytest.mark.negative(36)
@pytest.mark.parametrize("name", ALTERED)
def test_a_message_of_another_kind_does_not_open(name: str) -> None:
    key = rsa_key("ours")
    with pytest.raises(KmsAnswerInvalid):
        open_answer(enveloped(key.public_key(), **ALTERED[name]), key)


@pytest.mark.negative(36)
def test_bytes_behind_a_message_are_refused(sample: bytes, sample_key: rsa.RSAPrivateKey) -> None:
    for tail in (b"\0", b"\0\0", b"\x05\x00", sample):
        with pytest.raises(KmsAnswerInvalid):
            open_answer(sample + tail, sample_key)
    for other in (b"", b"\x30\x00", b"\x30\x80" * 3000, bytes(6145), b"text"):
        with pytest.raises(KmsAnswerInvalid):
            open_answer(other, sample_key)


@pytest.mark.negative(36)
def test_no_shortened_message_opens(
    sample: bytes, sample_key: rsa.RSAPrivateKey, sample_secret: Secret
) -> None:
    """Every length; without all of its content a message is no message."""
    for length in range(len(sample)):
        with pytest.raises(KmsAnswerInvalid):
            open_answer(sample[:length], sample_key)
    assert open_answer(sample, sample_key) == sample_secret


@pytest.mark.negative(36)
def test_a_flipped_bit_never_ends_in_another_error(
    sample: bytes, sample_key: rsa.RSAPrivateKey, sample_secret: Secret
) -> None:
    """The format has no seal: a flip in vector or ciphertext gives another secret, not a refusal.

    TLS stands for who answered. Before these bytes nothing may change but the recipient's name,
    which nobody says how to compute; the secret is then the same.
    """
    vector = sample.index(bytes.fromhex("60864801650304012a0410")) + 11
    name = sample.index(bytes.fromhex("788898eee7d5c2e8"))
    for at in range(0, len(sample), 2):
        flipped = bytearray(sample)
        flipped[at] ^= 1 << at % 8
        try:
            found = open_answer(bytes(flipped), sample_key)
        except KmsAnswerInvalid:
            continue
        assert at >= vector or (name <= at < name + 20 and found == sample_secret)


# What is asked and answered ----------------------------------------------------------------------


class Kms:
    """KMS on this machine, with a key policy that names one deployment document."""

    def __init__(self) -> None:
        self.measured = compose_register(sha256_hex(COMPOSE))
        self.secret, self.key_id = SECRET, ARN
        self.plaintext = b""
        self.wrapped: bytes | None = None
        self.status = 200
        self.public: rsa.RSAPublicKey | None = None
        self.asked: list[dict[str, Any]] = []

    def decrypt(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(request)
        if self.status != 200:
            return self.status, {"__type": "KMSInternalException", "message": "later"}
        if b64decode(request["CiphertextBlob"]) != CIPHERTEXT:
            return 400, {"__type": "InvalidCiphertextException", "message": ""}
        recipient = request["Recipient"]
        assert recipient["KeyEncryptionAlgorithm"] == "RSAES_OAEP_SHA_256"
        raw = b64decode(recipient["AttestationDocument"])
        document = verify_document(raw, simulator_root=PKI.root_der, now=NOW).document
        if document.pcrs.get(16) != self.measured:
            return 400, {"__type": "AccessDeniedException", "message": "the policy says no"}
        assert document.public_key is not None
        public = self.public or load_der_public_key(document.public_key)
        assert isinstance(public, rsa.RSAPublicKey)
        wrapped = self.wrapped or enveloped(public, padded(self.secret))
        return 200, {
            "KeyId": self.key_id,
            "EncryptionAlgorithm": "SYMMETRIC_DEFAULT",
            "Plaintext": b64encode(self.plaintext).decode(),
            "CiphertextForRecipient": b64encode(wrapped).decode(),
        }


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    state = Kms()

    class Answering(Handler):
        def do_POST(self) -> None:
            assert self.headers["X-Amz-Target"] == "TrentService.Decrypt"
            status, answer = state.decrypt(json.loads(self.body()))
            data = json.dumps(answer).encode()
            self.answer(status, data, content_type="application/x-amz-json-1.1")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setattr(awskms, "ATTEMPTS", 1)
    # One session reads the library's descriptions of services once, not in every test.
    monkeypatch.setattr(boto3.session, "Session", aws_session)
    with http_served(Answering) as state.url:  # type: ignore[attr-defined]
        yield state


@pytest.fixture
def address(kms: Kms, tmp_path: Path) -> KmsKey:
    path = tmp_path / "root.kms"
    path.write_bytes(CIPHERTEXT)
    return KmsKey(
        ciphertext=path,
        region="eu-central-1",
        key=ARN,
        endpoint=kms.url,  # type: ignore[attr-defined]
    )


def test_an_attested_enclave_gets_its_secret(
    kms: Kms, address: KmsKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert release(address, enclave()) == Secret(SECRET)
    (asked,) = kms.asked
    assert (asked["KeyId"], asked["EncryptionAlgorithm"]) == (ARN, "SYMMETRIC_DEFAULT")
    devices: list[Path] = []
    monkeypatch.setattr(awskms, "device_nsm", lambda path: devices.append(path) or enclave())
    uri = f"awskms:{address.ciphertext}?region=eu-central-1&key={ARN}&endpoint={address.endpoint}"
    assert root_secret(uri) == Secret(SECRET)
    assert devices == [Path("/dev/nsm")]
    public = [
        verify_document(
            b64decode(question["Recipient"]["AttestationDocument"]),
            simulator_root=PKI.root_der,
            now=NOW,
        ).document.public_key
        for question in kms.asked
    ]
    assert len(set(public)) == 2  # a key lives for one request


def test_the_environment_does_not_choose_the_kms(
    kms: Kms, address: KmsKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert release(address, enclave()) == Secret(SECRET)
    reached: list[str] = []

    class Session:
        def client(self, *words: Any, **named: Any) -> Any:
            with closing(aws_session().client(*words, **named)) as client:
                reached.append(client.meta.endpoint_url)
            raise ValueError

    monkeypatch.setattr(boto3.session, "Session", Session)
    with pytest.raises(UsageError):
        release(replace(address, endpoint=None), enclave())
    assert reached == ["https://kms.eu-central-1.amazonaws.com"]


def test_an_enclave_with_another_document_gets_nothing(kms: Kms, address: KmsKey) -> None:
    kms.measured = bytes(48)
    with pytest.raises(
        KmsAnswerInvalid, check=carries(check="root secret", got="AccessDeniedException")
    ) as refusal:
        release(address, enclave())
    assert "PCR16" in (refusal.value.hint or "")


@pytest.mark.negative(36)
def test_an_answer_with_plaintext_is_refused_unseen(kms: Kms, address: KmsKey) -> None:
    kms.plaintext = SECRET
    with pytest.raises(
        KmsAnswerInvalid, check=carries(check="root secret", got="plaintext")
    ) as refusal:
        release(address, enclave())
    assert "null" in (refusal.value.hint or "")
    assert SECRET.hex() not in str(refusal.value.to_dict())


@pytest.mark.negative(36)
@pytest.mark.parametrize(
    "habits",
    [
        {"key_id": ARN.replace("/0", "/1")},
        {"key_id": "alias/root"},
        {"secret": bytes(31)},
        {"secret": b""},
        {"wrapped": b"no CMS"},
        {"public": rsa_key("another enclave").public_key()},
    ],
    ids=lambda habits: next(iter(habits)),
)
def test_an_answer_of_another_kind_is_refused(
    kms: Kms, address: KmsKey, habits: dict[str, Any]
) -> None:
    for name, value in habits.items():
        setattr(kms, name, value)
    with pytest.raises(KmsAnswerInvalid):
        release(address, enclave())


def test_a_kms_that_fails_or_is_away_is_unreachable(kms: Kms, address: KmsKey) -> None:
    kms.status = 500
    with pytest.raises(
        KmsUnreachable, check=carries(check="root secret", got="KMSInternalException")
    ):
        release(address, enclave())
    away = KmsKey(
        ciphertext=address.ciphertext,
        region=address.region,
        key=ARN,
        endpoint="http://127.0.0.1:9",
    )
    with pytest.raises(KmsUnreachable, match="eu-central-1"):
        release(away, enclave())


def test_without_a_ciphertext_or_a_module_nothing_is_asked(
    kms: Kms, address: KmsKey, tmp_path: Path
) -> None:
    for content in (None, b"", bytes(6145)):
        path = tmp_path / "other"
        if content is not None:
            path.write_bytes(content)
        other = KmsKey(ciphertext=path, region=address.region, key=ARN, endpoint=address.endpoint)
        with pytest.raises(KeyFileInvalid):
            release(other, enclave())
    with pytest.raises(GuestApiUnreachable):
        release(address)
    assert kms.asked == []


@pytest.mark.parametrize("package", ["boto3", "asn1crypto"])
def test_a_missing_package_is_named(
    kms: Kms, address: KmsKey, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissing) as refusal:
        release(address, enclave())
    assert refusal.value.hint == "pip install 'sealtrain[aws]'"


def test_larger_keys_work_where_asked(kms: Kms, address: KmsKey) -> None:
    assert release(address, enclave(), bits=3072) == Secret(SECRET)


REST = f"root.kms?region=eu-central-1&key={ARN}"


def test_an_address_says_file_key_and_place() -> None:
    plain = parse_address(REST)
    assert (plain.ciphertext, plain.region, plain.key) == (Path("root.kms"), "eu-central-1", ARN)
    assert plain.endpoint is None
    for endpoint in ("https://kms.internal:8443", "http://localhost:4566", "http://[::1]:1"):
        assert parse_address(f"{REST}&endpoint={endpoint}").endpoint == endpoint


@pytest.mark.parametrize(
    "rest",
    [
        *("", "root.kms", "?region=eu-central-1", f"root.kms?key={ARN}", f"a\0b{REST[8:]}"),
        "root.kms?region=eu-central-1",
        "root.kms?region=eu-central-1&key=alias/root",
        f"root.kms?region=us-east-1&key={ARN}",
        *(f"{REST}&region=eu-central-1", f"{REST}&colour=blue", f"{REST}&endpoint", f"{REST}&"),
        *(f"{REST}&endpoint=http://kms.internal", f"{REST}&endpoint=ftp://localhost"),
        *(f"{REST}&endpoint=https://user@host", f"{REST}&endpoint=https://", f"{REST}&endpoint="),
        *(f"{REST}&endpoint=http://localhost.evil.example", f"{REST}&endpoint=https://[1"),
    ],
)
def test_another_address_is_refused(rest: str) -> None:
    with pytest.raises(UsageError):
        root_secret(f"awskms:{rest}")
