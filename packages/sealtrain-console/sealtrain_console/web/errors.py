"""Errors of the console and of an owner's agent."""

from __future__ import annotations

from sealtrain.errors import DataInvalid, Refused, Unreachable


class CrossSiteRefused(Refused):
    """A page of another site, or a foreign host name, asked the console."""


class PasskeyInvalid(Refused):
    """A passkey did not sign this decision for this console, or was not enrolled with the agent."""


class AgentDeclined(Refused):
    """An owner's agent signed nothing: its owner did not confirm, or it was asked for another."""


class AgentUnreachable(Unreachable):
    """The owner's agent does not run, is busy asking, or did not answer in time."""

    retry = "again"


class PageUnknown(DataInvalid):
    """The console has no page at this address."""

    http_status = 404
