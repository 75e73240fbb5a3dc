"""What a recipe's engine settings need of the machine, looked for before a run asks for keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.errors import ExtraMissing
from sealtrain.guest.sandbox.border import has_accelerator
from sealtrain.guest.sandbox.compilers import tools
from sealtrain.recipe.engines import builds_code
from sealtrain.training.compiling import no_compiler

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

_CPP: Final = ("c++", "clang++", "g++")


def require_engines(recipe: PhaseRecipe) -> None:
    """Refuse a machine on which the recipe's settings cannot work.

    A workload tries its compiler again, with a program of its own, before it reads a record.

    Raises:
        ExtraMissing: A compiler is missing, or an accelerator.
    """
    if builds_code(recipe) and not {Path(tool).name for tool in tools()}.intersection(_CPP):
        raise no_compiler("no c++, g++ or clang++")
    if recipe.trainer.use_liger_kernel and not has_accelerator():
        raise ExtraMissing(
            "the recipe computes by Liger's kernels, which run on an accelerator alone",
            check="use_liger_kernel",
            got="no accelerator",
            expected="a guest with an accelerator",
            hint="leave trainer.use_liger_kernel out",
        )
