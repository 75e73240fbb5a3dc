"""Errors of recipes and locks."""

from __future__ import annotations

from sealtrain.errors import ConfigError, DataInvalid, Refused, ReleaseRefused


class RecipeInvalid(ConfigError):
    """A recipe breaks its schema."""


class LockInvalid(ConfigError):
    """A lock or deployment document is malformed or does not fit its recipe."""


class DatasetUnknown(ReleaseRefused):
    """No owner registered this dataset for this recipe."""


class EnvironmentChanged(Refused):
    """Code, packages, base model or tokenizer differ from the lock."""


class ModelInvalid(DataInvalid):
    """A base model or tokenizer cannot be loaded."""


class ValidationFailed(DataInvalid):
    """The records break a rule of the recipe; the error names the rule, never a record."""
