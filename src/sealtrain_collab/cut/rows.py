"""Activations as records of a stream: numbers of each record as bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from sealtrain_collab.cut.activations import FORMS, Expected, Row

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "batch_of", "row_of", "schema"]

COLUMNS: Final = ("values", "scales", "labels")


def schema() -> pa.Schema:
    """Of records of activations."""
    import pyarrow as pa

    return pa.schema([(name, pa.large_binary()) for name in COLUMNS])


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Activations as records of a stream; ``row_of`` is the inverse."""
    import pyarrow as pa

    columns = {
        "values": [_octets(row.values) for row in rows],
        "scales": [b"" if row.scales is None else _octets(row.scales) for row in rows],
        "labels": [_octets(row.labels) for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema())


def row_of(record: Mapping[str, Any], expected: Expected) -> Row:
    """A record of a stream as activations."""
    values = _numbers(record["values"], FORMS[expected.form]).view(-1, expected.width)
    labels = _numbers(record["labels"], torch.int64)
    return Row(
        values=values,
        scales=_numbers(record["scales"], torch.float32) if record["scales"] else None,
        labels=labels if expected.per_token else labels[0],
    )


def _octets(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _numbers(octets: bytes, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(octets), dtype=dtype)
