"""Errors of the decision to release keys."""

from __future__ import annotations

from sealtrain.errors import ReleaseRefused


class ChallengeUnknown(ReleaseRefused):
    """The broker never issued this challenge."""

    retry = "again"


class ChallengeReplayed(ReleaseRefused):
    """The challenge was used before."""

    retry = "again"


class ChallengeExpired(ReleaseRefused):
    """The challenge is too old."""

    retry = "again"


class DatasetWithdrawn(ReleaseRefused):
    """The owner withdrew the dataset for good."""


class LeaseUnknown(ReleaseRefused):
    """The broker never granted this lease."""


class AnswerInvalid(ReleaseRefused):
    """A broker's answer belongs to another conversation or breaks the protocol."""

    retry = "again"
