"""Judge an owner's data by the recipe that they are sealed for, before anything is sealed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import FormatUnknown, SealtrainError, UsageError
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.missing import missing_values
from sealtrain.recipe.records import RecordCheck, dataset_of
from sealtrain.sealing.sealer import SealOptions
from sealtrain.sealing.sourcefiles import layout_of, source_files
from sealtrain.sealing.tabular.batches import open_records
from sealtrain.sealing.tabular.conversion import Conversion, read_dates
from sealtrain.sealing.tabular.jsonscan import LinesScan, Undecided, is_scanned
from sealtrain.sealing.tabular.tokens import TokenShards

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.recipe.terms import Dataset
    from sealtrain.sealing.sourcefiles import SourceFile

    Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]

_WITH_VALUE: Final = (
    *("--layout", "--format", "--dtype", "--row-tokens", "--padding"),
    *("--columns", "--decimals", "--dates"),
)
_WITHOUT: Final = (
    "--publish-counts",
    "--no-publish-counts",
    "--commitments",
    "--no-commitments",
)
_MAX_DIGITS: Final = 9
_FIRST: Final = 32
"""Records that are kept to be looked at."""


def fitting(
    recipe: PhaseRecipe,
    owner: str,
    name: str,
    source: Path | Mapping[str, SourceFile],
    options: SealOptions,
) -> SealOptions:
    """Options that seal a dataset as the recipe reads it.

    Args:
        recipe: That the data is sealed for.
        owner: Name of the owner.
        name: Of the dataset.
        source: File or folder with the data, or files that are opened in memory.
        options: As the owner gave them.

    Returns:
        The options with the layout that the dataset's role asks for, and the check of its records.

    Raises:
        DatasetUnknown: The recipe names no such dataset of this owner.
        FormatUnknown: Files are to be read as records and cannot be, by their names.
        UsageError: Layout and format make no sense together, or records are sealed for a model.
        DataInvalid: A file is missing, or a link.
    """
    dataset = dataset_of(recipe, owner, name)
    files = source_files(source)
    if dataset.role == "model":
        if not any(label == "config.json" for label, _ in files):
            raise UsageError(
                "the recipe reads a model here, and a model is a folder with config.json",
                check="role",
                owner=owner,
                got=", ".join(label for label, _ in files[:4]),
                expected="a folder that save_pretrained wrote, or the model folder of a run",
            )
        return options if options.layout != "auto" else replace(options, layout="raw")
    on_purpose = options.layout == "raw" or options.form == "file"
    if layout_of(options.layout, options.form, source, files) == "arrow":
        check = RecordCheck(recipe, dataset, columns=options.columns, on_unread=options.on_unread)
        return replace(options, check=check, conversion=check.judge.conversion(options.conversion))
    if on_purpose:
        return options
    # What cannot be read as records says so by its name.
    open_records([path for _, path in files if isinstance(path, Path)], lambda _: None)
    raise FormatUnknown(
        "the recipe reads records here",
        check="format",
        owner=owner,
        hint="seal a file of records; to seal files as they are: --format file",
    )


def seal_words(text: str) -> list[str]:
    """Further options of ``sealtrain seal`` in one text, as a shell would separate them.

    Raises:
        UsageError: A quotation is not closed, or a word is no option of how data is sealed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _not_options(f"a quotation is not closed: {text[:80]}") from error
    at = 0
    while at < len(words):
        option, mark, _ = words[at].partition("=")
        if option not in _WITH_VALUE and words[at] not in _WITHOUT:
            raise _not_options(words[at][:80])
        if option in _WITH_VALUE and not mark and at + 1 == len(words):
            raise _not_options(f"{option} without a value")
        at += 2 if option in _WITH_VALUE and not mark else 1
    return words


def layout_words(words: Sequence[str]) -> SealOptions:
    """How ``sealtrain seal`` would read records, given these words of it; others change nothing.

    Args:
        words: As ``seal_words`` returns them.

    Raises:
        UsageError: The layout of token shards is impossible, or decimals or dates are declared
            in another form.
    """
    given: dict[str, str] = {}
    dates: list[str] = []
    for at, word in enumerate(words):
        option, mark, value = word.partition("=")
        given[option] = value if mark else words[at + 1] if at + 1 < len(words) else ""
        if option == "--dates":
            dates.append(given[option])
    row_tokens = given.get("--row-tokens", "4096")
    if not (row_tokens.isascii() and row_tokens.isdigit() and len(row_tokens) <= _MAX_DIGITS):
        raise UsageError(
            "--row-tokens is not a number", check="--row-tokens", got=row_tokens[:80],
            expected="tokens of a record, such as 4096",
        )  # fmt: skip
    return SealOptions(
        layout=given.get("--layout", "auto"),
        form=given.get("--format", "auto"),
        token_shards=TokenShards(dtype=given.get("--dtype"), row_tokens=int(row_tokens)),
        columns=given.get("--columns", "all"),
        conversion=Conversion(decimals=given.get("--decimals", "point"), dates=read_dates(dates)),
    )


def _not_options(got: str) -> UsageError:
    return UsageError(
        "not options of how data is sealed",
        check="--seal-as",
        got=got,
        expected=", ".join((*_WITH_VALUE, *_WITHOUT)),
        hint="quote them as one word: --seal-as 'OWNER.NAME=--format tokens --row-tokens 4096'",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRead:
    """What was read of an owner's data.

    Attributes:
        count: Records; 0 of files.
        first: The first of them: field of the recipe's columns → value, as a phase gets it.
        types: Field of the recipe's columns → type, as it would be sealed.
    """

    count: int
    first: list[dict[str, Any]]
    types: Mapping[str, pa.DataType]


def _pass(_batch: pa.RecordBatch) -> None:
    """Look at nothing."""


def read_data(
    recipe: PhaseRecipe,
    owner: str,
    name: str,
    source: Path,
    options: SealOptions,
    look: Callable[[pa.RecordBatch], None] = _pass,
) -> DataRead:
    """Read an owner's data to its end and judge it as sealing would, and seal nothing.

    JSON lines are read once where that tells that they are good, else twice, as for sealing.

    Args:
        recipe: That the data is for.
        owner: Name of the owner.
        name: Of the dataset.
        source: File or folder with the data.
        options: As ``sealtrain seal`` would be given them.
        look: Sees the records that fit, under the names of the recipe's fields.

    Raises:
        SealtrainError: As ``fitting``, and what sealing refuses of records.
    """
    chosen = fitting(recipe, owner, name, source, options)
    if chosen.check is None:
        return DataRead(count=0, first=[], types={})
    paths = [path for _, path in source_files(source) if isinstance(path, Path)]
    dataset = dataset_of(recipe, owner, name)
    fields = _fields(recipe, dataset)
    own = {called: column for column, called in dataset.columns.items()}
    texts = {
        fields[own.get(called, called)]: value
        for called, value in missing_values(recipe).items()
        if isinstance(value, str)
    }
    reading = _Reading(fields, look, texts)
    if chosen.form == "auto" and is_scanned(paths):
        with suppress(Undecided):
            return reading.of_scan(LinesScan(paths), chosen.check)
    opened = open_records(
        paths,
        lambda _: None,
        form=chosen.form,
        folder=source,
        shards=chosen.token_shards,
        conversion=chosen.conversion,
    )
    schema, batches = chosen.check(opened)
    return reading.of(schema, batches)


class _Reading:
    """Takes records in, and begins anew without looking at one twice."""

    def __init__(
        self,
        fields: Mapping[str, str],
        look: Callable[[pa.RecordBatch], None],
        texts: Mapping[str, str],
    ) -> None:
        self._fields, self._look, self._texts = fields, look, texts
        self._first: list[dict[str, Any]] = []
        self._seen = 0

    def of_scan(self, scan: LinesScan, check: Callable[[Opened], Opened]) -> DataRead:
        """Judge records by one reading.

        Raises:
            Undecided: There is something wrong with them, or may be: read them as sealing does.
            SealtrainError: What ``look`` refuses.
        """
        try:
            batches = check((scan.schema, scan.batches()))[1]
        except SealtrainError:
            raise Undecided from None
        done = self.of(scan.schema, _raise_undecided(batches))
        try:
            schema, _ = check((scan.schema, iter(())))
        except SealtrainError:
            raise Undecided from None
        return replace(done, types=self._types(schema))

    def of(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> DataRead:
        """Take records of a schema, the first ones of which may have been taken before."""
        count, seen = 0, self._seen
        for batch in batches:
            fresh = batch.slice(max(0, seen - count))
            count += batch.num_rows
            if not fresh.num_rows:
                continue
            named = fresh.select(list(self._fields)).rename_columns(list(self._fields.values()))
            named = self._fill(named)
            self._seen = count
            self._look(named)
            if len(self._first) < _FIRST:
                self._first += read_rows(named.slice(0, _FIRST - len(self._first)))
        return DataRead(count=count, first=self._first, types=self._types(schema))

    def _types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        return {field: schema.field(name).type for name, field in self._fields.items()}

    def _fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records with the text that stands for a missing one."""
        for field, text in self._texts.items():
            at = batch.schema.get_field_index(field)
            if batch.column(at).null_count:
                whole = batch.column(at).fill_null(text)
                batch = batch.set_column(at, batch.schema.field(at), whole)
        return batch


def _raise_undecided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except SealtrainError:
        raise Undecided from None


def _fields(recipe: PhaseRecipe, dataset: Dataset) -> dict[str, str]:
    """Owner's column → field of the recipe's columns; of features, which are many, none."""
    own = {called: name for name, called in dataset.columns.items()}
    columns = recipe.columns
    named = {field: getattr(columns, field) for field in type(columns).model_fields}
    return {own.get(name, name): field for field, name in named.items() if isinstance(name, str)}
