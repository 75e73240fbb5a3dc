"""Count, for each training dataset, how many of its records leave something to learn.

Every record is read once, in the order in which it was sealed (``training.inputs.learnable`` says
which part it falls into).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import DataInvalid
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.learningmarks import require_obeyed_marks
from sealtrain.recipe.records import one_kind_only
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.conversations import field_names
from sealtrain.training.data.stream import read_all
from sealtrain.training.inputs.learnable import RecordTally, judge_for, needs_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.data.sources import Source
    from sealtrain.training.inputs.learnable import Judge, Part

_AT_ONCE: Final = 256
_NOT_TEXT: Final = ("label", "tools")
"""Fields that no tokenizer reads, or that may be null."""


def census(
    recipe: PhaseRecipe,
    sources: Sequence[Source],
    tokenizer: Callable[[], Any],
    base: Path = Path(),
) -> list[tuple[Source, RecordTally]]:
    """The counts of each training dataset.

    Args:
        recipe: One that ``learnable.counts_records``.
        sources: The opened datasets; those of role ``train`` are counted.
        tokenizer: Builds the recipe's tokenizer, ``None`` where it names none; called if texts are
            read.
        base: Folder that the recipe's paths start from.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: Records do not fit the recipe or its model.
        DataInvalid: A dataset has records, and none that leaves anything to learn.
        ValidationFailed: Of unpaired answers, those that train are all desirable, or none is.
    """
    trained = [source for source in sources if source.role == "train"]
    if not needs_texts(recipe):
        return [(source, RecordTally(whole=sum(source.dataset.batch_rows))) for source in trained]
    names = field_names(recipe.columns)
    count: Callable[[Iterable[pa.RecordBatch]], RecordTally] = _count_tokens
    labels: set[object] = set()
    if recipe.phase == "vlm":
        from sealtrain.training.inputs.images import image_judge

        names = {name: name for name in recipe.columns.names}
        count = partial(_tally_of, recipe, image_judge(recipe, base, tokenizer()), texts=False)
    elif recipe.backend.name == "axolotl":
        from sealtrain.training.backends.axolotl import row_judge

        count = partial(_tally_of, recipe, row_judge(recipe, base, tokenizer()))
    elif recipe.phase != "cpt":
        count = partial(_tally_of, recipe, judge_for(recipe, tokenizer()), labels=labels)
    found = []
    for source in trained:
        tally = count(read_all([source], list(names), names=names))
        require_lessons(tally, owner=source.owner, dataset=source.name)
        found.append((source, tally))
    if recipe.columns.kind == "unpaired" and len(labels) == 1:
        raise one_kind_only(str(getattr(recipe.columns, "label", "")))
    return found


def collect_labels(records: Sequence[dict[str, Any]], parts: Sequence[Part]) -> set[object]:
    """Labels of the records that train, where they have some."""
    return {
        record["label"]
        for record, part in zip(records, parts, strict=True)
        if part in ("whole", "truncated") and "label" in record
    }


def _tally_of(
    recipe: PhaseRecipe,
    judge: Judge,
    batches: Iterable[pa.RecordBatch],
    *,
    texts: bool = True,
    labels: set[object] | None = None,
) -> RecordTally:
    """Count records; those of texts have the names of the recipe's fields."""
    tally = RecordTally()
    rows = _rows(batches)
    while chunk := list(islice(rows, _AT_ONCE)):
        if texts:
            require_texts(chunk)
            require_obeyed_marks(recipe, chunk)
        parts = judge(chunk)
        tally.add(parts)
        if labels is not None:
            labels |= collect_labels(chunk, parts)
    return tally


def _count_tokens(batches: Iterable[pa.RecordBatch]) -> RecordTally:
    """As the judge of phase ``cpt``, by columns: token shards are large."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tally = RecordTally()
    for batch in batches:
        values = batch.column(0)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            lengths = pc.utf8_length(pc.utf8_trim_whitespace(values))
        else:
            lengths = pc.list_value_length(values)
        empty = pc.sum(pc.equal(lengths, 0)).as_py() or 0
        tally.empty += empty
        tally.whole += batch.num_rows - empty
    return tally


def require_lessons(tally: RecordTally, *, owner: str, dataset: str) -> None:
    """Refuse a dataset that has records and nothing to learn: its owner approved a training on it.

    Raises:
        DataInvalid: It is one.
    """
    if tally.trained or not tally.records:
        return
    raise DataInvalid(
        f"no record of {dataset} leaves anything to learn",
        check="records",
        owner=owner,
        dataset=dataset,
        got=f"{tally.empty:,} without a token to learn, {tally.filtered:,} too long",
        expected="at least one record that trains",
        hint="raise trainer.max_length, or see whether this is the data that you meant",
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for at in range(0, batch.num_rows, _AT_ONCE):
            yield from read_rows(batch.slice(at, _AT_ONCE))


def require_texts(records: Sequence[dict[str, Any]]) -> None:
    """Refuse what no tokenizer reads, without its value in the error."""
    for record in records:
        for name, value in record.items():
            if name not in _NOT_TEXT and not isinstance(value, str | list):
                raise RecordInvalid(
                    f"a record's {name} is neither text nor a list", check="columns", column=name
                )
