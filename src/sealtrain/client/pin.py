"""The broker file: where a broker is, which one it is, and what it must prove before it is used.

Owners, engineers and operators write it once (``sealtrain broker pin``): the broker's URL, its
signing key, the hash of its deployment document and the appraisal policy for its evidence. Every
field is mandatory. A second instance of the same deployment has another key and is refused.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Base64, Hex64, StrictModel, holding, load_model
from sealtrain.base.outbound import blocks_of, certificates_in
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import ConfigError, DataInvalid, TrustInvalid, UsageError
from sealtrain.signing.identity import broker_id

_MAX_BYTES = 1 << 20


def _certificate(text: str) -> None:
    """Raise ``DataInvalid`` unless a text is a certificate that TLS can use."""
    try:
        certificates_in(_pem(text), "authorities")
    except ConfigError as error:
        raise DataInvalid(error.message) from None


def _pem(certificate: str) -> str:
    return ssl.DER_cert_to_PEM_cert(from_base64(certificate))


Certificate = Annotated[Base64, holding(_certificate)]
"""An X.509 certificate, DER in base64."""


def certificates_of(pem: str) -> list[str]:
    """The certificates of a PEM text, as documents hold them."""
    return [to_base64(ssl.PEM_cert_to_DER_cert(block)) for block in blocks_of(pem)]


def pem_of(certificates: Iterable[str]) -> str:
    """Certificates of a document in PEM, as ``base.http`` takes them."""
    return "".join(map(_pem, certificates))


class BrokerPin(StrictModel):
    """What a broker must be.

    Attributes:
        version: Format version, 2.
        url: Base URL of its HTTP interface.
        signing_key: Ed25519 key of its receipts and its ledger, base64 of 32 bytes; rotations may
            have led to another one since.
        compose_hash: SHA-256 of its ``app-compose.json``.
        authorities: Certificates (DER in base64) of the private authority of its TLS server, where
            it has one. They count for connections to this broker alone, and prove nothing about it.
        appraisal: Policy its evidence must meet.
    """

    version: Literal[2] = 2
    url: str
    signing_key: Annotated[Base64, holding(partial(from_base64, length=32))]
    compose_hash: Hex64
    authorities: tuple[Certificate, ...] = Field(
        default=(), max_length=16, exclude_if=lambda value: not value
    )
    appraisal: AppraisalPolicy

    @property
    def key(self) -> bytes:
        """The signing key, 32 bytes."""
        return from_base64(self.signing_key, length=32)

    @property
    def broker_id(self) -> str:
        """Id of the broker, 64 hex digits; it may have another one since, by rotation."""
        return broker_id(self.key)

    @property
    def trusted(self) -> str:
        """The authorities in PEM, as ``base.http`` takes them; empty where there is none."""
        return pem_of(self.authorities)

    def to_yaml(self) -> str:
        """The broker file's text."""
        return yaml_text(self.to_dict())


def new_pin(
    url: str,
    signing_key: str,
    *,
    compose_hash: str,
    appraisal: AppraisalPolicy,
    authorities: str = "",
) -> BrokerPin:
    """A broker file's content, from the words of a command.

    Args:
        url: Base URL of its HTTP interface.
        signing_key: Base64 of its Ed25519 key.
        compose_hash: SHA-256 of its deployment document, 64 hex digits.
        appraisal: Policy for its evidence.
        authorities: Certificates in PEM of its private authority.

    Raises:
        UsageError: The key is no base64 of 32 bytes, or there are more than 16 certificates.
    """
    document = {
        "version": 2,
        "url": url,
        "signing_key": signing_key,
        "compose_hash": compose_hash,
        "appraisal": appraisal.to_dict(),
    }
    if authorities:
        document["authorities"] = certificates_of(authorities)
    return load_model(BrokerPin, document, UsageError, "broker file")


def load_pin(path: Path) -> BrokerPin:
    """Read a broker file.

    Raises:
        TrustInvalid: Not the YAML of ``base.yamltext``, a field missing, unknown or malformed.
        DataInvalid: The file cannot be read.
    """
    try:
        text = read_bounded(path, _MAX_BYTES)
    except DataInvalid as error:
        if path.exists():
            raise
        hint = "sealtrain up makes one once it is ready, and sealtrain broker pin one of a broker"
        raise error.with_message(error.message, hint=hint) from None
    data = parse_yaml(text, error=TrustInvalid, what=f"broker file {path}", max_bytes=_MAX_BYTES)
    return load_model(BrokerPin, data, TrustInvalid, "broker file")
