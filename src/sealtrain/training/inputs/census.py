"""Count, for each training dataset, how many of its records leave something to learn.

Every record is read once, in the order in which it was sealed (``training.inputs.learnable`` says
which part it falls into).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import DataInvalid, RecordInvalid
from sealtrain.recipe.conversations import rows_as_recorded
from sealtrain.training.data.conversations import field_names
from sealtrain.training.data.stream import read_all
from sealtrain.training.inputs.learnable import Tally, judge_for, needs_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.schema import Recipe
    from sealtrain.training.data.sources import Source
    from sealtrain.training.inputs.learnable import Judge

__all__ = ["census", "require_lessons", "tally_of"]

_AT_ONCE: Final = 256


def census(
    recipe: Recipe, sources: Sequence[Source], tokenizer: Callable[[], Any]
) -> list[tuple[Source, Tally]]:
    """The counts of each training dataset.

    Args:
        recipe: One that ``learnable.counts_records``.
        sources: The opened datasets; those of role ``train`` are counted.
        tokenizer: Builds the recipe's tokenizer, ``None`` where it names none; called if texts are
            read.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: Records do not fit the recipe or its model.
        DataInvalid: A dataset has records, and none that leaves anything to learn.
    """
    trained = [source for source in sources if source.role == "train"]
    if not needs_texts(recipe):
        return [(source, Tally(whole=sum(source.dataset.batch_rows))) for source in trained]
    judge = judge_for(recipe, tokenizer())
    names = field_names(recipe.columns)
    found = []
    for source in trained:
        tally = tally_of(judge, read_all([source], list(names), names=names))
        require_lessons(tally, owner=source.owner, dataset=source.name)
        found.append((source, tally))
    return found


def tally_of(judge: Judge, batches: Iterable[pa.RecordBatch], *, most: int | None = None) -> Tally:
    """Count records, which have the names of the recipe's fields.

    Args:
        judge: Of the recipe.
        batches: The records.
        most: So many records are counted, and then as many as it takes to find one that leaves
            something to learn; all when ``None``.
    """
    tally = Tally()
    rows = _rows(batches)
    while chunk := list(islice(rows, _AT_ONCE)):
        _require_texts(chunk)
        tally.add(judge(chunk))
        if most is not None and tally.records >= most and tally.trained:
            break
    return tally


def require_lessons(tally: Tally, *, owner: str, dataset: str) -> None:
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
            yield from rows_as_recorded(batch.slice(at, _AT_ONCE))


def _require_texts(records: Sequence[dict[str, Any]]) -> None:
    """Refuse what no tokenizer reads, without its value in the error."""
    for record in records:
        for name, value in record.items():
            if value is None and name != "tools":
                raise RecordInvalid(f"a record has no {name}", check="columns", column=name)
