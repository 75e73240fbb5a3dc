"""The training rows of a holder's opened datasets, as its recipe's phase makes them of records.

The holder's guest tokenizes: the accelerator gets rows of words (``travelling.rows``), in the order
in which a training of the recipe on this holder's data alone reads them. It loads the recipe's
tokenizer for that, and no base model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid
from sealtrain.recipe.collaborations.travelling import program_of
from sealtrain_together.travelling.rows import MAX_TOKEN, write_row
from sealtrain_together.travelling.trainer_program import TrainerSettings, training_context

if TYPE_CHECKING:
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.context import BuiltModel, TrainingContext
    from sealtrain.training.data.sources import Source


class HeldRows:
    """See the module. Read in order it makes each row once; of one thread.

    Args:
        recipe: With program ``trainer``.
        base_dir: Folder that its paths start from.
        sources: The holder's datasets.
        permit: Asked before each read; raises when the data may not be used any more.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: As the phase.
    """

    def __init__(
        self,
        recipe: PhaseRecipe,
        base_dir: Path,
        sources: Sequence[Source],
        permit: Callable[[], None],
    ) -> None:
        self._recipe, self._base_dir, self._sources = recipe, base_dir, tuple(sources)
        self._permit = permit
        self._row_bytes = TrainerSettings.from_dict(program_of(recipe)).sequence_bytes
        self._next = 0
        """Row that ``_rows`` gives next."""
        # How many records a phase drops, and how many blocks tokens fill, shows by making them.
        self._many = sum(1 for _ in self._iterate_permitted())
        self._rows: Iterator[dict[str, Any]] = iter(())
        self._rewind()

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self._many * self._row_bytes

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill ``view`` from byte ``offset`` on; returns how many bytes there were.

        Raises:
            SealtrainError: What the permit raises.
            DataInvalid: Not whole rows.
        """
        self._permit()
        size = self._row_bytes
        if offset < 0 or offset % size or len(view) % size:
            raise DataInvalid("rows are read whole", got=offset)
        wanted, done = offset // size, 0
        if wanted < self._next:
            self._rewind()
        for _ in islice(self._rows, wanted - self._next):
            self._next += 1
        for row in islice(self._rows, len(view) // size):
            write_row(row, view[done : done + size])
            done += size
            self._next += 1
        return done

    def _rewind(self) -> None:
        self._rows, self._next = self._make(), 0

    def _iterate_permitted(self) -> Iterator[dict[str, Any]]:
        for row in self._make():
            self._permit()
            yield row

    def _make(self) -> Iterator[dict[str, Any]]:
        from sealtrain.training.distributed.machinery import Copies

        phase = import_module(f"sealtrain.training.phases.{self._recipe.phase}")
        with training_context(self._recipe, self._base_dir, Copies()) as work:
            work.train_sources = list(self._sources)
            if self._recipe.phase == "cpt":
                rows = phase.prepare_blocks(work, MAX_TOKEN + 1, _tokenizer(work))
            else:
                work.built = _stand_in(work)
                rows = phase.prepare_rows(work)
        yield from rows


def _tokenizer(work: TrainingContext[PhaseRecipe]) -> Any:
    from sealtrain.training.models.base import build_tokenizer

    if work.recipe.model.tokenizer is None:
        return None
    return build_tokenizer(work.recipe, work.base_dir)


def _stand_in(work: TrainingContext[PhaseRecipe]) -> BuiltModel:
    """The smallest model that the phase's trainer takes beside the recipe's tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from sealtrain.training.context import BuiltModel

    tokenizer = _tokenizer(work)
    config = GPT2Config(n_layer=1, n_head=1, n_embd=1, n_positions=1, vocab_size=len(tokenizer))
    return BuiltModel(GPT2LMHeadModel(config), tokenizer)
