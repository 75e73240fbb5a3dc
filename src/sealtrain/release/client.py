"""The client's side of a broker in one place: ask, attest, obtain keys, renew the lease."""

from __future__ import annotations

from sealtrain.release.api import BrokerClient
from sealtrain.release.attested import AttestedBroker, fetch_keys
from sealtrain.release.grant import Grant, Receipted, obtain, renew

__all__ = [
    "AttestedBroker",
    "BrokerClient",
    "Grant",
    "Receipted",
    "fetch_keys",
    "obtain",
    "renew",
]
