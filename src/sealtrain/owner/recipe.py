"""An engineer's recipe: load, check and lock it, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sealtrain.owner.locking import lock_for
from sealtrain.recipe.basefolder import remember_base
from sealtrain.recipe.finite_weights import require_sound_weights
from sealtrain.recipe.fitness import require_fitness
from sealtrain.recipe.lock import LOCK_NAME
from sealtrain.recipe.models import measure_models
from sealtrain.recipe.schema import load_recipe

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe import recipe as document
    from sealtrain.recipe.lock import LockedRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe as the engineer writes it.

    Attributes:
        path: The file; paths inside it are relative to its folder.
        document: What it says, valid by the schema.
    """

    path: Path
    document: document.PhaseRecipe

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and validate a recipe.

        Raises:
            RecipeInvalid: It is no YAML, or breaks the schema.
            DataInvalid: The file is missing.
        """
        return cls(path=path, document=load_recipe(path))

    def check(self, consortium: Consortium) -> Self:
        """Judge the recipe and its base model, without a broker; the recipe itself where it fits.

        Args:
            consortium: Do owners and recipients exist in it?

        Raises:
            RecipeInvalid: It could not work; the error has everything that is wrong.
            ModelInvalid: A model or tokenizer folder is missing or breaks the rules, or a
                weight is not a finite number.
        """
        names = [owner.name for owner in consortium.owners]
        require_fitness(self.document, self.path.parent, names)
        measure_models(self.document, self.path.parent)
        require_sound_weights(self.document, self.path.parent)
        return self

    def lock(
        self, consortium: Consortium, brokers: Sequence[Path], *, out: Path | None = None
    ) -> LockedRecipe:
        """Resolve everything that the recipe names to digests.

        The file is read anew, so that what is locked is what lies there.

        Args:
            consortium: Whose owners must approve.
            brokers: Broker files of the brokers that guests of this recipe obey.
            out: Folder to write ``recipe.lock.json`` and ``app-compose.json`` to; nothing is
                written when ``None``.

        Raises:
            RecipeInvalid: It could not work.
            AlreadyExists: ``out`` has another lock.
            SealtrainError: As ``client.locking.lock_for``.
        """
        locked = lock_for(self.path, consortium, brokers)
        if out is not None:
            locked.write(out)
            remember_base(out / LOCK_NAME, self.path.parent)
        return locked
