"""Files that come with sealtrain beside its code: ready recipes and the demo.

A wheel installs them below ``share/sealtrain`` of the environment, outside the package, so that
they are no part of the code that a lock pins; a checkout has them in its own folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from sealtrain.errors import DataInvalid


def find_shipped(name: str) -> Path:
    """The file or folder of that name, as the checkout lays it out.

    Args:
        name: Relative path, such as ``recipes``.

    Raises:
        DataInvalid: It is neither installed nor in a checkout.
    """
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / name).exists():
        return checkout / name
    for folder in _find_installed():
        if (folder / name).exists():
            return folder / name
    raise DataInvalid(
        f"this installation of sealtrain has no {name}",
        hint="install sealtrain from its wheel, or run from a checkout",
    )


def _find_installed() -> Iterator[Path]:
    """The folder that the wheel's record names as ``share/sealtrain``, if there is one."""
    try:
        installed = distribution("sealtrain")
    except PackageNotFoundError:
        return
    for file in installed.files or ():
        for parent in file.parents:
            if parent.parts[-2:] == ("share", "sealtrain"):
                yield Path(str(installed.locate_file(parent))).resolve()
                return
