"""The chain file: which contract decides, and how many nodes must agree on what it says.

Nothing has a default (spec/chain.md §1). Node addresses may hold an access key, so messages name
their host only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.files import read_bounded
from sealtrain.base.models import Hex64, OwnerName, StrictModel, load_model
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import DataInvalid, TrustInvalid, UsageError

_MAX_BYTES = 64 << 10
MAX_CHAIN_ID = 2**53 - 1

Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{40}$")]
"""20 bytes, ``0x`` and lower-case hex."""
NodeUrl = Annotated[str, StringConstraints(pattern=r"^https?://[!-~]{1,500}$")]


class ChainFile(StrictModel):
    """The contract that decides, and the nodes to ask. Every field is written."""

    version: Literal[1]
    chain_id: int = Field(ge=1, le=MAX_CHAIN_ID)
    rpc: tuple[NodeUrl, ...] = Field(min_length=1, max_length=16)
    """Nodes that are asked; none is trusted for a value."""
    agree: int = Field(ge=1)
    """Nodes that must name the same block: more than half of them."""
    block: Literal["finalized", "safe", "latest"]
    max_age_seconds: int = Field(ge=1, le=86400)
    cache_seconds: int = Field(ge=0, le=300)
    timeout_seconds: int = Field(ge=1, le=120)
    contract: Address
    kind: Literal["owners", "dstack-app"]
    code_hash: Hex64
    """Keccak-256 of the code at ``contract``."""
    implementation: Address | Literal["none"]
    """What the proxy of a ``dstack-app`` must lead to."""
    app_id: Literal["contract", "any"]
    kms: Address | Literal["none"]
    owners: dict[OwnerName, Address] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            places = [(urlsplit(url).hostname, urlsplit(url).port) for url in self.rpc]
        except ValueError as error:
            raise ValueError("rpc holds something that is not a URL") from error
        if any(not host for host, _ in places):
            raise ValueError("rpc holds a URL without a host")
        if len(set(places)) != len(places):
            raise ValueError("rpc names a node twice: it would agree with itself")
        if not len(self.rpc) < 2 * self.agree <= 2 * len(self.rpc):
            raise ValueError("agree must be more than half of the nodes, and not more than all")
        if (self.kind == "dstack-app") != (self.implementation != "none"):
            raise ValueError("implementation is pinned for dstack-app, and 'none' for owners")
        if len(set(self.owners.values())) != len(self.owners):
            raise ValueError("two owners have the same address: one person is one owner")
        return self

    def owner_of(self, address: str) -> str | None:
        """Name of the owner with that address."""
        return next((name for name, own in self.owners.items() if own == address), None)

    def to_yaml(self) -> str:
        """The chain file's text."""
        return yaml_text(self.to_dict())


def load_chain_file(path: Path) -> ChainFile:
    """Read a chain file.

    Raises:
        TrustInvalid: It cannot be read, is not YAML, or a field is missing, unknown or malformed.
    """
    try:
        text = read_bounded(path, _MAX_BYTES)
    except DataInvalid as error:
        raise TrustInvalid(error.message, check="chain file", hint=error.hint) from error
    data = parse_yaml(text, error=TrustInvalid, what="chain file", max_bytes=_MAX_BYTES)
    return load_model(ChainFile, data, TrustInvalid, "chain file")


def address_of(text: str, what: str) -> str:
    """An address as typed, in its written form.

    Raises:
        UsageError: Not ``0x`` and 40 hex digits.
    """
    lower = text.lower()
    if len(lower) != 42 or not lower.startswith("0x") or set(lower[2:]) - set("0123456789abcdef"):
        raise UsageError(f"{what} is not an address", check=what, got=text[:64], expected="0x…")
    return lower


def host_of(url: str) -> str:
    """The part of a node's address that may be shown."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
