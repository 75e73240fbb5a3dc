"""What is said where an extra of sealtrain is not installed."""

from __future__ import annotations

from sealtrain.errors import ExtraMissing

__all__ = ["extra_missing"]


def extra_missing(what: str, extra: str, error: ImportError) -> ExtraMissing:
    """The error for packages that are absent.

    Args:
        what: What needs them, as the beginning of a sentence.
        extra: Name of the extra that brings them.
        error: What importing them raised.
    """
    return ExtraMissing(
        f"{what} needs packages that are not installed",
        got=error.name,
        hint=f"pip install 'sealtrain[{extra}]'",
    )
