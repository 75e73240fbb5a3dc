"""A run's manifest in a file, with the sealed outputs beside it: what an auditor verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sealtrain.base.clock import system_clock
from sealtrain.base.files import read_regular
from sealtrain.manifest.trust import load_trust
from sealtrain.manifest.verify import Report, VerifiedManifest, examine, verify_manifest

__all__ = ["Artefacts", "examine_file", "manifest_bytes", "verify_file"]

MAX_MANIFEST_BYTES = 64 << 20
Artefacts = Path | Literal["beside"] | None
"""Folder with a run's sealed outputs: named, the manifest's own, or ``None`` for none."""


def verify_file(
    manifest: Path, trust: Path, *, artefacts: Artefacts = "beside", now: int | None = None
) -> VerifiedManifest:
    """Return the contents of a manifest that passes every check. Nothing is asked of any server.

    Args:
        manifest: ``manifest.json`` of a run.
        trust: What the auditor trusts (YAML).
        artefacts: Folder with the sealed outputs, ``beside`` for the manifest's own; ``None``
            leaves the outputs unchecked.
        now: Seconds since 1970; the system's clock when ``None``.

    Raises:
        Refused: The first refusal in the order of the specification.
        DataInvalid: There is no such file, or it is too long.
        TrustInvalid: The trust file is none.
    """
    return verify_manifest(
        manifest_bytes(manifest),
        load_trust(trust),
        artefacts=_folder(manifest, artefacts),
        now=system_clock() if now is None else now,
    )


def examine_file(
    manifest: Path, trust: Path, *, artefacts: Artefacts = "beside", now: int | None = None
) -> Report:
    """Make every check that can be made, and report them all. Arguments as ``verify_file``.

    Raises:
        DataInvalid: There is no such file, or it is too long.
        TrustInvalid: The trust file is none.
    """
    return examine(
        manifest_bytes(manifest),
        load_trust(trust),
        artefacts=_folder(manifest, artefacts),
        now=system_clock() if now is None else now,
    )


def manifest_bytes(path: Path) -> bytes:
    """Read a file that claims to be a manifest.

    Raises:
        DataInvalid: There is no such file, or it is too long.
    """
    return read_regular(path, MAX_MANIFEST_BYTES)


def _folder(manifest: Path, artefacts: Artefacts) -> Path | None:
    return manifest.parent if artefacts == "beside" else artefacts
