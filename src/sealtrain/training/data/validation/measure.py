"""Read every record once and count.

1. Every shard is read to its end under its signed root, and the records are as many as the index
   says; damage ends here with the errors of ``sealing``.
2. What the rules ask for is counted, per dataset.

No record, no value and no text of an error leaves this module; unexpected errors lose their text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.errors import ValidationFailed
from sealtrain.training.data.validation.columns import ColumnTally, CountTokens
from sealtrain.training.data.validation.personal_data import Finder, finder
from sealtrain.training.data.validation.repeats import Repeats

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.validation import Validation
    from sealtrain.training.data.sources import Source

_READ_BYTES = 1 << 20


@dataclass(slots=True)
class DatasetTally:
    """Counts over one dataset.

    Attributes:
        owner: Owner's name.
        name: Dataset's name.
        role: ``train`` or ``test``.
        records: Records read.
        missing: Columns that rules name and the dataset lacks.
        columns: Column → its counts.
        personal: Kind of personal data → records with a finding.
        persons: Records with a finding of any kind.
    """

    owner: str
    name: str
    role: str
    records: int = 0
    missing: set[str] = field(default_factory=set)
    columns: dict[str, ColumnTally] = field(default_factory=dict)
    personal: Counter[str] = field(default_factory=Counter)
    persons: int = 0


@dataclass(slots=True)
class Findings:
    """Counts over everything.

    Attributes:
        rules: Measured for.
        datasets: In the recipe's order.
        owners: Names, by their number in ``repeats``.
        repeats: Equal records.
        labels: Label that the rules name → training records.
        unlabelled: Training records with another label or none.
    """

    rules: Validation
    datasets: list[DatasetTally]
    owners: list[str]
    repeats: Repeats
    labels: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0


def measure(
    rules: Validation,
    sources: Sequence[Source],
    *,
    count_tokens: CountTokens | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Findings:
    """Count over all records of all sources.

    Args:
        rules: What to count for.
        sources: Opened datasets.
        count_tokens: By the recipe's tokenizer, where there is one.
        progress: Called with records read.

    Raises:
        SealRefused, RecordInvalid: A dataset is damaged.
        DataInvalid: A dataset does not hold as many records as its index says.
        ExtraMissing: Libraries for personal data are not installed.
    """
    owners = sorted({source.owner for source in sources})
    findings = Findings(
        rules=rules,
        datasets=[DatasetTally(opened.owner, opened.name, opened.role) for opened in sources],
        owners=owners,
        repeats=Repeats(),
    )
    find = None
    if rules.personal is not None:
        find = finder(rules.personal.kinds, rules.personal.regions)
    for source, tally in zip(sources, findings.datasets, strict=True):
        work = _Dataset(findings, tally, owners.index(source.owner), find, count_tokens)
        try:
            work.read(source, progress)
        except SealtrainError:
            raise
        except Exception as error:
            # A library's message may quote a value.
            raise ValidationFailed(
                f"dataset {source.name} cannot be checked",
                check="validation",
                owner=source.owner,
                got=type(error).__name__,
                hint="its owner runs: sealtrain validate",
            ) from None
    return findings


@dataclass(slots=True)
class _Dataset:
    findings: Findings
    tally: DatasetTally
    owner: int
    find: Finder | None
    count_tokens: CountTokens | None

    def read(self, source: Source, progress: Callable[[int], None]) -> None:
        dataset: Any = source.dataset
        schema = source.schema
        if schema is None:
            self.tally.missing = self._list_wanted()
            self._read_files(dataset)
            return
        self.tally.missing = self._list_wanted() - set(schema.names)
        self.tally.columns = {
            name: ColumnTally(rule)
            for name, rule in self.findings.rules.columns.items()
            if name in schema.names
        }
        for batch in map(source.rename, _batches(dataset)):
            self._count(batch)
            progress(batch.num_rows)
        claimed = getattr(dataset, "records", None)
        if claimed is not None and claimed != self.tally.records:
            raise DataInvalid(
                f"dataset {source.name} does not hold the records its index counts",
                check="records",
                owner=source.owner,
                dataset=source.name,
            )

    def _read_files(self, dataset: Any) -> None:
        for name in dataset.file_names:
            with dataset.open_file(name) as file:
                while file.read(_READ_BYTES):
                    pass

    def _list_wanted(self) -> set[str]:
        rules = self.findings.rules
        wanted = set(rules.columns)
        if rules.duplicates is not None:
            wanted.update(rules.duplicates.columns)
        if rules.label is not None and self.tally.role == "train":
            wanted.add(rules.label.column)
        if rules.personal is not None:
            wanted.update(rules.personal.columns)
        return wanted

    def _count(self, batch: pa.RecordBatch) -> None:
        rules, missing = self.findings.rules, self.tally.missing
        self.tally.records += batch.num_rows
        for name, tally in self.tally.columns.items():
            tally.add(batch.column(name), self.count_tokens)
        if rules.duplicates is not None and not missing & set(rules.duplicates.columns):
            columns = [_plain(batch.column(name)) for name in rules.duplicates.columns]
            for record in zip(*columns, strict=True):
                self.findings.repeats.add(self.owner, _write_record(record))
        if rules.label is not None and rules.label.column not in missing:
            self._labels(batch.column(rules.label.column))
        if rules.personal is not None and self.find is not None:
            names = [name for name in rules.personal.columns if name not in missing]
            columns = [_plain(batch.column(name)) for name in names]
            for record in zip(*columns, strict=True):
                self._look_at(record)

    def _labels(self, column: pa.Array) -> None:
        if self.tally.role != "train" or self.findings.rules.label is None:
            return
        known = set(self.findings.rules.label.values)
        for label, count in Counter(_plain(column)).items():
            name = _label(label)
            if name in known:
                self.findings.labels[name] += count
            else:
                self.findings.unlabelled += count

    def _look_at(self, record: tuple[Any, ...]) -> None:
        kinds: set[str] = set()
        for value in record:
            if value is not None and self.find is not None:
                kinds.update(self.find(value if isinstance(value, str) else _text(value)))
        self.tally.personal.update(kinds)
        self.tally.persons += bool(kinds)


def _batches(dataset: Any) -> Iterator[pa.RecordBatch]:
    if not len(dataset.batch_rows):
        yield from getattr(dataset, "batches", tuple)()
    for number in range(len(dataset.batch_rows)):
        yield dataset.batch(number)


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_record(record: tuple[Any, ...]) -> bytes:
    """One text for equal records, whatever types their owners chose for numbers."""
    whole = [int(x) if isinstance(x, float) and x.is_integer() else x for x in record]
    return json.dumps(whole, sort_keys=True, default=repr).encode()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
