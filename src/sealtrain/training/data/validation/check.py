"""Hold records against a recipe's rules: in a guest, and in plaintext at the owner's desk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ValidationFailed
from sealtrain.sealing.tabular.batches import evenly, open_records
from sealtrain.training.data.validation.columns import CountTokens
from sealtrain.training.data.validation.measure import measure
from sealtrain.training.data.validation.outcome import list_broken_rules, report

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.validation import Validation
    from sealtrain.sealing.tabular.conversion import Conversion
    from sealtrain.training.data.sources import Source

_MOST_NAMED = 20


def check(
    rules: Validation,
    sources: Sequence[Source],
    *,
    count_tokens: CountTokens | None = None,
    publish: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Hold all records against the rules.

    Args:
        rules: Of the recipe.
        sources: Opened datasets.
        count_tokens: By the recipe's tokenizer, where there is one.
        publish: Gets the report, whether rules hold or not; it decides whether it leaves.
        progress: Called with records read.

    Raises:
        ValidationFailed: A rule does not hold; names rules in the recipe's words only.
        SealRefused, DataInvalid: A dataset is damaged or not what its index says.
    """
    findings = measure(rules, sources, count_tokens=count_tokens, progress=progress)
    publish(report(findings))
    broken = list_broken_rules(findings)
    if not broken:
        return
    named = "; ".join(broken[:_MOST_NAMED]) + ("; …" if len(broken) > _MOST_NAMED else "")
    raise ValidationFailed(
        "the data breaks rules of the recipe",
        check="validation",
        got=named,
        hint="each owner runs: sealtrain validate",
    )


class PlainRecords:
    """Records of one file, read once, a batch at a time."""

    dataset_id = ""
    root = ""
    batch_rows: tuple[int, ...] = ()

    def __init__(self, path: Path, conversion: Conversion | None = None) -> None:
        """Find the schema.

        Args:
            path: A file of records.
            conversion: What the cells of a CSV mean, as when the file is sealed.

        Raises:
            FormatUnknown, SchemaMismatch, RecordInvalid: The records cannot be read.
            DataInvalid: There is no such file.
        """
        if not path.is_file():
            raise DataInvalid(f"no such file: {path}", hint="name a file of records")
        schema, self._records = open_records([path], lambda _: None, conversion=conversion)
        self.schema: pa.Schema | None = schema

    def batch(self, number: int) -> pa.RecordBatch:
        """Not offered: records are streamed."""
        raise IndexError(number)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches in order, once."""
        if self.schema is not None:
            yield from evenly(self._records, self.schema)
