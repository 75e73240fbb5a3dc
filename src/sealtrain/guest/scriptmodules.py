"""A recipe's own scripts as Python runs them: the text of the lock, never a file.

The first script runs as ``__main__``. It imports the others by name, found after all other modules,
and reads them beside itself: ``__file__`` lies in the folder of the copies (``guest.admission``).
Tracebacks and ``inspect`` know their lines.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from sealtrain.recipe.scripts import modules_of

__all__ = ["run_as_main"]


def run_as_main(texts: Mapping[str, str], scripts: Sequence[str], base: Path) -> None:
    """Run the first script to its end.

    Args:
        texts: Text of each script by its path in the recipe.
        scripts: Their paths, as the recipe lists them.
        base: Folder that these paths start from.

    Raises:
        BaseException: As raised by the script.
    """
    finder = _ScriptModules(texts, scripts, base)
    place = str(base / scripts[0])
    main = ModuleType("__main__")
    main.__file__ = place
    for path, text in texts.items():
        lines = text.splitlines(keepends=True)
        # Without a modification time, linecache keeps this text.
        linecache.cache[str(base / path)] = (len(text), None, lines, str(base / path))
    before = sys.modules["__main__"], sys.argv
    sys.modules["__main__"], sys.argv = main, [place]
    sys.meta_path.append(finder)
    try:
        exec(compile(texts[scripts[0]], place, "exec", dont_inherit=True), vars(main))  # noqa: S102
    finally:
        sys.modules["__main__"], sys.argv = before
        sys.meta_path.remove(finder)
        for name in finder.names:
            sys.modules.pop(name, None)


class _ScriptModules(MetaPathFinder, ExecutionLoader):
    """Finds and loads the modules among a recipe's scripts."""

    def __init__(self, texts: Mapping[str, str], scripts: Sequence[str], base: Path) -> None:
        self._texts, self._base = texts, base
        self._modules = modules_of(scripts)

    @property
    def names(self) -> set[str]:
        """Names of the modules, and of the packages they lie in."""
        parts = [name.split(".") for name in self._modules]
        return {".".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a script, or of a folder of scripts, which holds no other modules."""
        if fullname in self._modules:
            return spec_from_file_location(
                fullname,
                self.get_filename(fullname),
                loader=self,
                submodule_search_locations=[] if self.is_package(fullname) else None,
            )
        return ModuleSpec(fullname, None, is_package=True) if fullname in self.names else None

    def get_filename(self, fullname: str) -> str:
        """Where the script's copy lies."""
        return str(self._base / self._modules[fullname])

    def get_source(self, fullname: str) -> str:
        """Its text in the lock."""
        return self._texts[self._modules[fullname]]

    def is_package(self, fullname: str) -> bool:
        """Whether it is a package's ``__init__.py``."""
        return self._modules[fullname].endswith("__init__.py")
