"""Compiled models inside a guest: ``trainer.torch_compile`` and the optimizers of torchao.

``torch.compile`` was made for machines on which a process starts any other. In a guest it reaches a
compiler by the workshop alone (``guest.sandbox.compilers``), and four habits of Inductor have to
change, none of which changes the code that it builds:

1. It tries a vector instruction in a Python process of its own. Here a forked child tries it.
2. It lets a program compute the digest of a compiled header. Here headers are not compiled ahead.
3. It compiles in worker processes. Here it compiles in the process that trains.
4. For PyTorch's include folders it imports setuptools, whose own parts lie where a guest imports
   nothing (``guest.sandbox.imports``). Here a stand-in has the one class that is asked for.

Shapes are dynamic from the first batch on. By default the code of a step would depend on the shapes
of the batches before it, and a resumed run, whose first batch is another, would compute by other
code. What was built lies in the run's memory and ends with it.

The optimizers of torchao compile their step by themselves. They take it as written here, which
gives the same numbers and needs no compiler.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.processes import fork
from sealtrain.errors import ExtraMissing
from sealtrain.recipe.engines import TORCHAO_OPTIMIZERS, builds_code

if TYPE_CHECKING:
    from sealtrain.recipe.schema import PhaseRecipe

_DYNAMIC: Final = "ACCELERATE_DYNAMO_USE_DYNAMIC"


def prepare_compiling(recipe: PhaseRecipe) -> None:
    """Make ready what compiles in this process, before a record is read.

    Raises:
        ExtraMissing: Code that was compiled here does not run, as without a C++ compiler.
    """
    trainer = recipe.trainer
    if trainer.torch_compile:
        os.environ[_DYNAMIC] = "1"  # accelerate reads it where a model is compiled
        if builds_code(recipe):
            _tame_inductor()
            _try_inductor()
    elif trainer.optim in TORCHAO_OPTIMIZERS:
        import torch

        torch.compiler.set_stance("force_eager")


def _tame_inductor() -> None:
    from torch._inductor import config, cpu_vec_isa

    _load_include_folders()
    settings: Any = config
    settings.compile_threads = 1
    settings.cpp_cache_precompile_headers = False
    isa: Any = cpu_vec_isa.VecISA
    isa._probe_load = _loads


def _load_include_folders() -> None:
    """Import the module that knows PyTorch's include folders, without setuptools."""
    if "setuptools" in sys.modules:
        return
    standin: Any = ModuleType("setuptools")
    standin.Command = type("Command", (), {})
    sys.modules["setuptools"] = standin
    try:
        import_module("torch.utils.cpp_extension")
    finally:
        del sys.modules["setuptools"]


def _loads(_isa: Any, path: str) -> bool:
    """Whether a library with a vector instruction loads on this processor."""
    child = fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(path)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _try_inductor() -> None:
    """Compile a sum, so that a guest that cannot says so by name."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations between the compiler's own parts
            compiled = torch.compile(lambda numbers: numbers.sin().sum(), dynamic=True)
            compiled(torch.ones(8))
    except Exception as error:  # each layer of the compiler has errors of its own
        raise no_compiler(type(error).__name__) from None


def no_compiler(got: str) -> ExtraMissing:
    """The refusal of a guest in which nothing compiles.

    Args:
        got: What was found in place of a compiler.
    """
    return ExtraMissing(
        "the recipe compiles its model, and this guest cannot compile",
        check="torch_compile",
        got=got,
        expected="a C++ compiler with its headers and those of Python, in the guest's image",
        hint="run in an image that has one, or write torch_compile_backend: aot_eager",
    )
