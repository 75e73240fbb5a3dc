"""A run's manifest in a file, with the sealed outputs beside it: what an auditor verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sealtrain.base.clock import system_clock
from sealtrain.base.files import read_regular
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import LimitExceeded
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.manifest.trust import Trust, load_trust
from sealtrain.manifest.verify import Report, VerifiedManifest, examine, verify_manifest
from sealtrain.sealing.trainedmodel import RUN_MANIFEST

Artefacts = Path | Literal["beside"] | None
"""Folder with a run's sealed outputs: named, the manifest's own, or ``None`` for none."""


def verify_file(
    manifest: Path, trust: Path | Trust, *, artefacts: Artefacts = "beside", now: int | None = None
) -> VerifiedManifest:
    """Return the contents of a manifest that passes every check. Nothing is asked of any server.

    Args:
        manifest: ``manifest.json`` of a run, or the run's folder.
        trust: What the auditor trusts, or the file (YAML).
        artefacts: Folder with the sealed outputs, ``beside`` for the manifest's own; ``None``
            leaves the outputs unchecked.
        now: Seconds since 1970; the system's clock when ``None``.

    Raises:
        Refused: The first refusal in the order of the specification.
        DataInvalid: There is no such file.
        TrustInvalid: The file is no trust file.
    """
    manifest = manifest_at(manifest)
    return verify_manifest(
        manifest_bytes(manifest),
        trust if isinstance(trust, Trust) else load_trust(trust),
        artefacts=_folder(manifest, artefacts),
        now=system_clock() if now is None else now,
    )


def examine_file(
    manifest: Path, trust: Path | Trust, *, artefacts: Artefacts = "beside", now: int | None = None
) -> Report:
    """Make every check that can be made, and report them all. Arguments as ``verify_file``.

    Raises:
        ManifestMalformed: It is longer than a manifest may be.
        DataInvalid: There is no such file.
        TrustInvalid: The file is no trust file.
    """
    manifest = manifest_at(manifest)
    return examine(
        manifest_bytes(manifest),
        trust if isinstance(trust, Trust) else load_trust(trust),
        artefacts=_folder(manifest, artefacts),
        now=system_clock() if now is None else now,
    )


def manifest_at(place: Path) -> Path:
    """The manifest of a run's folder, or the file that was named."""
    return place / RUN_MANIFEST if place.is_dir() else place


def manifest_bytes(path: Path) -> bytes:
    """Read a file that claims to be a manifest, and no more of it than a manifest may have.

    Raises:
        ManifestMalformed: It is longer than a manifest may be (spec/run-manifest.md §6).
        DataInvalid: There is no such file.
    """
    try:
        return read_regular(path, MAX_MANIFEST_BYTES)
    except LimitExceeded as error:
        raise ManifestMalformed(
            f"{path.name} is too long for a run manifest",
            check="form",
            got=error.got,
            expected=error.expected,
            hint="name the manifest.json of a sealtrain run",
        ) from error


def _folder(manifest: Path, artefacts: Artefacts) -> Path | None:
    return manifest.parent if artefacts == "beside" else artefacts
