"""Version of sealtrain, and the top-level packages that it consists of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sealtrain.base.distributions import DISTRIBUTIONS, code_folder

VERSION = "0.1.0"

PACKAGES = tuple(sorted(set(DISTRIBUTIONS.values())))
"""Everything that is sealtrain's code; a lock pins what its recipe needs of it."""


def own_folders(distributions: Iterable[str] = DISTRIBUTIONS) -> dict[str, Path]:
    """Folder of each package, by its name, whether it is installed or not.

    Installed, every room lies beside the core. In a checkout it lies in its own folder.

    Args:
        distributions: Of which; all when not given.
    """
    home = Path(__file__).absolute().parents[2]
    in_checkout = home.name == "src" and (home.parent / "packages").is_dir()
    return {
        DISTRIBUTIONS[name]: (code_folder(home.parent, name) if in_checkout else home)
        / DISTRIBUTIONS[name]
        for name in distributions
    }
