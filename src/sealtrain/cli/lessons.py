"""What the first records of an owner's data leave to learn, by the functions of the guest.

Tokenizers take seconds to load and milliseconds a record, so of large data the first records are
counted, and of very large data none. Where none of them leaves anything, all are counted until one
does: what is refused here is refused in the guest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import ExtraMissing
from sealtrain.recipe.conversations import rows_as_recorded
from sealtrain.recipe.fitness import misfits_of_record
from sealtrain.recipe.records import dataset_of
from sealtrain.training.inputs.census import require_texts
from sealtrain.training.inputs.learnable import Tally, counts_records, judge_for, needs_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import Recipe
    from sealtrain.training.inputs.learnable import Judge

__all__ = ["MOST_BYTES", "FirstLessons"]

_MOST: Final = 1000
MOST_BYTES: Final = 256 << 20
"""Data of more bytes is not counted at the desk."""


class FirstLessons:
    """Counts records of one dataset as they stream by.

    Attributes:
        tally: Of the records looked at.
        missing: Why none was looked at; ``None`` where some were, or there is nothing to count.
    """

    def __init__(self, recipe: Recipe, base: Path, owner: str, name: str, source: Path) -> None:
        """Look at nothing yet.

        Args:
            recipe: It names the dataset.
            base: Folder that its paths start from.
            owner: Of the dataset.
            name: Of the dataset.
            source: The data.

        Raises:
            DatasetUnknown: The recipe names no such dataset.
        """
        self.tally = Tally()
        self.missing: str | None = None
        self._recipe, self._base = recipe, base
        dataset = dataset_of(recipe, owner, name)
        counts = dataset.role == "train" and counts_records(recipe) and needs_texts(recipe)
        self._judge: Judge | None = None
        self._over = not counts
        if counts and _bytes_of(source) > MOST_BYTES:
            self.skip("the data is large; rehearse with a part of it")

    def look(self, batch: pa.RecordBatch) -> None:
        """Count the records of a batch, while few were counted.

        Args:
            batch: Of ``read_data``: its columns have the names of the recipe's fields.

        Raises:
            RecordInvalid: The chat template refuses a record.
            ModelInvalid: The tokenizer cannot be loaded.
        """
        if self._over:
            return
        if self._judge is None and not self._ready(rows_as_recorded(batch.slice(0, 1))):
            return
        at = 0
        while at < batch.num_rows and not self._over:
            rows = rows_as_recorded(batch.slice(at, _MOST))
            at += len(rows)
            if self._judge is not None:
                require_texts(rows)
                self.tally.add(self._judge(rows))
            self._over = self.tally.records >= _MOST and self.tally.trained > 0

    @property
    def words(self) -> str | None:
        """What was counted, in one sentence; ``None`` of nothing."""
        tally = self.tally
        if not tally.records:
            return None
        of = f"{'the first ' if self._over else ''}{tally.records:,} records"
        parts = {
            "train whole": tally.whole,
            "are cut at trainer.max_length": tally.truncated,
            "are left out, too long": tally.filtered,
            "leave nothing to learn": tally.empty,
        }
        said = ", ".join(f"{count:,} {words}" for words, count in parts.items() if count)
        warning = "; HALF OR MORE DO NOT TRAIN" if tally.few_learn else ""
        return f"of {of}, {said}{warning}"

    def _ready(self, first: Sequence[Mapping[str, Any]]) -> bool:
        if any(misfits_of_record(self._recipe, self._base, record) for record in first):
            return self.skip("mend the tokenizer first")
        model = self._recipe.model
        path = getattr(model.tokenizer, "path", None)
        if getattr(model.tokenizer, "kind", None) == "sealed":
            return self.skip("the tokenizer is sealed")
        if path is not None and not (self._base / path).is_dir():
            return self.skip("the tokenizer is not here yet")
        try:
            self._judge = judge_for(self._recipe, _tokenizer(self._recipe, self._base))
        except (ImportError, ExtraMissing):
            return self.skip("Transformers is not installed: pip install 'sealtrain[train]'")
        return True

    def skip(self, why: str) -> bool:
        """Look at nothing, for a reason that is told; ``False``."""
        self.missing, self._over = why, True
        return False


def _tokenizer(recipe: Recipe, base: Path) -> Any:
    if recipe.phase == "cpt" or recipe.model.tokenizer is None:
        return None
    from sealtrain.training.models.base import desk_tokenizer

    return desk_tokenizer(recipe, base)


def _bytes_of(source: Path) -> int:
    if source.is_dir():
        return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    return source.stat().st_size if source.is_file() else 0
