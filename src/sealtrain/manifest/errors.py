"""Errors of a run's manifest."""

from __future__ import annotations

from sealtrain.errors import ManifestRefused, Refused


class TranscriptInvalid(Refused):
    """The transcript of a travelling accelerator contradicts itself or its run."""


class ManifestMalformed(ManifestRefused):
    """A manifest cannot be parsed or is not in its canonical form."""


class SubjectMismatch(ManifestRefused):
    """An artefact was altered, is missing, or is not named by the manifest."""


class TrustMismatch(ManifestRefused):
    """The manifest is about another consortium, recipe or broker than the trust file names."""


class ClaimContradicted(ManifestRefused):
    """Two statements inside a manifest contradict each other."""
