"""The modules of installed packages, by the files that the packages' RECORDs list.

A module counts only if the RECORD of a pinned package lists its file: source and extensions, never
compiled caches, and no file that was put beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.metadata import Distribution
from pathlib import Path

from sealtrain.base.distributions import CORE

# The order in which Python itself prefers them.
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)


class Importable:
    """See the module. Folders and files are absolute paths.

    Attributes:
        distributions: Packages by normalised name.
        own: Distributions of sealtrain itself, as a lock's ``code`` names them.
    """

    def __init__(
        self,
        distributions: Mapping[str, Distribution] | None = None,
        paths: Mapping[str, Iterable[str]] | None = None,
        own: Iterable[str] = (CORE,),
    ) -> None:
        """Remember the listed files; the first look-up of a module sorts them.

        Args:
            distributions: Packages by normalised name; none when ``None``.
            paths: Name of each package → files that its RECORD lists, relative to its folder.
            own: Distributions of sealtrain itself.
        """
        self.own = tuple(own)
        self.distributions: dict[str, Distribution] = dict(distributions or {})
        self._paths = dict(paths or {})

    def narrow_to(self, own: Iterable[str]) -> Importable:
        """The same packages, with these distributions of sealtrain itself."""
        narrowed = copy(self)
        narrowed.own = tuple(own)
        return narrowed

    @property
    def listed(self) -> dict[str, list[str]]:
        """Name of each package → its files that are modules, as the constructor takes them."""
        return {
            name: [path for path in self._paths.get(name, ()) if path.endswith(_SUFFIXES)]
            for name in self.distributions
        }

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Folders in which packages are installed."""
        return tuple(dict.fromkeys(map(_place, self.distributions.values())))

    @cached_property
    def top_level(self) -> frozenset[str]:
        """First names in imports of installed modules."""
        names = {name for root in self.roots for name in self._modules.get(root, ())}
        for folder in self._folders:
            place, _, name = folder.rpartition("/")
            if place in self.roots:
                names.add(name)
        return frozenset(name for name in names if name.isidentifier())

    def file_of(self, folder: str, name: str) -> str | None:
        """File of module ``name`` in a folder: ``name/__init__.py``, an extension, or source."""
        package = self._modules.get(f"{folder}/{name}", {}).get("__init__")
        return package or self._modules.get(folder, {}).get(name)

    def is_folder(self, folder: str) -> bool:
        """Whether modules lie in a folder or below it."""
        return folder in self._folders

    def lists(self, file: str) -> bool:
        """Whether the file belongs to a module."""
        return file in self._files

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(file for found in self._modules.values() for file in found.values())

    @cached_property
    def _folders(self) -> frozenset[str]:
        folders: set[str] = set()
        for folder in self._modules:
            while folder not in folders and folder not in self.roots:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    @cached_property
    def _modules(self) -> dict[str, dict[str, str]]:
        """Folder → module's name in it → its file."""
        found: dict[str, dict[str, str]] = {}
        for suffix in reversed(_SUFFIXES):  # preferred suffixes replace the others
            for name, distribution in self.distributions.items():
                root = _place(distribution)
                for path in self._paths.get(name, ()):
                    if path.endswith(suffix):
                        inner, _, file = path.rpartition("/")
                        folder = f"{root}/{inner}" if inner else root
                        module = file[: -len(suffix)]
                        if "." not in module:
                            found.setdefault(folder, {})[module] = f"{folder}/{file}"
        return found


def _place(distribution: Distribution) -> str:
    return os.path.normpath(Path(str(distribution.locate_file(""))).absolute())
