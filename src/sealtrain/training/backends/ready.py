"""Load the library of a backend so that no effect of loading it leaves the guest.

1. The library is loaded when the recipe names it and before Transformers and TRL, parts of which it
   replaces. It does so for the whole process: a run has a process of its own.
2. Unsloth writes Python source and imports it again, by default from its working directory. An
   operator who can write there could run code in the guest. Here it is a folder in memory that only
   this user opens. Unsloth also probes places for Hugging Face's caches; they lie there too.
3. Axolotl imports trackers regardless of its settings. Empty modules stand in for them: they have
   no function to call, and the trackers need not be installed.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from sealtrain.base.shipped import find_shipped
from sealtrain.errors import ExtraMissing

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
_INSTALL: Final = "tools/backends/install.sh"
_TRACKERS: Final = ("evaluate", "posthog", "wandb")
# A part that this version of TRL no longer has; only Axolotl's process reward models use it.
_GONE: Final = {"trl.experimental.prm": ("PRMConfig", "PRMTrainer")}
_folder: Path | None = None


def make_ready(name: str) -> None:
    """Load the library of ``backend.name``; the backends over TRL need none.

    Raises:
        ExtraMissing: The library is not installed, or the guest has no memory for its files.
    """
    load = {"unsloth": _load_unsloth, "axolotl": _load_axolotl}.get(name)
    if load is None or name in sys.modules:
        return
    if find_spec(name) is None:
        raise ExtraMissing(
            f"the backend {name} is not installed",
            check="backend",
            got="absent",
            expected=f"an environment with {name}",
            hint=f"sh {find_shipped(_INSTALL)} {name}",
        )
    try:
        with muted():
            load()
    except ImportError as error:
        raise ExtraMissing(
            f"the backend {name} does not load",
            check="backend",
            got=f"no {error.name}" if error.name else type(error).__name__,
            expected="the versions that this sealtrain names",
            hint=f"sh {find_shipped(_INSTALL)} {name}",
        ) from error


class muted:  # noqa: N801  # read as a phrase: with muted()
    """Drops everything printed inside: greetings, and names of files."""

    def __init__(self) -> None:
        self._gone = (redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()))

    def __enter__(self) -> None:
        for change in self._gone:
            change.__enter__()

    def __exit__(self, *raised: object) -> None:
        for change in reversed(self._gone):
            change.__exit__(None, None, None)


def _load_unsloth() -> None:
    folder = _in_memory()
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(folder / "compiled")
    os.environ["HF_HOME"] = str(folder)
    for name, inside in (("HF_HUB_CACHE", "hub"), ("HF_XET_CACHE", "xet")):
        os.environ[name] = str(folder / inside)
    import unsloth  # noqa: F401  # loading it is what changes the trainers


def _load_axolotl() -> None:
    for name in _TRACKERS:
        _stand_in(name)
    for name, classes in _GONE.items():
        if find_spec(name) is None:
            module = _stand_in(name)
            for class_ in classes:
                setattr(module, class_, type(class_, (), {}))
    import axolotl.train  # noqa: F401


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name, "Empty: see sealtrain.training.backends.ready.")
    module.__spec__ = ModuleSpec(name, None)
    sys.modules[name] = module
    return module


def _in_memory() -> Path:
    """A folder in memory that lasts as long as the process and that only this user opens."""
    global _folder
    if _folder is None:
        if not os.access(_MEMORY, os.W_OK):
            raise ExtraMissing(
                "the backend unsloth needs a folder in memory for code it makes",
                check="backend",
                got=f"no {_MEMORY} that can be written",
                hint=f"mount -t tmpfs tmpfs {_MEMORY}",
            )
        # A run's own folder for temporary files lies in memory already.
        given = Path(tempfile.gettempdir())
        memory = given if given.is_relative_to(_MEMORY) else _MEMORY
        _folder = Path(tempfile.mkdtemp(prefix="sealtrain-", dir=memory))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder
