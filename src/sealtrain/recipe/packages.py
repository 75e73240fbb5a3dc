"""The packages that a recipe needs: the extras of sealtrain, and the packages that it names itself.

The lock pins these packages, and the guest can import no others (``sandbox.imports``). A recipe
does not say whether data lies on this machine or behind a URL, so the clients that read data from
elsewhere are part of extra ``train``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealtrain.recipe.recipe import Recipe

__all__ = ["PackagesWanted", "packages_of"]


@dataclass(frozen=True, slots=True)
class PackagesWanted:
    """The packages that must be installed for a recipe.

    Attributes:
        extras: Extras of sealtrain, ``train`` first.
        of_backend: Requirements of a backend that no extra installs, as ``name==version``.
        of_scripts: Requirements that the recipe's own scripts have, as ``name==version``.
    """

    extras: tuple[str, ...] = ("train",)
    of_backend: tuple[str, ...] = ()
    of_scripts: tuple[str, ...] = ()


def packages_of(recipe: Recipe) -> PackagesWanted:
    """The packages of a recipe; pure, from the recipe alone."""
    extras = ["train"]
    if recipe.backend.extra is not None:
        extras.append(recipe.backend.extra)
    if recipe.peft is not None and recipe.peft.quantization is not None:
        extras.append("quantize")
    if recipe.validation is not None and recipe.validation.personal is not None:
        extras.append("validation")
    return PackagesWanted(tuple(extras), recipe.backend.packages, recipe.packages)
