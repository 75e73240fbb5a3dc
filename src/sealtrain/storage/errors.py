"""Errors of stores."""

from __future__ import annotations

from sealtrain.errors import Refused, Unreachable


class OutputStoreInvalid(Refused):
    """The store of a run's outputs holds something else than the run left there."""


class StorageUnreachable(Unreachable):
    """A remote store did not deliver or take a file, and every retry failed."""


class StorageRefused(StorageUnreachable):
    """A remote store refuses a request for good: trying again changes nothing."""

    retry = "never"
