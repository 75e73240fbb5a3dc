"""Version of sealtrain, and the top-level packages that its wheel consists of."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PACKAGES", "VERSION", "own_folders"]

VERSION = "0.1.0"

PACKAGES = ("sealtrain", "sealtrain_chain", "sealtrain_collab", "sealtrain_simulator")
"""Everything that is measured as sealtrain's code, and that a guest may import as its own."""


def own_folders() -> dict[str, Path]:
    """Folder of each package, by its name."""
    home = Path(__file__).absolute().parents[2]
    return {name: home / name for name in PACKAGES}
