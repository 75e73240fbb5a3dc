"""A root secret that AWS KMS releases only to an attested Nitro enclave.

1. The enclave makes an RSA key that lives for one request and puts it into a fresh document.
2. KMS decrypts the ciphertext of the named key where the key's policy likes the document, and
   answers with the plaintext encrypted to that RSA key (``Recipient``).
3. Any answer that carries plaintext, names another key, or is not encrypted in the one accepted way
   is refused.

The answer's encryption hides the secret and does not authenticate it: what vouches for KMS is TLS,
which must end inside the enclave. Hence ``https`` everywhere but on the loopback interface, AWS's
own trust store, and no endpoint from the environment. See spec/keys.md §4 for the key policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography.hazmat.primitives import hashes, padding
from cryptography.hazmat.primitives.asymmetric import padding as rsa_padding
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.nitro.collect import DEVICE, Nsm, attestation, device_nsm
from sealtrain.base.extras import extra_missing
from sealtrain.base.files import read_bounded
from sealtrain.base.secret import Secret
from sealtrain.errors import (
    DataInvalid,
    KeyFileInvalid,
    KmsAnswerInvalid,
    KmsUnreachable,
    UsageError,
)
from sealtrain.keys.derive import KEY_BYTES

FORM = "awskms:CIPHERTEXT_FILE?region=REGION&key=KEY_ARN[&endpoint=URL]"
RSA_BITS = 2048
"""The one size that every description of the request names; the key lives for one answer."""
MAX_CIPHERTEXT_BYTES = 6144
MAX_ANSWER_BYTES = 6144
CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
ATTEMPTS = 3
_ARN = re.compile(r"arn:aws[a-z-]{0,16}:kms:([a-z0-9-]{1,32}):[0-9]{12}:key/[A-Za-z0-9-]{1,64}")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OAEP = rsa_padding.OAEP(
    mgf=rsa_padding.MGF1(algorithm=hashes.SHA256()), algorithm=hashes.SHA256(), label=None
)
_REFUSALS = (
    "AccessDeniedException",
    "DisabledException",
    "IncorrectKeyException",
    "InvalidCiphertextException",
    "InvalidGrantTokenException",
    "InvalidKeyUsageException",
    "KMSInvalidStateException",
    "NotFoundException",
    "ValidationException",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsKey:
    """Which key of which KMS encrypted what.

    Attributes:
        ciphertext: Path of the encrypted secret, as KMS made it.
        region: AWS region.
        key: ARN of the key. Without it the provider of the ciphertext would choose the key.
        endpoint: URL of KMS where it is not the region's own.
    """

    ciphertext: Path
    region: str
    key: str
    endpoint: str | None


def parse_address(rest: str) -> KmsKey:
    """Read what follows ``awskms:``.

    Raises:
        UsageError: Another form, or an endpoint that is neither ``https`` nor loopback.
    """
    path, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, strict_parsing=True, keep_blank_values=True)
    except ValueError:
        pairs = []
    options = dict(pairs)
    named = {"region", "key"} <= set(options) <= {"region", "key", "endpoint"}
    if not path or "\0" in path or not named or len(options) != len(pairs):
        raise UsageError("not an awskms: URI", check="root secret", expected=FORM)
    arn = _ARN.fullmatch(options["key"])
    if arn is None or arn[1] != options["region"]:
        raise UsageError(
            "an awskms: URI names its key by an ARN of its region",
            check="root secret",
            got=options["key"][:120],
            expected=f"arn:aws:kms:{options['region'][:32]}:ACCOUNT:key/ID",
        )
    endpoint = options.get("endpoint")
    if endpoint is not None and not _is_private(endpoint):
        raise UsageError(
            "KMS is reached by https",
            check="root secret",
            got=endpoint[:120],
            expected="https://…, or http://… on the loopback interface",
        )
    return KmsKey(
        ciphertext=Path(path), region=options["region"], key=options["key"], endpoint=endpoint
    )


def release(address: KmsKey, nsm: Nsm | None = None, *, bits: int = RSA_BITS) -> Secret:
    """Have KMS release the secret to this enclave.

    Args:
        address: Which ciphertext, which key, where.
        nsm: Transport to the Nitro Secure Module; the enclave's device where ``None``.
        bits: Size of the RSA key of this request.

    Returns:
        32 bytes.

    Raises:
        ExtraMissing: The packages for AWS are not installed.
        KeyFileInvalid: No such ciphertext, empty or too long.
        UsageError: The endpoint or AWS's own settings cannot be used.
        GuestApiUnreachable: No Nitro Secure Module.
        KmsUnreachable: KMS does not answer.
        KmsAnswerInvalid: KMS refuses, or its answer does not open as it must.
    """
    try:
        ciphertext = read_bounded(address.ciphertext, MAX_CIPHERTEXT_BYTES)
    except DataInvalid as error:
        raise KeyFileInvalid(
            f"ciphertext of the root secret: {error.message}", check="root secret", hint=error.hint
        ) from error
    if not ciphertext:
        raise KeyFileInvalid(f"{address.ciphertext} is empty", check="root secret")
    with _client(address) as client:
        key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        document = attestation(nsm or device_nsm(DEVICE), public_key=public)
        answer = _decrypt(client, address, ciphertext, document)
    if answer.get("Plaintext"):
        raise _invalid(
            "KMS answered with plaintext",
            "plaintext",
            "a ciphertext for this enclave only",
            hint="deny kms:Decrypt in the key's policy where kms:RecipientAttestation:PCR0 is null",
        )
    if answer.get("KeyId") != address.key:
        raise _invalid("KMS used another key", str(answer.get("KeyId"))[:120], address.key)
    wrapped = answer.get("CiphertextForRecipient")
    if not isinstance(wrapped, bytes):
        raise _invalid("KMS answered without a ciphertext for this enclave", "none", "one")
    secret = open_answer(wrapped, key)
    if len(secret) != KEY_BYTES:
        raise _invalid("root secret has the wrong length", str(len(secret)), f"{KEY_BYTES} bytes")
    return secret


def open_answer(wrapped: bytes, key: rsa.RSAPrivateKey) -> Secret:
    """Open a ``CiphertextForRecipient``.

    CMS EnvelopedData, DER or BER: one recipient by key identifier, RSAES-OAEP with SHA-256 and
    MGF1-SHA-256, AES-256-CBC with full PKCS #7 padding; nothing before, between or behind.

    Args:
        wrapped: At most 6144 bytes.
        key: The key of this request.

    Raises:
        ExtraMissing: The packages for AWS are not installed.
        KmsAnswerInvalid: Another form or algorithm, or encrypted to another key.
    """
    if len(wrapped) > MAX_ANSWER_BYTES:
        raise _invalid("KMS answer is too long", str(len(wrapped)), str(MAX_ANSWER_BYTES))
    try:
        encrypted_key, vector, content = _read_enveloped(wrapped)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        # Without "from": what the library quotes comes from the answer.
        raise _invalid("KMS answer is not CMS", "another structure", "EnvelopedData") from None
    try:
        content_key = key.decrypt(encrypted_key, _OAEP)
        if len(content_key) != 32 or len(vector) != 16:
            raise ValueError  # noqa: TRY301  # one message for every answer that does not open
        cipher = Cipher(algorithms.AES256(content_key), modes.CBC(vector)).decryptor()
        padded = cipher.update(content) + cipher.finalize()
        unpadder = padding.PKCS7(128).unpadder()
        return Secret(unpadder.update(padded) + unpadder.finalize())
    except ValueError:
        raise _invalid(
            "KMS answer does not open with this request's key", "an error", "a secret"
        ) from None


def _read_enveloped(wrapped: bytes) -> tuple[bytes, bytes, bytes]:
    """Encrypted content key, initialisation vector, encrypted content."""
    try:
        from asn1crypto import cms
    except ImportError as error:
        raise extra_missing("a root secret from AWS KMS", "aws", error) from None
    message = cms.ContentInfo.load(wrapped, strict=True)
    _is("content type", message["content_type"].native, "enveloped_data")
    enveloped = message["content"]
    _is("version", enveloped["version"].native, "v2")
    _is("originator", enveloped["originator_info"].native, None)
    _is("attributes", enveloped["unprotected_attrs"].native, None)
    _is("number of recipients", len(enveloped["recipient_infos"]), 1)
    _is("kind of recipient", enveloped["recipient_infos"][0].name, "ktri")
    recipient = enveloped["recipient_infos"][0].chosen
    _is("recipient's version", recipient["version"].native, "v2")
    _is("recipient's name", recipient["rid"].name, "subject_key_identifier")
    algorithm = recipient["key_encryption_algorithm"]
    _is("key encryption", algorithm["algorithm"].native, "rsaes_oaep")
    oaep = algorithm["parameters"]
    _is("OAEP hash", oaep["hash_algorithm"]["algorithm"].native, "sha256")
    _is("OAEP hash parameters", oaep["hash_algorithm"]["parameters"].native, None)
    _is("OAEP mask", oaep["mask_gen_algorithm"]["algorithm"].native, "mgf1")
    mask = oaep["mask_gen_algorithm"]["parameters"]
    _is("OAEP mask hash", mask["algorithm"].native, "sha256")
    _is("OAEP mask hash parameters", mask["parameters"].native, None)
    _is("OAEP label", oaep["p_source_algorithm"]["algorithm"].native, "p_specified")
    _is("OAEP label", oaep["p_source_algorithm"]["parameters"].native, b"")
    content = enveloped["encrypted_content_info"]
    _is("content", content["content_type"].native, "data")
    cipher = content["content_encryption_algorithm"]
    _is("content encryption", cipher["algorithm"].native, "aes256_cbc")
    return (
        bytes(recipient["encrypted_key"].native),
        bytes(cipher["parameters"].native),
        bytes(content["encrypted_content"].native),
    )


def _is(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise _invalid(f"KMS answer has another {what}", str(got)[:64], str(expected))


def _client(address: KmsKey) -> Any:
    """A boto3 client that closes its connections at the end of a ``with``."""
    from contextlib import closing

    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise extra_missing("a root secret from AWS KMS", "aws", error) from None
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        ignore_configured_endpoint_urls=True,  # the URI says where KMS is, not the environment
    )
    try:
        client = boto3.session.Session().client(
            "kms",
            region_name=address.region,
            endpoint_url=address.endpoint,
            verify=True,  # the packaged trust store, not one the environment names
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            "AWS's settings cannot be used", check="root secret", got=type(error).__name__
        ) from error
    return closing(client)


def _decrypt(client: Any, address: KmsKey, ciphertext: bytes, document: bytes) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = client.decrypt(
            CiphertextBlob=ciphertext,
            KeyId=address.key,
            EncryptionAlgorithm="SYMMETRIC_DEFAULT",
            Recipient={
                "KeyEncryptionAlgorithm": "RSAES_OAEP_SHA_256",
                "AttestationDocument": document,
            },
        )
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))[:64]
        if code in _REFUSALS:
            raise _invalid(
                "KMS refuses to release the root secret",
                code,
                "a ciphertext for this enclave",
                hint="compare the key's policy with this enclave's PCR0 and PCR16",
            ) from None
        raise _unreachable(address, code) from None
    except BotoCoreError as error:
        raise _unreachable(address, type(error).__name__) from None
    return answer


def _is_private(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.query or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)


def _unreachable(address: KmsKey, got: str) -> KmsUnreachable:
    return KmsUnreachable(
        f"KMS in {address.region} does not answer",
        check="root secret",
        got=got or "no reason",
        hint="check credentials, region and the enclave's proxy to KMS",
    )


def _invalid(message: str, got: str, expected: str, hint: str | None = None) -> KmsAnswerInvalid:
    return KmsAnswerInvalid(message, check="root secret", got=got, expected=expected, hint=hint)
