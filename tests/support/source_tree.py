"""Where the repository's own modules are: the core under src/, each room under packages/."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sealtrain.base.distributions import DISTRIBUTIONS, code_folder


@cache
def source_modules(repository: Path) -> dict[str, Path]:
    """Every Python file of every distribution, by its place: ``sealtrain_nodes/cli.py``."""
    folders = {name: code_folder(repository, name) for name in DISTRIBUTIONS}
    return {
        path.relative_to(folder).as_posix(): path
        for name, folder in folders.items()
        for path in sorted((folder / DISTRIBUTIONS[name]).rglob("*.py"))
    }
