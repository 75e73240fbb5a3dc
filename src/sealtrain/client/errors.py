"""Errors of what owners and engineers ask brokers for."""

from __future__ import annotations

from sealtrain.errors import ConfigError, DataInvalid, Refused, SealtrainError, Unreachable


class TicketInvalid(ConfigError):
    """A run ticket is malformed, or names a role that the deployment document does not have."""


class SubmissionConflict(Refused):
    """Another submission has this name."""


class RunUnconfirmed(Refused):
    """A runner says that a run completed, and the broker has recorded no manifest of it."""

    retry = "later"


class BrokerUnreachable(Unreachable):
    """The broker did not answer."""


class HubUnreachable(Unreachable):
    """The hub of models does not answer, or stalls; files in its local cache do not suffice."""


class SubmissionUnknown(DataInvalid):
    """The broker's ledger has no such submission."""

    http_status = 404


class RunNotCompleted(SealtrainError):
    """A submitted run has no model: it failed, was stopped or skipped, never began, or goes on."""


class WaitOver(SealtrainError):
    """A submitted run has not ended in the time given; it goes on."""

    exit_code = 124
    http_status = 503
    retry = "again"
