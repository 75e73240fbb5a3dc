"""The client's side of a broker in one place: ask, attest, obtain keys, renew the lease."""

from __future__ import annotations

from sealtrain.release.api import BrokerClient
from sealtrain.release.attested import (
    AttestedBroker,
    attested_identity,
    fetch_keys,
    pinned_identity,
)
from sealtrain.release.grant import Grant, Receipted, obtain, renew

__all__ = [
    "AttestedBroker",
    "BrokerClient",
    "Grant",
    "Receipted",
    "attested_identity",
    "fetch_keys",
    "obtain",
    "pinned_identity",
    "renew",
]
