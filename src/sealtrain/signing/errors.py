"""Errors of signatures and of documents that are signed."""

from __future__ import annotations

from sealtrain.errors import Refused, ReleaseRefused


class StatementInvalid(Refused):
    """A signed document is genuine, but malformed or outside its period of validity."""


class RetentionEnded(ReleaseRefused):
    """The time until which the owner lets the dataset be used has passed."""


class PurposeMismatch(ReleaseRefused):
    """The recipe's purpose is none of those to which the owner binds the dataset."""


class BrokerMismatch(ReleaseRefused):
    """The broker is not the one that the request, the decision or the broker file names."""

    retry = "later"  # a guest that asks again after a rotation learns the broker's new key


class ProofInvalid(Refused):
    """A Merkle proof does not lead to the signed root."""


class RequestStale(Refused):
    """A request was signed too long ago, or ahead of the broker's clock."""


class RunLogBroken(Refused):
    """A run log's hash chain does not verify."""
