"""In the process that trains, Python finds only the modules that the lock pins.

``import_only_pinned`` replaces all of Python's finders by a single one. It finds a module only in

1. the interpreter and its standard library;
2. the measured files of sealtrain itself: of the core, and of the rooms that the lock pins;
3. files that the records of pinned packages list.

Everything else is as if it were not installed: ``ModuleNotFoundError`` for an import, ``None`` for
``importlib.util.find_spec``, and no distribution for ``importlib.metadata``. So optional parts of
libraries behave alike on every machine. Neither ``sys.path`` nor a ``.pth`` file, a working
directory, an archive or a namespace package adds anything. Children that are forked inherit it.

``import_only_pinned`` checks the modules that are loaded already: it refuses a process that loaded
anything else. ``cli.alone`` starts a process that has loaded nothing of the kind.

The finder judges imports by name. Code that reads a file and runs it is not judged: it is pinned
itself, and reviewed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    NamespaceLoader,
    PathFinder,
    SourceFileLoader,
)
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from sealtrain.base.version import own_folders
from sealtrain.guest.errors import ImportRefused
from sealtrain.recipe.importable import Importable
from sealtrain.recipe.installation import normalise_name

_EXTENSIONS: Final = tuple(EXTENSION_SUFFIXES)
_GENERATED: Final = "_sysconfigdata_"
_ADDED: Final = re.compile(r"/(site|dist)-packages/")
_ANY_PACKAGE: Final = DistributionFinder.Context()


def import_only_pinned(importable: Importable) -> None:
    """From now on, and until it ends, this process imports nothing else.

    Args:
        importable: Modules of the pinned packages.

    Raises:
        ImportRefused: The process imported another module before; the error names it.
    """
    finder = PinnedFinder(importable)
    for name, module in tuple(sys.modules.items()):
        file = _file_of(module)
        if name != "__main__" and file is not None and not finder.knows(file):
            raise ImportRefused(
                "this process has loaded a module that the lock does not pin",
                check="imports",
                got=name,
                expected="the standard library, sealtrain and pinned packages",
                hint="remove it from the environment of the guest, or from Python's start-up files",
            )
    before = sys.meta_path[1:] if isinstance(sys.meta_path[0], PinnedFinder) else []
    sys.meta_path[:] = [finder, *before]


class PinnedFinder(DistributionFinder):
    """See the module: finds modules, and the metadata of the packages that have them."""

    def __init__(self, importable: Importable) -> None:
        self._importable = importable
        self._library = tuple(_library())
        own = tuple(own_folders(importable.own).values())
        self._homes = tuple(dict.fromkeys(str(folder.parent) for folder in own))
        self._own_files = frozenset(_own_files(own))
        self._distributions = dict(importable.distributions)
        with contextlib.suppress(PackageNotFoundError):
            self._distributions["sealtrain"] = distribution("sealtrain")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As Python's finders: the spec of a module, ``None`` where no pinned file has it."""
        parent, _, name = fullname.rpartition(".")
        if not parent:
            return self._of_interpreter(fullname) or self._find(
                fullname, name, (*self._homes, *self._importable.roots)
            )
        return self._find(fullname, name, path or ())

    def find_distributions(
        self, context: DistributionFinder.Context = _ANY_PACKAGE
    ) -> Iterator[Distribution]:
        """Metadata of sealtrain and the pinned packages, or of the package the context names."""
        known = self._distributions
        if context.name is None:
            return iter(known.values())
        wanted = normalise_name(context.name)
        return iter([known[wanted]] if wanted in known else [])

    def invalidate_caches(self) -> None:
        """Do nothing: no module is added while the process lives."""

    def knows(self, file: str) -> bool:
        """Whether the finder may load a module from this file."""
        return file in self._own_files or self._importable.lists(file) or self._in_library(file)

    def _in_library(self, path: str) -> bool:
        # Packages may be installed inside the library's folder.
        return f"{path}/".startswith(self._library) and not _ADDED.search(f"{path}/")

    def _of_interpreter(self, name: str) -> ModuleSpec | None:
        if name not in sys.stdlib_module_names and not name.startswith(_GENERATED):
            return None
        return (
            BuiltinImporter.find_spec(name)
            or FrozenImporter.find_spec(name)
            or PathFinder.find_spec(name, self._library)
        )

    def _find(self, fullname: str, name: str, folders: Iterable[str]) -> ModuleSpec | None:
        portions = []
        for folder in folders:
            folder = os.path.normpath(folder)
            if self._in_library(folder):
                return PathFinder.find_spec(fullname, [folder])
            file = self._own(folder, name) or self._importable.file_of(folder, name)
            if file is not None and Path(file).is_file():
                return _spec(fullname, file)
            if self._importable.is_folder(inside := f"{folder}/{name}"):
                portions.append(inside)
        if not portions:
            return None
        loader = NamespaceLoader(fullname, portions, self.find_spec)
        spec = ModuleSpec(fullname, loader, is_package=True)
        spec.submodule_search_locations = portions
        return spec

    def _own(self, folder: str, name: str) -> str | None:
        candidates = (f"{folder}/{name}/__init__.py", f"{folder}/{name}.py")
        return next((file for file in candidates if file in self._own_files), None)


def _spec(fullname: str, file: str) -> ModuleSpec | None:
    loader: Any = ExtensionFileLoader if file.endswith(_EXTENSIONS) else SourceFileLoader
    folder, _, name = file.rpartition("/")
    is_package = name.partition(".")[0] == "__init__"
    return spec_from_file_location(
        fullname,
        file,
        loader=loader(fullname, file),
        submodule_search_locations=[folder] if is_package else None,
    )


def _library() -> Iterator[str]:
    """Folders of the standard library, each with a separator at its end."""
    names = ("stdlib", "platstdlib")
    folders = [sysconfig.get_path(name) for name in names]
    folders.append(sysconfig.get_config_var("DESTSHARED"))
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    folders += [folder for folder in sys.path if folder.endswith(f"python{version}.zip")]
    for folder in dict.fromkeys(filter(None, folders)):
        yield f"{os.path.normpath(folder)}/"


def _own_files(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for path in folder.rglob("*.py"):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield str(path)


def _file_of(module: ModuleType) -> str | None:
    """The file that a module was loaded from; ``None`` for one that was made in memory."""
    spec = getattr(module, "__spec__", None)
    file = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
    file = file or getattr(module, "__file__", None)
    # Some modules that are made in memory carry a name that is not a file's.
    return os.path.normpath(file) if isinstance(file, str) and file.startswith("/") else None
