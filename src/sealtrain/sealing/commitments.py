"""Keyed record commitments: a holder of the data key can tell whether a record is in.

::

    commitment = HMAC-SHA256(derive(data key, "record-commitment", dataset id), canonical record)

The canonical record is RFC 8785 JSON without null fields; bytes become ``{"$bytes": base64}``,
integers beyond 2**53 ``{"$int": text}``, times and decimals their text. The list of commitments, in
row order, is a sealed file of its own: without the key it confirms no guess.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain.sealing.datakey import DataKey

if TYPE_CHECKING:
    import pyarrow as pa

COMMITMENTS_NAME: Final = "commitments.sealed"
COMMITMENT_BYTES: Final = 32
_EXACT: Final = 1 << 53


class Committer:
    """Computes the commitments of one dataset's records."""

    __slots__ = ("_key",)

    def __init__(self, data_key: DataKey, dataset_id: str) -> None:
        """Derive the commitment key.

        Args:
            data_key: Key of the dataset.
            dataset_id: 32 hex digits.
        """
        self._key = data_key.derive("record-commitment", dataset_id)

    def of(self, record: Mapping[str, Any]) -> bytes:
        """Commitment of one record, 32 bytes.

        Raises:
            DataInvalid: A value is of a type no record holds.
        """
        return self._key.mac(canonical_json(_plain(record)))

    def of_batch(self, batch: pa.RecordBatch) -> bytes:
        """Commitments of a batch's rows, 32 bytes each, in order."""
        return b"".join(self.of(row) for row in batch.to_pylist())


def record_commitment(data_key: DataKey, dataset_id: str, record: Mapping[str, Any]) -> bytes:
    """Commitment of one record of one dataset, 32 bytes.

    Raises:
        DataInvalid: A value is of a type no record holds.
    """
    return Committer(data_key, dataset_id).of(record)


def _plain(value: Any) -> JsonValue:
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if -_EXACT < value < _EXACT else {"$int": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": to_base64(value)}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise DataInvalid("record holds a value that cannot be committed to", got=type(value).__name__)
