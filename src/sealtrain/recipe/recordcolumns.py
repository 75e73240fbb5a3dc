"""Columns that a recipe reads of an owner's data: there, of the right type, and written one way.

1. Every column is there that the recipe reads, under the owner's name for it.
2. Each has the type that the phase reads, unless a script of the engineer's reads them; a column
   without any value has one where the recipe says what stands for a missing one.
3. A constant that stands for missing numbers is a number of the column's type.
4. Tools are read where the template gets them, and stand beside conversations; texts do not.

What means the same is written as the recipe reads it: a label that is a number or a boolean becomes
the name that the recipe lists, and an image as Hugging Face's datasets keep it becomes its bytes.

Errors name columns, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from sealtrain.base.suggestion import nearest
from sealtrain.recipe.conversations import (
    FUNCTIONS,
    TOOLS,
    has_parts,
    holds_tools,
    is_list_of_structs,
    kind_of,
    strange_part,
)
from sealtrain.recipe.labels import find_label
from sealtrain.recipe.missing import missing_values, rules_of
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.terms import Dataset
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.conversion import Conversion

if TYPE_CHECKING:
    import pyarrow as pa

    Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]

EITHER: Final = "text, or a list of {role, content} with text in both"
ColumnKind = Literal[
    "text", "messages", "tools", "either", "number", "boolean", "label", "name", "tokens", "image"
]
EXPECTED: Final[dict[ColumnKind, str]] = {
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
_FLOAT16_MAX: Final = 65504.0
"""The greatest number of IEEE 754's binary16."""
CONVERSATIONS: Final = ("dpo", "reward", "rlhf")
"""Phases whose prompts and answers may also be lists of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumn:
    """A column that the recipe reads.

    Attributes:
        name: As the owner calls it.
        called: As the recipe calls it.
        kind: What it holds.
    """

    name: str
    called: str
    kind: ColumnKind

    @property
    def title(self) -> str:
        """Its name, and the recipe's where that is another."""
        return (
            self.name if self.name == self.called else f"{self.name} (in the recipe {self.called})"
        )


def _remedy(kind: ColumnKind, found: pa.DataType) -> str:
    """What an owner does about a column of another type than the recipe reads."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(found):
        return "no record has a value; name another column, or have the recipe say missing"
    if kind == "image":
        return "write the bytes of each image, or seal a folder of them: --format images"
    if kind in ("messages", "either"):
        if types.is_string(found) or types.is_large_string(found):
            return "write the list itself, and not its JSON as text"
        return "write role and content (from ShareGPT: from, value, human and gpt renamed)"
    if kind in ("number", "label", "name"):
        if types.is_decimal(found):
            return "write decimals as floating point: in pandas, .astype('float64')"
        if types.is_temporal(found):
            return "write dates as numbers, such as days since 1970-01-01"
    if kind == "text" and types.is_list(found):
        return "join the list into one text"
    if kind == "text" and types.is_binary(found):
        return "write text, and not bytes: in pandas, .str.decode('utf-8')"
    return f"write {EXPECTED[kind]}"


class ColumnJudge:
    """Judges and writes the columns of one dataset.

    Attributes:
        columns: Those that the recipe reads.
        filled: Columns, as the recipe calls them, of which it says what a missing value means.
    """

    def __init__(self, recipe: PhaseRecipe, dataset: Dataset) -> None:
        """Take what the recipe asks of a dataset of role ``train`` or ``test``."""
        self._recipe = recipe
        self._dataset = dataset
        self.filled = frozenset(rules_of(recipe))
        self._stand_ins = missing_values(recipe)
        self._own = {called: name for name, called in dataset.columns.items()}
        self.columns = [
            ReadColumn(name=self._own.get(called, called), called=called, kind=kind)
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
                column.name for column in self.columns if column.kind in ("text", "either", "name")
            ),
            numbers=frozenset(column.name for column in self.columns if column.kind == "number"),
        )

    def require(self, schema: pa.Schema) -> None:
        """The checks 1 to 4.

        Raises:
            SchemaMismatch: Columns are missing, or have another type.
            RecordInvalid: There is no column, and so no record.
        """
        self._has_columns(schema)
        if self._recipe.scripts:  # a script says for itself what it reads
            return
        self._has_types(schema)
        self._takes_constants(schema)
        self._reads_tools(schema)

    def list_unread(self, schema: pa.Schema) -> list[str]:
        """The owner's columns that the recipe does not read."""
        read = {self._own.get(name, name) for name in columns_read(self._recipe)}
        return [name for name in schema.names if name not in read]

    def write(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Opened:
        """Labels as the recipe lists them, images as bytes, and a column of gaps with its type."""
        import pyarrow as pa
        import pyarrow.compute as pc

        change: dict[str, Callable[[pa.Array], pa.Array]] = {}
        for column in self.columns:
            found = schema.field(column.name).type
            if column.kind == "name":
                empty = column.called in self.filled
                change[column.name] = partial(self._name_labels, empty_is_missing=empty)
                kind = pa.string()
            elif self._is_gap(column, found):
                kind = pa.float64() if column.kind == "number" else pa.string()
                change[column.name] = partial(pc.cast, target_type=kind)
            elif column.kind == "text" and column.called in self.filled:
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

        def change_batches() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                columns = [
                    change[name](values) if name in change else values
                    for name, values in zip(batch.schema.names, batch.columns, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)

        return schema, change_batches()

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

    def _has_columns(self, schema: pa.Schema) -> None:  # (1)
        missing = [column for column in self.columns if column.name not in schema.names]
        if not missing:
            return
        if not schema.names:
            raise no_record(self._dataset)
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

    def _takes_constants(self, schema: pa.Schema) -> None:  # (2)
        """What stands for a missing number is one that the column's type holds."""
        import pyarrow as pa

        for column in self.columns:
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

    def _has_types(self, schema: pa.Schema) -> None:  # (2)
        import pyarrow as pa

        wrong = [
            (column, schema.field(column.name).type)
            for column in self.columns
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
            column, found = wrong[0]
            hint = f"{column.name[:80]}: {_remedy(column.kind, found)}"
        raise SchemaMismatch(
            f"columns of the data for {self._dataset.name} have types that the recipe cannot read",
            check="columns",
            owner=self._dataset.owner,
            dataset=self._dataset.name,
            got=", ".join(f"{column.title}: {found}" for column, found in wrong),
            expected=", ".join(f"{column.title}: {EXPECTED[column.kind]}" for column, _ in wrong),
            hint=hint,
        )

    def _is_gap(self, column: ReadColumn, found: pa.DataType) -> bool:
        """Whether no record has a value in a column, and the recipe says what that means."""
        import pyarrow as pa

        return bool(pa.types.is_null(found)) and column.called in self.filled

    def _reads_tools(self, schema: pa.Schema) -> None:
        """Refuse tools that a template would not get: unread ones, and ones beside plain text."""
        read = [column.name for column in self.columns]
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
                expected=EXPECTED["messages"],
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

    def _one_kind(self, schema: pa.Schema, spoken: list[str]) -> None:
        """Refuse prompts of one kind beside answers of the other."""
        texts = [
            column
            for column in self.columns
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


def no_record(dataset: Dataset) -> RecordInvalid:
    """The refusal of data without a record."""
    return RecordInvalid(
        f"the data for {dataset.name} hold no record",
        check="records",
        owner=dataset.owner,
        dataset=dataset.name,
        got="0 records",
        expected="at least one",
        hint="see whether this is the file that you meant",
    )


def columns_read(recipe: PhaseRecipe) -> set[str]:
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


def _renders_tools(recipe: PhaseRecipe) -> bool:
    return "tools" in type(recipe.columns).model_fields and _method(recipe) != "orpo"


def _method(recipe: PhaseRecipe) -> str:
    """The trainer's method where it has several, else the phase."""
    kind = getattr(recipe.trainer, "kind", None)
    return "orpo" if kind == "orpo" else f"phase {recipe.phase}"


def _kinds(recipe: PhaseRecipe) -> dict[str, ColumnKind]:
    """Recipe's name of each column that it reads → what it holds."""
    found: dict[str, ColumnKind] = {}
    for field in type(recipe.columns).model_fields:
        value = getattr(recipe.columns, field)
        names = (value,) if isinstance(value, str) else value or ()
        found.update(dict.fromkeys(names, _kind(recipe, field)))
    return found


def _kind(recipe: PhaseRecipe, field: str) -> ColumnKind:
    if field == "label":
        if recipe.phase in CONVERSATIONS:
            return "boolean"
        return "name" if getattr(recipe, "labels", None) else "label"
    fixed: dict[str, ColumnKind] = {
        "features": "number",
        "image": "image",
        "messages": "messages",
        "tools": "tools",
        "tokens": "tokens",
        "answer": "text",
    }
    return fixed.get(field) or ("either" if recipe.phase in CONVERSATIONS else "text")


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


def _fits(found: pa.DataType, kind: ColumnKind) -> bool:
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
