"""What an auditor takes as given before reading a manifest (spec/trust.md).

Nothing has a default: a field left out is an error, and to accept anything one writes ``any``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.encoding import from_base64
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Base64, Hex40, Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid, TrustInvalid
from sealtrain.recipe.yamltext import parse_yaml

__all__ = ["Trust", "TrustedBroker", "load_trust", "parse_trust"]

MAX_TRUST_BYTES = 1 << 20


class TrustedBroker(StrictModel):
    """The broker whose receipts and ledger count."""

    signing_key: Annotated[Base64, StringConstraints(min_length=44, max_length=44)]

    @property
    def signing_bytes(self) -> bytes:
        """Raw Ed25519 public key, 32 bytes."""
        return from_base64(self.signing_key, length=32)


class Trust(StrictModel):
    """Trust file. ``any`` is a word one has to write."""

    version: Literal[1]
    consortium_id: Hex64
    recipe_hash: Hex64
    compose_hash: Hex64 | Literal["any"]
    app_id: Hex40 | Literal["any"]
    broker: TrustedBroker
    appraisal: AppraisalPolicy
    simulated: Literal["refuse", "accept-insecure"]


def parse_trust(document: Any) -> Trust:
    """Trust from a parsed YAML or JSON document.

    Raises:
        TrustInvalid: A field is missing, unknown or malformed.
    """
    trust = load_model(Trust, document, TrustInvalid, "trust file")
    try:
        _ = trust.broker.signing_bytes
    except DataInvalid as error:
        raise TrustInvalid(f"trust file: broker.signing_key: {error.message}") from error
    return trust


def load_trust(path: Path) -> Trust:
    """Read a trust file.

    Raises:
        TrustInvalid: Not YAML, or as ``parse_trust``.
        DataInvalid: There is no such file, or it is over 1 MiB.
    """
    data = read_bounded(path, MAX_TRUST_BYTES)
    return parse_trust(
        parse_yaml(data, error=TrustInvalid, what="trust file", max_bytes=MAX_TRUST_BYTES)
    )
