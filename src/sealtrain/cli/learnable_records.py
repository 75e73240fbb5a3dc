"""What the first records of an owner's data leave to learn, by the functions of the guest.

Tokenizers take a second to load and milliseconds a record, so the first records are counted. Where
none of them leaves anything, more are counted until one does: what is refused here is refused in
the guest. Of very large data that are such, the count gives up, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import ExtraMissing
from sealtrain.owner.data_fitness import read_data
from sealtrain.recipe.basemodel import base_facts
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.fitness import misfits_of_record, require_fitness_of_record
from sealtrain.recipe.records import dataset_of, one_kind_only
from sealtrain.recipe.recordvalues import unusable_tokens
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.census import collect_labels, require_lessons, require_texts
from sealtrain.training.data.columns import require_same_types
from sealtrain.training.inputs.learnable import RecordTally, counts_records, judge_for, needs_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.sealing.sealer import SealOptions
    from sealtrain.training.inputs.learnable import Judge

_MOST: Final = 1000
_MOST_BYTES: Final = 1 << 20
"""Of records that are counted where the first of them leave something to learn."""
_AT_ONCE: Final = 100
_KINDS: Final = 2
"""Of unpaired answers: desirable ones and others."""
_PATIENCE_BYTES: Final = 256 << 20
"""Of records that are counted in search of one that leaves something."""
_LONGEST_BYTES: Final = 2 << 20
"""Of a record that is counted: a tokenizer takes seconds a mebibyte, and hundreds of times the
memory."""


class FirstLessons:
    """Counts records of one dataset as they stream by.

    Attributes:
        tally: Of the records looked at.
        gave_up: None of very many records leaves anything; a later one may.
        missing: Why none was looked at; ``None`` where some were, or there is nothing to count.
    """

    def __init__(
        self,
        recipe: PhaseRecipe,
        base: Path,
        owner: str,
        name: str,
        *,
        patience: int = _PATIENCE_BYTES,
    ) -> None:
        """Look at nothing yet.

        Args:
            recipe: It names the dataset.
            base: Folder that its paths start from.
            owner: Of the dataset.
            name: Of the dataset.
            patience: Bytes of records, none of which leaves anything, after which it gives up.

        Raises:
            DatasetUnknown: The recipe names no such dataset.
        """
        self.tally = RecordTally()
        self.missing: str | None = None
        self._recipe, self._base = recipe, base
        dataset = dataset_of(recipe, owner, name)
        counts = dataset.role == "train" and counts_records(recipe) and needs_texts(recipe)
        self._judge: Judge | None = None
        self._over = not counts
        self._bytes, self._patience = 0, patience
        self.gave_up = False
        self._labels: set[object] = set()
        self._read_labels: set[object] = set()
        self._unpaired = dataset.role == "train" and recipe.columns.kind == "unpaired"
        alone = [other for other in recipe.datasets if other.role == "train"] == [dataset]
        self._contrasts = recipe.columns.kind == "unpaired" and alone and dataset.series is None
        if counts and recipe.phase == "vlm":
            self.skip("the guest counts records with images")
        elif counts and recipe.backend.name == "axolotl":
            self.skip("the guest counts records with axolotl")

    def look(self, batch: pa.RecordBatch) -> None:
        """Count the records of a batch, while few were counted.

        Args:
            batch: Of ``read_data``: its columns have the names of the recipe's fields.

        Raises:
            RecordInvalid: The chat template refuses a record.
            ModelInvalid: The tokenizer cannot be loaded.
        """
        if self._unpaired and len(self._read_labels) < _KINDS:
            self._read_labels |= set(batch.column("label").unique().to_pylist())
        if self._over or self._refuses_length(batch):
            return
        if self._judge is None and not self._ready(read_rows(batch.slice(0, 1))):
            return
        at = 0
        while at < batch.num_rows and not self._over:
            part = batch.slice(at, _AT_ONCE)
            self._require_tokens(part)
            rows = read_rows(part)
            at += len(rows)
            self._bytes += part.nbytes
            if self._judge is not None:
                require_texts(rows)
                parts = self._judge(rows)
                self.tally.add(parts)
                self._labels |= collect_labels(rows, parts)
            if self.tally.trained:
                self._over = self.tally.records >= _MOST or self._bytes >= _MOST_BYTES
            else:
                self._over = self.gave_up = self._bytes >= self._patience

    def _refuses_length(self, batch: pa.RecordBatch) -> bool:
        """Whether a record is too long for a desk, so that no more are counted."""
        if batch.nbytes <= _LONGEST_BYTES or all(
            batch.slice(row, 1).nbytes <= _LONGEST_BYTES for row in range(batch.num_rows)
        ):
            return False
        self.gave_up = True
        self.skip(f"the guest counts data with a record of over {_LONGEST_BYTES >> 20} MiB")
        return True

    def require(self, owner: str, dataset: str) -> None:
        """Refuse data of which nothing trains, as the guest does.

        Raises:
            DataInvalid: Every record was counted, and none leaves anything to learn.
            ValidationFailed: Unpaired answers were all counted, and one kind alone trains.
        """
        if not self.gave_up:
            require_lessons(self.tally, owner=owner, dataset=dataset)
        if self._contrasts and not self._over and len(self._labels) == 1:
            label = str(getattr(self._recipe.columns, "label", ""))
            raise one_kind_only(label, owner=owner, dataset=dataset)

    @property
    def kinds(self) -> set[object]:
        """Labels of the unpaired answers that train, or that may where not all were counted."""
        counted = self._judge is not None and not self._over
        return self._labels if counted else self._read_labels

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

    def _require_tokens(self, part: pa.RecordBatch) -> None:
        """Refuse a token that the base model does not have: the recipe alone may not know."""
        if self._recipe.phase != "cpt" or "tokens" not in part.schema.names:
            return
        most = base_facts(self._recipe.model, self._base).tokens
        found = unusable_tokens(part.column("tokens"), most)
        if found is not None:
            number = self.tally.records + found.bad.index(True).as_py() + 1
            raise RecordInvalid(
                f"record {number} {found.why}",
                check="columns",
                got=f"record {number}",
                expected=found.expected,
                hint=found.hint,
            )

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


def is_countable(record: Mapping[str, Any]) -> bool:
    """Whether the record's texts are short enough to be read as tokens at a desk."""
    left, pending = _LONGEST_BYTES, list(record.values())
    while pending and left > 0:
        value = pending.pop()
        if isinstance(value, str | bytes):
            left -= len(value)
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
    return left > 0


def list_shared_answers(recipe: PhaseRecipe) -> list[str]:
    """Training datasets that have to hold both kinds of unpaired answers together, OWNER.NAME.

    Empty where one dataset has them all, and is judged alone; where a script reads them; and where
    the next data of a series may bring the other kind.
    """
    trained = [dataset for dataset in recipe.datasets if dataset.role == "train"]
    apart = any(dataset.series is not None for dataset in trained) or len(trained) == 1
    if recipe.columns.kind != "unpaired" or recipe.scripts or apart:
        return []
    return [f"{dataset.owner}.{dataset.name}" for dataset in trained]


def require_one_stream(recipe: PhaseRecipe, types: Mapping[str, Mapping[str, pa.DataType]]) -> None:
    """Refuse conversations and tools of several owners that the guest could not read together.

    Args:
        recipe: Of the datasets.
        types: By OWNER.NAME, of the data that were read to the end: as ``DataRead`` has them.

    Raises:
        SchemaMismatch: A field has several types in data of one role.
    """
    for role in ("train", "test"):
        require_same_types(
            [
                (dataset.owner, dataset.name, types[f"{dataset.owner}.{dataset.name}"])
                for dataset in recipe.datasets
                if dataset.role == role and f"{dataset.owner}.{dataset.name}" in types
            ]
        )


def require_contrast(recipe: PhaseRecipe, lessons: Collection[FirstLessons]) -> None:
    """Refuse unpaired answers of several datasets that are all of one kind, as the guest does.

    Args:
        recipe: Whose answers are unpaired.
        lessons: Of each of its training datasets, read to the end.

    Raises:
        ValidationFailed: They are.
    """
    kinds = set[object]().union(*(first.kinds for first in lessons))
    if len(kinds) == 1:
        raise one_kind_only(str(getattr(recipe.columns, "label", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Data that fit.

    Attributes:
        lessons: Counts of the first records.
        first: The first of them, as ``read_data`` keeps them.
    """

    lessons: FirstLessons
    first: list[dict[str, Any]]


def judge_data(
    recipe: PhaseRecipe, base: Path, owner: str, name: str, source: Path, options: SealOptions
) -> Judged:
    """Judge an owner's data by recipe and base model, to its end, before it is sealed.

    Args:
        recipe: That the data is for.
        base: Folder that its paths start from.
        owner: Name of the owner.
        name: Of the dataset, which is records.
        source: File or folder with the data.
        options: As ``sealtrain seal`` would be given them.

    Raises:
        RecipeInvalid: The base model cannot write such records.
        SealtrainError: As ``read_data``, and what the guest would refuse of the first records.
    """
    lessons = FirstLessons(recipe, base, owner, name)
    read = read_data(recipe, owner, name, source, options, lessons.look)
    for record in filter(is_countable, read.first[:1]):
        require_fitness_of_record(recipe, base, record)
    lessons.require(owner, name)
    return Judged(lessons=lessons, first=read.first)


def _tokenizer(recipe: PhaseRecipe, base: Path) -> Any:
    if recipe.phase == "cpt" or recipe.model.tokenizer is None:
        return None
    from sealtrain.training.models.base import desk_tokenizer

    return desk_tokenizer(recipe, base)
