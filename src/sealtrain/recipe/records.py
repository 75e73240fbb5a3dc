"""Hold an owner's records against the recipe before they are sealed: the guest would find the same.

1. The recipe names a dataset of this owner and name.
2. A dataset of role ``train`` or ``test`` is records; one of role ``model`` is files.
3. Every column is there that the recipe reads, under the owner's name for it.
4. Each has the type that the phase reads, unless a script of the engineer's reads them.
5. No value in them is missing, and, unless a script reads it, each label is one of the recipe's
   and each conversation can be rendered; a number is finite, a token is one that the model has, an
   answer says something (recordvalues.py).
6. Where one dataset alone has the recipe's unpaired answers, some are desirable and some are not.

What means the same is written as the recipe reads it: a label that is a number or a boolean becomes
the name that the recipe lists, and an image as Hugging Face's datasets keep it becomes its bytes.

Errors name columns and positions, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from sealtrain.base.suggestion import nearest
from sealtrain.errors import UsageError
from sealtrain.recipe.conversations import (
    FUNCTIONS,
    TOOLS,
    all_speak,
    conversation_fault,
    has_parts,
    holds_tools,
    is_list_of_structs,
    kind_of,
    read_rows,
    strange_part,
    tools_fault,
)
from sealtrain.recipe.errors import DatasetUnknown, ValidationFailed
from sealtrain.recipe.labels import find_label
from sealtrain.recipe.learningmarks import (
    find_broken_mark,
    learned_turns,
    mark_hint,
    may_be_marked,
)
from sealtrain.recipe.missing import missing_values, rules_of
from sealtrain.recipe.recipe import Recipe
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
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.conversion import Conversion

if TYPE_CHECKING:
    import pyarrow as pa

    Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]

EITHER: Final = "text, or a list of {role, content} with text in both"
_Kind = Literal[
    "text", "messages", "tools", "either", "number", "boolean", "label", "name", "tokens", "image"
]
_EXPECTED: Final[dict[_Kind, str]] = {
    "text": "text",
    "messages": "a list of {role, content} with text in both",
    "tools": "a list of function schemas, or its JSON as text",
    "either": EITHER,
    "number": "numbers",
    "boolean": "true or false",
    "label": "whole numbers",
    "name": "names of labels: text, whole numbers, or true and false",
    "tokens": "a list of whole numbers",
    "image": "the bytes of an encoded image",
}
_BOTH: Final = {True, False}
_FLOAT16_MAX: Final = 65504.0
"""The greatest number of IEEE 754's binary16."""
CONVERSATIONS: Final = ("dpo", "reward", "rlhf")
"""Phases whose prompts and answers may also be lists of messages."""


def dataset_of(recipe: Recipe, owner: str, name: str) -> Dataset:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column that the recipe reads.

    Attributes:
        name: As the owner calls it.
        called: As the recipe calls it.
        kind: What it holds.
    """

    name: str
    called: str
    kind: _Kind

    @property
    def title(self) -> str:
        """Its name, and the recipe's where that is another."""
        return (
            self.name if self.name == self.called else f"{self.name} (in the recipe {self.called})"
        )


class RecordCheck:
    """The checks of one dataset's records, as they stream by."""

    def __init__(
        self,
        recipe: Recipe,
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
        self._filled = frozenset(rules_of(recipe))
        self._stand_ins = missing_values(recipe)
        self._reduced = columns == "read"
        self._on_unread = on_unread
        self._own = {called: name for name, called in dataset.columns.items()}
        self._columns = [
            _Column(name=self._own.get(called, called), called=called, kind=kind)
            for called, kind in _kinds(recipe).items()
        ]

    def conversion(self, declared: Conversion | None = None) -> Conversion:
        """What the cells of a CSV mean, which has no types.

        Args:
            declared: What the owner says of the file's decimals and dates.
        """
        declared = declared or Conversion()
        if self._recipe.scripts:  # a script says for itself what it reads
            return declared
        return replace(
            declared,
            text=frozenset(
                column.name for column in self._columns if column.kind in ("text", "either", "name")
            ),
            numbers=frozenset(column.name for column in self._columns if column.kind == "number"),
        )

    def __call__(self, opened: Opened) -> Opened:
        """The same records, with the checks 3 to 6.

        Raises:
            SchemaMismatch: Columns are missing, or have another type.
            RecordInvalid: There is no record; or, while they are read: a value is missing, or
                is no label.
            ValidationFailed: After the last record, all or none of the answers are desirable.
        """
        schema, batches = opened
        self._has_columns(schema)
        if self._recipe.scripts:  # a script says for itself what it reads
            return schema, self._check_batches(batches)
        self._has_types(schema)
        self._takes_constants(schema)
        self._reads_tools(schema)
        schema, batches = self._reduce(schema, batches)
        schema, batches = self._as_read(schema, batches)
        return schema, self._check_batches(batches)

    def _reduce(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Opened:
        """Leave out what the recipe does not read, where the owner wants that; else tell of it."""
        import pyarrow as pa

        read = {self._own.get(name, name) for name in columns_read(self._recipe)}
        unread = [name for name in schema.names if name not in read]
        if not unread:
            return schema, batches
        if not self._reduced:
            self._on_unread(unread)
            return schema, batches
        kept = [name for name in schema.names if name in read]
        return (
            pa.schema([schema.field(name) for name in kept]),
            (batch.select(kept) for batch in batches),
        )

    def _as_read(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Opened:
        """Labels as the recipe lists them, images as bytes, and a column of gaps with its type."""
        import pyarrow as pa
        import pyarrow.compute as pc

        change: dict[str, Callable[[pa.Array], pa.Array]] = {}
        for column in self._columns:
            found = schema.field(column.name).type
            if column.kind == "name":
                empty = column.called in self._filled
                change[column.name] = partial(self._name_labels, empty_is_missing=empty)
                kind = pa.string()
            elif self._is_gap(column, found):
                kind = pa.float64() if column.kind == "number" else pa.string()
                change[column.name] = partial(pc.cast, target_type=kind)
            elif column.kind == "text" and column.called in self._filled:
                change[column.name] = _without_empty
                kind = found
            elif column.kind == "image" and _holds_bytes(found):
                change[column.name] = _bytes_of
                kind = found.field("bytes").type
            else:
                continue
            at = schema.get_field_index(column.name)
            schema = schema.set(at, schema.field(at).with_type(kind))
        if not change:
            return schema, batches

        def changed() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                columns = [
                    change[name](values) if name in change else values
                    for name, values in zip(batch.schema.names, batch.columns, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)

        return schema, changed()

    def _name_labels(self, values: pa.Array, *, empty_is_missing: bool) -> pa.Array:
        """Labels by the names that the recipe lists; one that it does not list stays."""
        import pyarrow as pa

        labels = getattr(self._recipe, "labels", None) or ()
        coded = values.dictionary_encode()
        named = [
            None if value is None else find_label(value, labels)
            for value in coded.dictionary.to_pylist()
        ]
        found = pa.array(named, pa.string()).take(coded.indices)
        return _without_empty(found) if empty_is_missing else found

    def _has_columns(self, schema: pa.Schema) -> None:  # (3)
        missing = [column for column in self._columns if column.name not in schema.names]
        if not missing:
            return
        if not schema.names:
            raise self._no_record()
        hints = []
        for column in missing:
            meant = nearest(column.name, [name for name in schema.names if name])
            if meant:
                hints.append(f"{meant}: {column.called}")
        raise SchemaMismatch(
            f"the data for {self._dataset.name} lack columns that the recipe reads",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            got=", ".join(schema.names),
            expected=", ".join(column.title for column in missing),
            hint="rename the columns; or have the engineer write in the recipe, at this dataset, "
            + (f"columns: {{{', '.join(hints)}}}" if hints else "columns: {yours: the recipe's}"),
        )

    def _takes_constants(self, schema: pa.Schema) -> None:  # (4)
        """What stands for a missing number is one that the column's type holds."""
        import pyarrow as pa

        for column in self._columns:
            constant = self._stand_ins.get(column.called)
            found = schema.field(column.name).type
            if not isinstance(constant, float) or not pa.types.is_float16(found):
                continue
            if abs(constant) > _FLOAT16_MAX:  # not a number is not greater
                raise SchemaMismatch(
                    "a number that stands for missing ones is beyond the type of its column",
                    check="columns",
                    owner=self._dataset.owner,
                    dataset=self._dataset.name,
                    column=column.title,
                    got=f"constant {constant:g} in a column of float16",
                    expected=f"-{_FLOAT16_MAX:g} to {_FLOAT16_MAX:g}, or a column of float32",
                    hint="store the column as float32, or have the engineer name another constant",
                )

    def _has_types(self, schema: pa.Schema) -> None:  # (4)
        import pyarrow as pa

        wrong = [
            (column, schema.field(column.name).type)
            for column in self._columns
            if not _fits(schema.field(column.name).type, column.kind)
            and not self._is_gap(column, schema.field(column.name).type)
        ]
        if not wrong:
            return
        text_for_numbers = any(
            kind_of(found) == "text" and column.kind in ("number", "label")
            for column, found in wrong
        )
        numbers_for_text = any(
            column.kind == "text" and pa.types.is_primitive(found) for column, found in wrong
        )
        if text_for_numbers:
            hint = "write numbers with a decimal point, and without units or words in between"
        elif any(has_parts(found) for _, found in wrong):
            hint = "join the parts of each message's content into one text before sealing"
        elif strange := next(
            (part for _, column_type in wrong if (part := strange_part(column_type))), None
        ):
            hint = (
                f"write the {strange} as a list"
                if strange.endswith("_view")
                else f"write the {strange} as JSON text, or as an object with fixed keys"
            )
        elif numbers_for_text:
            hint = "write the values of these columns as text"
        else:
            hint = "convert the columns before sealing"
        raise SchemaMismatch(
            f"columns of the data for {self._dataset.name} have types that the recipe cannot read",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            got=", ".join(f"{column.title}: {found}" for column, found in wrong),
            expected=", ".join(f"{column.title}: {_EXPECTED[column.kind]}" for column, _ in wrong),
            hint=hint,
        )

    def _is_gap(self, column: _Column, found: pa.DataType) -> bool:
        """Whether no record has a value in a column, and the recipe says what that means."""
        import pyarrow as pa

        return bool(pa.types.is_null(found)) and column.called in self._filled

    def _reads_tools(self, schema: pa.Schema) -> None:
        """Refuse tools that a template would not get: unread ones, and ones beside plain text."""
        read = [column.name for column in self._columns]
        spoken = [name for name in read if kind_of(schema.field(name).type) == "messages"]
        if 0 < len(spoken) < len([name for name in read if kind_of(schema.field(name).type)]):
            self._one_kind(schema, spoken)
        own = {called: name for name, called in self._dataset.columns.items()}.get(TOOLS, TOOLS)
        if own in read and not spoken:
            raise SchemaMismatch(
                f"the data for {self._dataset.name} have tools beside plain text",
                check="columns",
                owner=self._dataset.owner,
                dataset=self._dataset.name,
                column=own,
                got="text",
                expected=_EXPECTED["messages"],
                hint="write conversations, or have the engineer leave columns.tools out",
            )
        if not spoken:
            return
        if FUNCTIONS in schema.names and FUNCTIONS not in (*read, own):
            self._no_functions(schema.field(FUNCTIONS).type)
        if own not in schema.names or own in read:
            return
        readable = _renders_tools(self._recipe)
        raise SchemaMismatch(
            f"the data for {self._dataset.name} have tools, which no template would get",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            column=own,
            got=own,
            expected="a recipe whose columns name the tools" if readable else "no tools",
            hint=f"have the engineer write columns.tools: {TOOLS}, or leave the column out"
            if readable
            else f"{_method(self._recipe)} renders no tools: leave the column out",
        )

    def _no_functions(self, found: pa.DataType) -> None:
        """Refuse tools in the older form."""
        if not is_list_of_structs(found):
            return
        raise SchemaMismatch(
            f"the data for {self._dataset.name} have tools in the older form, which no template "
            "would get",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            column=FUNCTIONS,
            got=FUNCTIONS,
            expected=f"tools in a column {TOOLS}" if _renders_tools(self._recipe) else "no tools",
            hint=f"write each as {{type: function, function: …}} in a column {TOOLS}, or leave "
            "the column out",
        )

    def _check_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # (5)
        first, contrast = 0, self._needs_contrast()
        seen: set[bool] = set()
        for batch in batches:
            for column in self._columns:
                values = batch.column(column.name)
                if column.kind == "number" and not self._recipe.scripts:
                    values = with_gaps(values)
                if values.null_count and column.called not in self._filled:
                    raise self._refusal(
                        column, values.is_null(), first,
                        why="has no value", expected="a value in every record",
                        hint=self._without_gaps(column),
                    )  # fmt: skip
                if not self._recipe.scripts and column.kind in ("label", "name"):
                    self._require_known_labels(column, values, first)
                if contrast and column.kind == "boolean" and seen != _BOTH:
                    seen |= set(values.unique().to_pylist())
                if not self._recipe.scripts and column.kind in ("messages", "either"):
                    self._render(column, batch.select([column.name]), first)
                if not self._recipe.scripts and column.kind == "tools":
                    self._require_known_tools(column, values, first)
                if not self._recipe.scripts:
                    self._usable(column, values, first)
            first += batch.num_rows
            yield batch
        if not first:
            raise self._no_record()
        if contrast and first and seen != _BOTH:
            raise one_kind_only(
                getattr(self._recipe.columns, "label", ""),
                owner=self._dataset.owner,
                dataset=self._dataset.name,
            )

    def _no_record(self) -> RecordInvalid:
        return RecordInvalid(
            f"the data for {self._dataset.name} hold no record",
            check="records",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            got="0 records",
            expected="at least one",
            hint="see whether this is the file that you meant",
        )

    def _one_kind(self, schema: pa.Schema, spoken: list[str]) -> None:
        """Refuse prompts of one kind beside answers of the other."""
        texts = [
            column
            for column in self._columns
            if column.kind == "either" and column.name not in spoken
        ]
        if not texts:
            return
        raise SchemaMismatch(
            f"the data for {self._dataset.name} mix texts and conversations",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            column=texts[0].name,
            got=", ".join(f"{column.title}: {schema.field(column.name).type}" for column in texts),
            expected=f"conversations, as in {', '.join(spoken)}, or texts in every column",
            hint="write a text as a list of one message: [{role: user, content: …}]",
        )

    def _without_gaps(self, column: _Column) -> str:
        """What to do about a gap in a column."""
        if column.kind == "image":
            return "write the image's bytes into the column: a path alone is not sealed"
        if column.kind == "tools":
            return "write an empty list for a record without tools"
        hint = "leave such records out, or complete them, before sealing"
        if column.kind == "number":
            hint += "; or have the engineer say in the recipe what a gap means: missing"
        return hint

    def _needs_contrast(self) -> bool:  # (6)
        trained = [dataset for dataset in self._recipe.datasets if dataset.role == "train"]
        unpaired = getattr(self._recipe.columns, "kind", None) == "unpaired"
        if not unpaired or self._recipe.scripts or self._dataset.series is not None:
            return False  # the next data of a series may have the other kind
        return trained == [self._dataset]

    def _render(self, column: _Column, batch: pa.RecordBatch, first: int) -> None:
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

    def _require_obeyed_marks(self, column: _Column, batch: pa.RecordBatch, first: int) -> None:
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

    def _usable(self, column: _Column, values: pa.Array, first: int) -> None:
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

    def _require_known_tools(self, column: _Column, values: pa.Array, first: int) -> None:
        import pyarrow as pa

        if kind_of(values.type) != "text":  # the type says that they are objects
            return
        faults = [tools_fault(value) for value in values.to_pylist()]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:
            raise self._refusal(
                column, pa.array([fault is not None for fault in faults]), first,
                why=fault, expected=_EXPECTED["tools"],
                hint="write the function schemas as one JSON list",
            )  # fmt: skip

    def _require_known_labels(self, column: _Column, values: pa.Array, first: int) -> None:
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
        self, column: _Column, bad: pa.Array, first: int, *, why: str, expected: str, hint: str
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


def _renders_tools(recipe: Recipe) -> bool:
    return "tools" in type(recipe.columns).model_fields and _method(recipe) != "orpo"


def _method(recipe: Recipe) -> str:
    """The trainer's method where it has several, else the phase."""
    kind = getattr(recipe.trainer, "kind", None)
    return "orpo" if kind == "orpo" else f"phase {recipe.phase}"


def _kinds(recipe: Recipe) -> dict[str, _Kind]:
    """Recipe's name of each column that it reads → what it holds."""
    found: dict[str, _Kind] = {}
    for field in type(recipe.columns).model_fields:
        value = getattr(recipe.columns, field)
        names = (value,) if isinstance(value, str) else value or ()
        found.update(dict.fromkeys(names, _kind(recipe, field)))
    return found


def _kind(recipe: Recipe, field: str) -> _Kind:
    if field == "label":
        if recipe.phase in CONVERSATIONS:
            return "boolean"
        return "name" if getattr(recipe, "labels", None) else "label"
    fixed: dict[str, _Kind] = {
        "features": "number",
        "image": "image",
        "messages": "messages",
        "tools": "tools",
        "tokens": "tokens",
        "answer": "text",
    }
    return fixed.get(field) or ("either" if recipe.phase in CONVERSATIONS else "text")


def columns_read(recipe: Recipe) -> set[str]:
    """Columns that a run of the recipe may read, under the recipe's names.

    They are those of its phase, of rules for data, and of patients that a federation hides.
    """
    rules = recipe.validation
    found = set(_kinds(recipe)) | set(rules.columns if rules is not None else ())
    if rules is not None:
        found |= {
            name for rule in (rules.duplicates, rules.personal) if rule for name in rule.columns
        }
        found |= {rules.label.column} if rules.label else set()
    promised = getattr(recipe.collaboration, "patient_privacy", None)
    return found | ({promised.patient} if promised is not None else set())


def _without_empty(values: pa.Array) -> pa.Array:
    """Texts of which an empty one is missing, as in a CSV."""
    import pyarrow as pa
    import pyarrow.compute as pc

    [nothing] = pa.nulls(1, values.type)
    return pc.if_else(pc.equal(pc.utf8_length(values), 0), nothing, values)


def _bytes_of(values: pa.Array) -> pa.Array:
    """The files' bytes of images that have their path beside them."""
    import pyarrow.compute as pc

    return pc.struct_field(values, "bytes")


def _holds_bytes(found: pa.DataType) -> bool:
    """Whether a column holds objects with the bytes of a file among their fields."""
    import pyarrow as pa

    return bool(
        pa.types.is_struct(found)
        and found.get_field_index("bytes") >= 0
        and (
            pa.types.is_binary(found.field("bytes").type)
            or pa.types.is_large_binary(found.field("bytes").type)
        )
    )


def _fits(found: pa.DataType, kind: _Kind) -> bool:
    import pyarrow as pa

    whole: bool = pa.types.is_integer(found) or pa.types.is_boolean(found)
    if kind in ("text", "messages"):
        return kind_of(found) == kind
    if kind == "tools":
        return holds_tools(found)
    if kind == "either":
        return kind_of(found) is not None
    if kind == "number":
        return whole or bool(pa.types.is_floating(found))
    if kind == "boolean":
        return bool(pa.types.is_boolean(found))
    if kind == "label":
        return whole
    if kind == "name":
        return kind_of(found) == "text" or whole or bool(pa.types.is_floating(found))
    if kind == "tokens":
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        return any(is_list(found) for is_list in lists) and bool(
            pa.types.is_integer(found.value_type)
        )
    is_bytes = bool(pa.types.is_binary(found) or pa.types.is_large_binary(found))
    return is_bytes or _holds_bytes(found)
