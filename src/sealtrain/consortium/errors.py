"""Errors of what owners sign together."""

from __future__ import annotations

from sealtrain.errors import ConfigError, Refused, ReleaseRefused


class ConsortiumInvalid(ConfigError):
    """A consortium document breaks its rules or does not name the owner."""


class ApprovalsMissing(ReleaseRefused):
    """Fewer owners approved than the threshold asks for."""

    retry = "later"


class ApprovalExpired(ReleaseRefused):
    """The approvals that would complete the threshold have expired."""

    retry = "later"


class ApprovalSpent(ReleaseRefused):
    """As many runs as standing approvals allow have begun."""

    retry = "later"


class ApprovalRevoked(ReleaseRefused):
    """An owner revoked the recipe."""

    retry = "later"


class ApprovalUnknown(ReleaseRefused):
    """No owner of this consortium signed the approval, or it names another consortium."""


class DatasetMismatch(ReleaseRefused):
    """The dataset is not the one that its owner signed."""


class SeriesMismatch(ReleaseRefused):
    """The members of a series are not the whole and newest series that its owner signed."""


class BudgetSpent(ReleaseRefused):
    """A run would spend more of a dataset's privacy than its owner's budget has left."""


class ConsortiumMismatch(ReleaseRefused):
    """The request or its recipe is about another consortium than the broker's."""


class SignerUnknown(Refused):
    """No submitter or runner that the broker knows signed the document."""


class SubmissionEnded(Refused):
    """The submission has ended: it was run, stopped, skipped, or never claimed in time."""


class ClaimTaken(Refused):
    """Another runner holds the submission."""

    retry = "later"


class RunEventRefused(Refused):
    """The run event does not follow the last one of its submission."""
