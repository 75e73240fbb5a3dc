"""The trust file: values that an auditor takes as given before reading a manifest (spec/trust.md).

No field has a default: a missing field is an error, and the auditor writes ``any`` to accept any
value. ``chain`` alone may be left out, for consortia that decide on no chain: where a receipt has a
chain's word all the same, reports say that it was not compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.encoding import from_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Base64, Hex40, Hex64, StrictModel, load_model
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import DataInvalid, TrustInvalid
from sealtrain.signing.ed25519 import key_id

MAX_TRUST_BYTES = 1 << 20
MAX_BROKERS = 64
MAX_BLOCKS = 4096
_ADDRESS = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{40}$")]
_SIGNING_KEY = Annotated[Base64, StringConstraints(min_length=44, max_length=44)]


class TrustedBrokers(StrictModel):
    """The brokers whose receipts and ledgers count.

    Attributes:
        signing_keys: A key for each broker.
        threshold: Number of them that must have released each dataset.
        datasets: ``all`` of the manifest, or ``theirs``: only the datasets that they released. That
            is the view of one broker of several; it does not show whether a lease was live
            throughout.
    """

    signing_keys: tuple[_SIGNING_KEY, ...] = Field(min_length=1, max_length=MAX_BROKERS)
    threshold: int = Field(ge=1)
    datasets: Literal["all", "theirs"]

    @model_validator(mode="after")
    def _threshold_can_be_met(self) -> TrustedBrokers:
        if len(set(self.signing_keys)) != len(self.signing_keys):
            raise ValueError("a signing key is listed twice")
        if self.threshold > len(self.signing_keys):
            raise ValueError("the threshold is above the number of brokers")
        return self

    @property
    def by_key_id(self) -> dict[str, bytes]:
        """Raw Ed25519 public keys, 32 bytes each, by their key id in signatures."""
        raw = [from_base64(signing_key, length=32) for signing_key in self.signing_keys]
        return {key_id(key): key for key in raw}


class TrustedChain(StrictModel):
    """The owners' contract on a public chain, and the blocks of it that count (spec/chain.md §8).

    Attributes:
        kind: Of the contract; it, ``code_hash``, ``implementation`` and ``app_id`` are as in the
            chain file.
        max_age_seconds: How much older than a receipt its block may be.
        blocks: Hashes of blocks that the auditor found on the chain.
    """

    chain_id: int = Field(ge=1, le=2**53 - 1)
    contract: _ADDRESS
    kind: Literal["owners", "dstack-app"]
    code_hash: Hex64
    implementation: _ADDRESS | Literal["none"]
    app_id: Literal["contract", "any"]
    max_age_seconds: int = Field(ge=1, le=86400)
    blocks: tuple[Hex64, ...] = Field(min_length=1, max_length=MAX_BLOCKS)

    @model_validator(mode="after")
    def _consistent(self) -> TrustedChain:
        if len(set(self.blocks)) != len(self.blocks):
            raise ValueError("a block is listed twice")
        if (self.kind == "dstack-app") != (self.implementation != "none"):
            raise ValueError("implementation is pinned for dstack-app, and 'none' for owners")
        return self


class Trust(StrictModel):
    """Trust file. The auditor has to write ``any`` explicitly."""

    version: Literal[1]
    consortium_id: Hex64
    recipe_hash: Hex64
    compose_hash: Hex64 | Literal["any"]
    app_id: Hex40 | Literal["any"]
    brokers: TrustedBrokers
    appraisal: AppraisalPolicy
    simulated: Literal["refuse", "accept-insecure"]
    chain: TrustedChain | None = Field(default=None, exclude_if=lambda value: value is None)

    def to_yaml(self) -> bytes:
        """The trust file."""
        return yaml_text(self.to_dict()).encode()

    def save(self, path: Path) -> None:
        """Write a new trust file, whole or not at all.

        Raises:
            AlreadyExists: The file exists.
        """
        atomic_write(path, self.to_yaml())


def parse_trust(document: Any) -> Trust:
    """Trust from a parsed YAML or JSON document.

    Raises:
        TrustInvalid: A field is missing, unknown or malformed.
    """
    AppraisalPolicy.model_rebuild()  # else pydantic builds its schema twice: here, and by itself
    trust = load_model(Trust, document, TrustInvalid, "trust file")
    try:
        _ = trust.brokers.by_key_id
    except DataInvalid as error:
        raise TrustInvalid(f"trust file: brokers.signing_keys: {error.message}") from error
    return trust


def load_trust(path: Path) -> Trust:
    """Read a trust file.

    Raises:
        TrustInvalid: Not YAML, or as ``parse_trust``.
        DataInvalid: The file is missing, or over 1 MiB.
    """
    data = read_bounded(path, MAX_TRUST_BYTES)
    return parse_trust(
        parse_yaml(data, error=TrustInvalid, what="trust file", max_bytes=MAX_TRUST_BYTES)
    )
