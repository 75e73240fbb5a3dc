"""Errors of a run in its guest."""

from __future__ import annotations

from sealtrain.errors import ConfigError, Refused, SealtrainError


class ImportRefused(Refused):
    """The run imports a package that the lock does not pin."""


class TrainingFailed(SealtrainError):
    """Training raised an exception that is not sealtrain's; its text stays in the guest."""


class RunStopped(SealtrainError):
    """The run was told to end (SIGTERM); what it had sealed stays, and a resume goes on from it."""

    exit_code = 143
    retry = "later"


class ScriptFailed(ConfigError):
    """A script of the recipe raised an exception of its own; its text stays in the guest."""
