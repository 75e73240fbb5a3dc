"""Errors of a broker's service."""

from __future__ import annotations

from sealtrain.errors import LimitExceeded, Refused, Unreachable


class RequestReplayed(Refused):
    """A signed request arrived a second time."""


class TokenRefused(Refused):
    """An operator's token is missing or unknown, or its scope does not cover the request."""

    http_status = 401


class DocumentMismatch(Refused):
    """A broker was told to serve something else than its measured deployment document says."""


class RequestLate(Unreachable):
    """A request did not arrive within the broker's time limit."""

    http_status = 408


class HeadTooLarge(LimitExceeded):
    """The path, query and headers of a request are longer than the broker reads."""

    http_status = 431


class RequestTooLarge(LimitExceeded):
    """The body of a request is longer than the broker reads for this path."""

    http_status = 413
