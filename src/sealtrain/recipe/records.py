"""Hold an owner's records against the recipe before they are sealed: the guest would find the same.

1. The recipe names a dataset of this owner and name.
2. A dataset of role ``train`` or ``test`` is records; one of role ``model`` is files.
3. Every column that the recipe reads is there, of the type that the phase reads (recordcolumns.py).
4. No value in them is missing, and, unless a script reads it, each label is one of the recipe's
   and each conversation can be rendered, with the marks that the run obeys (learningmarks.py); a
   number is finite, a token is one that the model has, an answer says something (recordvalues.py).
5. Where one dataset alone has the recipe's unpaired answers, some are desirable and some are not.

Errors name columns and positions, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sealtrain.base.suggestion import nearest
from sealtrain.errors import UsageError
from sealtrain.recipe.conversations import (
    all_speak,
    conversation_fault,
    kind_of,
    read_rows,
    tools_fault,
)
from sealtrain.recipe.errors import DatasetUnknown, ValidationFailed
from sealtrain.recipe.learningmarks import (
    find_broken_mark,
    learned_turns,
    mark_hint,
    may_be_marked,
)
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.recordcolumns import EXPECTED, ColumnJudge, ReadColumn, no_record
from sealtrain.recipe.recordvalues import (
    Unusable,
    tokens_of,
    unusable_answer,
    unusable_image,
    unusable_number,
    unusable_tokens,
    with_gaps,
)
from sealtrain.recipe.terms import Dataset
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recordcolumns import Opened

_BOTH: Final = {True, False}


def dataset_of(recipe: PhaseRecipe, owner: str, name: str) -> Dataset:
    """Check 1: the recipe's dataset of an owner.

    Raises:
        DatasetUnknown: The recipe names none of this name and owner.
    """
    found = next(
        (dataset for dataset in recipe.datasets if (dataset.owner, dataset.name) == (owner, name)),
        None,
    )
    if found is not None:
        return found
    own = [dataset.name for dataset in recipe.datasets if dataset.owner == owner]
    meant = nearest(name, own)
    raise DatasetUnknown(
        f"the recipe does not name this dataset of {owner}"
        if own
        else f"the recipe reads no data of {owner}",
        check="dataset name",
        owner=owner,
        dataset=name,
        got=f"{owner}/{name}",
        expected=", ".join(
            sorted(f"{dataset.owner}/{dataset.name}" for dataset in recipe.datasets)
        ),
        hint=f"write --name {meant}"
        if meant
        else "write the name that the recipe uses, with the identity of that owner",
    )


def one_kind_only(
    column: str, *, owner: str | None = None, dataset: str | None = None
) -> ValidationFailed:
    """Of unpaired answers all are desirable, or none is: which of the two is not said."""
    return ValidationFailed(
        "unpaired answers need some that are desirable and some that are not",
        check="columns",
        owner=owner,
        dataset=dataset,
        column=column,
        got="one kind of answer",
        expected="true in some records, false in others",
        hint="add records of the other kind, or train on the good answers alone with phase sft",
    )


class RecordCheck:
    """The checks of one dataset's records, as they stream by.

    Attributes:
        judge: Of the dataset's columns.
    """

    def __init__(
        self,
        recipe: PhaseRecipe,
        dataset: Dataset,
        *,
        columns: str = "all",
        on_unread: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        """Take what the recipe asks of a dataset of role ``train`` or ``test``.

        Args:
            recipe: That the records are for.
            dataset: Of the recipe.
            columns: ``all``, or ``read`` for those that the recipe reads.
            on_unread: Called with the owner's columns that the recipe does not read, where there
                are any and they are kept.

        Raises:
            UsageError: Other columns, or a script says for itself what it reads.
        """
        if columns not in ("all", "read") or (columns == "read" and recipe.scripts):
            raise UsageError(
                "a script of the engineer's says for itself which columns it reads"
                if columns == "read"
                else "unknown choice of columns",
                check="--columns",
                got=columns[:40],
                expected="all" if recipe.scripts else "all or read",
                hint="leave columns out of the file before sealing" if recipe.scripts else None,
            )
        self._recipe = recipe
        self._dataset = dataset
        self._reduced = columns == "read"
        self._on_unread = on_unread
        self.judge = ColumnJudge(recipe, dataset)

    def __call__(self, opened: Opened) -> Opened:
        """The same records, with the checks 3 to 5.

        Raises:
            SchemaMismatch: Columns are missing, or have another type.
            RecordInvalid: There is no record; or, while they are read: a value is missing, or
                is no label.
            ValidationFailed: After the last record, all or none of the answers are desirable.
        """
        schema, batches = opened
        self.judge.require(schema)
        if not self._recipe.scripts:  # a script says for itself what it reads
            schema, batches = self.judge.write(*self._reduce(schema, batches))
        return schema, self._check_batches(batches)

    def _reduce(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Opened:
        """Leave out what the recipe does not read, where the owner wants that; else tell of it."""
        import pyarrow as pa

        unread = self.judge.list_unread(schema)
        if not unread:
            return schema, batches
        if not self._reduced:
            self._on_unread(unread)
            return schema, batches
        kept = [name for name in schema.names if name not in unread]
        return (
            pa.schema([schema.field(name) for name in kept]),
            (batch.select(kept) for batch in batches),
        )

    def _check_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # (4)
        first, contrast = 0, self._needs_contrast()
        seen: set[bool] = set()
        for batch in batches:
            for column in self.judge.columns:
                self._check_column(column, batch, first)
                if contrast and column.kind == "boolean" and seen != _BOTH:
                    seen |= set(batch.column(column.name).unique().to_pylist())
            first += batch.num_rows
            yield batch
        if not first:
            raise no_record(self._dataset)
        if contrast and seen != _BOTH:
            raise one_kind_only(
                getattr(self._recipe.columns, "label", ""),
                owner=self._dataset.owner,
                dataset=self._dataset.name,
            )

    def _check_column(self, column: ReadColumn, batch: pa.RecordBatch, first: int) -> None:
        """Refuse a batch, behind ``first`` records, with a value that no phase can use."""
        values, read_by_script = batch.column(column.name), bool(self._recipe.scripts)
        if column.kind == "number" and not read_by_script:
            values = with_gaps(values)
        if values.null_count and column.called not in self.judge.filled:
            raise self._refusal(
                column, values.is_null(), first,
                why="has no value", expected="a value in every record",
                hint=self._without_gaps(column),
            )  # fmt: skip
        if read_by_script:
            return
        if column.kind in ("label", "name"):
            self._require_known_labels(column, values, first)
        elif column.kind in ("messages", "either"):
            self._require_conversations(column, batch.select([column.name]), first)
        elif column.kind == "tools":
            self._require_known_tools(column, values, first)
        self._require_usable(column, values, first)

    def _without_gaps(self, column: ReadColumn) -> str:
        """What to do about a gap in a column."""
        if column.kind == "image":
            return "write the image's bytes into the column: a path alone is not sealed"
        if column.kind == "tools":
            return "write an empty list for a record without tools"
        hint = "leave such records out, or complete them, before sealing"
        if column.kind == "number":
            hint += "; or have the engineer say in the recipe what a gap means: missing"
        return hint

    def _needs_contrast(self) -> bool:  # (5)
        trained = [dataset for dataset in self._recipe.datasets if dataset.role == "train"]
        unpaired = getattr(self._recipe.columns, "kind", None) == "unpaired"
        if not unpaired or self._recipe.scripts or self._dataset.series is not None:
            return False  # the next data of a series may have the other kind
        return trained == [self._dataset]

    def _require_conversations(self, column: ReadColumn, batch: pa.RecordBatch, first: int) -> None:
        import pyarrow as pa

        if kind_of(batch.schema.field(0).type) != "messages":
            return
        self._require_obeyed_marks(column, batch, first)
        if all_speak(batch.column(0)):
            return
        faults = [conversation_fault(row[column.name]) for row in read_rows(batch)]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:
            raise self._refusal(
                column, pa.array([fault is not None for fault in faults]), first,
                why=fault, expected="messages of a role, each with text or a tool call",
                hint="leave such records out, or complete them, before sealing",
            )  # fmt: skip

    def _require_obeyed_marks(self, column: ReadColumn, batch: pa.RecordBatch, first: int) -> None:
        import pyarrow as pa

        field = "prompt" if column.called == getattr(self._recipe.columns, "prompt", None) else ""
        learned = learned_turns(self._recipe, field or column.kind)
        if learned == "none" or not may_be_marked(batch.schema.field(0).type):
            return
        marks = [find_broken_mark(row[column.name], learned) for row in read_rows(batch)]
        mark = next((mark for mark in marks if mark is not None), None)
        if mark is not None:
            raise self._refusal(
                column, pa.array([mark is not None for mark in marks]), first,
                why=f"marks a message as not to be learned, by {mark},",
                expected="messages that are learned as the recipe says",
                hint=mark_hint(learned),
            )  # fmt: skip

    def _require_usable(self, column: ReadColumn, values: pa.Array, first: int) -> None:
        found: Unusable | None = None
        if column.kind == "number":
            found = unusable_number(values)
        elif column.kind == "tokens":
            found = unusable_tokens(values, tokens_of(self._recipe))
        elif column.kind == "image":
            found = unusable_image(values)
        elif column.kind == "either" and kind_of(values.type) == "text":
            found = unusable_answer(self._recipe, column.called, values)
        if found is not None:
            raise self._refusal(
                column, found.bad, first,
                why=found.why, expected=found.expected, hint=found.hint,
            )  # fmt: skip

    def _require_known_tools(self, column: ReadColumn, values: pa.Array, first: int) -> None:
        import pyarrow as pa

        if kind_of(values.type) != "text":  # the type says that they are objects
            return
        faults = [tools_fault(value) for value in values.to_pylist()]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:
            raise self._refusal(
                column, pa.array([fault is not None for fault in faults]), first,
                why=fault, expected=EXPECTED["tools"],
                hint="write the function schemas as one JSON list",
            )  # fmt: skip

    def _require_known_labels(self, column: ReadColumn, values: pa.Array, first: int) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = getattr(self._recipe, "labels", None) or range(
            getattr(self._recipe, "num_labels", 0)
        )
        known = pa.array(list(names), type=values.type if column.kind == "name" else None)
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int64())
        listed = pc.or_(pc.is_null(values), pc.is_in(values, value_set=known.cast(values.type)))
        if not pc.all(listed).as_py():
            bad = values[pc.invert(listed).index(True).as_py()].as_py()
            raise self._refusal(
                column, pc.invert(listed), first,
                why="has no label" if bad == "" else "has a label that the recipe does not list",
                expected=f"one of {len(known)} labels",
                hint="complete such records, or leave them out, before sealing"
                if bad == ""
                else "correct the record, or have the engineer list every label in the recipe",
            )  # fmt: skip

    def _refusal(
        self, column: ReadColumn, bad: pa.Array, first: int, *, why: str, expected: str, hint: str
    ) -> RecordInvalid:
        """The refusal of the first bad record of a batch, which begins behind ``first`` records."""
        number = first + bad.index(True).as_py() + 1
        return RecordInvalid(
            f"record {number} of the data for {self._dataset.name} {why} in column {column.title}",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            column=column.name,
            got=f"record {number}",
            expected=expected,
            hint=hint,
        )
