"""The index of a sealed dataset: what lies in which shard. It is itself sealed.

Names of original files, schema, record counts and batch positions are content too, so they live in
the payload of ``index.sealed`` and nowhere else. Its plaintext is canonical JSON; batch tables are
base64 of big-endian ``u64 offset | u32 length | u32 rows`` entries, 16 bytes a batch.

The owner who sealed it is not trusted by the owners of other datasets. Checks, in order:
 1. It is canonical JSON within the limits, with exactly the known members of their types.
 2. Shards have names of their own, inside the folder, and are of the kind that the layout has.
 3. Every record batch lies inside its shard, at a multiple of 8 bytes, and has rows.
 4. The rows of all batches are the records.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, overload

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.arrowtypes import canonical_schema
from sealtrain.sealing.description import ShardInfo
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.header import FileContext

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

MAX_INDEX_BYTES: Final = 256 << 20
MAX_SHARDS: Final = 1 << 20
MAX_BATCH_BYTES: Final = (1 << 32) - 1
MAX_BATCH_ROWS: Final = 1 << 24
"""A reader shuffles the rows of a batch in memory, also rows that hold nothing."""
_ALIGNED: Final = 8
_LAYOUTS: Final = ("arrow", "raw")
_ENTRY: Final = struct.Struct(">QII")
_COLUMNS: Final = [("offset", ">u8"), ("length", ">u4"), ("rows", ">u4")]
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Where one Arrow record batch lies in its shard's content."""

    offset: int
    length: int
    rows: int


class BatchTable(Sequence[Batch]):
    """The record batches of one shard, kept as the 16 bytes each that the index has for them.

    A dataset of 100 GB has a hundred thousand: as objects they would take as much memory as the
    batches that a reader holds.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        """Take entries as they lie in the index.

        Args:
            packed: 16 bytes a batch.

        Raises:
            struct.error: Not whole entries.
        """
        if len(packed) % _ENTRY.size:
            raise struct.error("not whole entries")
        self.packed = packed

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Self:
        """The table of these batches."""
        return cls(
            b"".join(_ENTRY.pack(batch.offset, batch.length, batch.rows) for batch in batches)
        )

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.packed) // _ENTRY.size

    @overload
    def __getitem__(self, number: int) -> Batch: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Batch, ...]: ...
    def __getitem__(self, number: int | slice) -> Batch | tuple[Batch, ...]:
        """Batch ``number`` of the shard."""
        if isinstance(number, slice):
            return tuple(self[place] for place in range(*number.indices(len(self))))
        place = range(len(self))[number] * _ENTRY.size
        return _batch(*_ENTRY.unpack_from(self.packed, place))

    def __iter__(self) -> Iterator[Batch]:
        """All batches in order."""
        return (_batch(*entry) for entry in _ENTRY.iter_unpack(self.packed))

    def columns(self) -> npt.NDArray[np.void]:
        """Fields ``offset`` (u64), ``length`` and ``rows`` (u32) of all batches; not a copy."""
        import numpy as np

        return np.frombuffer(self.packed, _COLUMNS)

    def __eq__(self, other: object) -> bool:
        """Whether the other table names the same batches."""
        return isinstance(other, BatchTable) and self.packed == other.packed

    def __hash__(self) -> int:
        """Of the entries."""
        return hash(self.packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedShard:
    """One sealed file and what it holds.

    Attributes:
        info: Name, size and root, as under the dataset root.
        kind: ``arrow``, ``raw`` or ``commitments``.
        file: Original relative path of a raw file, else the shard's own name.
        batches: Record batches of an Arrow shard.
    """

    info: ShardInfo
    kind: str
    file: str
    batches: BatchTable = field(default_factory=BatchTable)

    def to_dict(self) -> dict[str, str | int]:
        """JSON form."""
        return self.info.to_dict() | {
            "kind": self.kind,
            "file": self.file,
            "batches": to_base64(self.batches.packed),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Everything a reader needs beside the key and the root."""

    dataset_id: str
    name: str
    owner_id: str
    owner_name: str
    layout: str
    padding: str
    suite: Suite
    schema: bytes | None
    schema_digest: str
    records: int | None
    tokens: int | None
    shards: tuple[IndexedShard, ...]

    def context(self, kind: str, shard: int) -> FileContext:
        """Context of the dataset's file of this kind and number."""
        return FileContext(
            dataset_id=self.dataset_id,
            owner_id=self.owner_id,
            name=self.name,
            shard=shard,
            schema_digest=self.schema_digest,
            padding=self.padding,
            kind=kind,
            suite=self.suite,
        )

    def to_bytes(self) -> bytes:
        """Plaintext of the index file."""
        return canonical_json(
            {
                "version": 1,
                "dataset_id": self.dataset_id,
                "name": self.name,
                "owner_id": self.owner_id,
                "owner_name": self.owner_name,
                "layout": self.layout,
                "padding": self.padding,
                "suite": int(self.suite),
                "schema": None if self.schema is None else to_base64(self.schema),
                "schema_digest": self.schema_digest,
                "records": self.records,
                "tokens": self.tokens,
                "shards": [shard.to_dict() for shard in self.shards],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        """Parse the plaintext of an index.

        Raises:
            DataInvalid: A field is missing, unknown or of another type, or contradicts another.
            LimitExceeded: Longer than 256 MiB or more than 2**20 shards.
        """
        value = parse_canonical(data, max_bytes=MAX_INDEX_BYTES)
        try:
            index = _parse(value)
        except (KeyError, TypeError, AttributeError, struct.error) as error:
            raise DataInvalid("index of the sealed dataset is malformed", check="index") from error
        _require_consistent(index)
        return index


def require_room(shards: int, index_bytes: int) -> None:
    """Refuse to seal more into one dataset than its index can list.

    Args:
        shards: Sealed, or certain to come.
        index_bytes: Of the index that lists them, or less.

    Raises:
        LimitExceeded: No reader would open the dataset.
    """
    if shards > MAX_SHARDS or index_bytes > MAX_INDEX_BYTES:
        raise LimitExceeded(
            "the data is longer than the index of one sealed dataset",
            check="index",
            got=f"{shards} shards and an index of {index_bytes} bytes or more",
            expected=f"at most {MAX_SHARDS} shards and {MAX_INDEX_BYTES} bytes",
            hint="seal it as several datasets; a recipe names up to 256",
        )


def schema_digest_of(schema: pa.Schema | None) -> str:
    """Digest of columns and types: SHA-256 of the canonical JSON of ``canonical_schema``.

    Args:
        schema: ``None`` for raw files, whose digest is that of JSON ``"raw"``.

    Raises:
        SchemaMismatch: A column has a type that is not sealed.
    """
    return sha256_hex(canonical_json("raw" if schema is None else canonical_schema(schema)))


def _parse(value: JsonValue) -> Index:
    names = {
        "version", "dataset_id", "name", "owner_id", "owner_name", "layout", "padding", "suite",
        "schema", "schema_digest", "records", "tokens", "shards",
    }  # fmt: skip
    if not isinstance(value, dict) or set(value) != names or value["version"] != 1:
        raise DataInvalid("index of the sealed dataset is of an unknown form", check="index")
    for key in ("dataset_id", "name", "owner_id", "owner_name", "layout", "padding"):
        _expect(value[key], str)
    for key in ("records", "tokens"):
        if value[key] is not None:
            _expect(value[key], int)
    _expect(value["shards"], list)
    if not 1 <= len(value["shards"]) <= MAX_SHARDS:
        raise LimitExceeded("index names too many shards or none", got=len(value["shards"]))
    return Index(
        dataset_id=value["dataset_id"],
        name=value["name"],
        owner_id=value["owner_id"],
        owner_name=value["owner_name"],
        layout=value["layout"],
        padding=value["padding"],
        suite=Suite.of(value["suite"]),
        schema=None if value["schema"] is None else from_base64(_expect(value["schema"], str)),
        schema_digest=_expect(value["schema_digest"], str),
        records=value["records"],
        tokens=value["tokens"],
        shards=tuple(_shard(item) for item in value["shards"]),
    )


def _shard(value: JsonValue) -> IndexedShard:
    if set(value) != {"name", "size", "root", "kind", "file", "batches"}:
        raise DataInvalid("index names a shard of an unknown form", check="index")
    info = ShardInfo(
        name=_expect(value["name"], str),
        size=_expect(value["size"], int),
        root=_expect(value["root"], str),
    )
    if not _NAME.fullmatch(info.name):
        raise DataInvalid("index names a shard outside its folder", check="index")
    return IndexedShard(
        info=info,
        kind=_expect(value["kind"], str),
        file=_expect(value["file"], str),
        batches=BatchTable(from_base64(_expect(value["batches"], str))),
    )


def _require_consistent(index: Index) -> None:
    """Checks 2 to 4."""
    shards = index.shards
    if len({shard.info.name for shard in shards}) != len(shards):
        raise _contradiction(index, "names a shard twice")
    records = list(shards)
    if records[-1].kind == "commitments":
        records.pop()
    if index.layout not in _LAYOUTS or {shard.kind for shard in records} != {index.layout}:
        raise _contradiction(index, f"names shards of another kind than its layout {index.layout}")
    rows = 0
    for shard in shards:
        if len(shard.batches):
            number = _first_outside(shard)
            if number is not None:
                _require_inside(index, shard, number, shard.batches[number])
            rows += int(shard.batches.columns()["rows"].sum(dtype="int64"))
    counts = (index.schema, index.records, index.tokens)
    if index.layout == "raw" and (rows or any(count is not None for count in counts)):
        raise _contradiction(index, "counts records of raw files")
    if index.layout == "arrow" and (index.schema is None or index.records != rows):
        raise _contradiction(
            index, "does not count its records", got=index.records, expected=f"{rows} records"
        )


def _first_outside(shard: IndexedShard) -> int | None:
    """Number of the first batch that ``_require_inside`` refuses."""
    table = shard.batches.columns()
    size = min(max(shard.info.size, 0), (1 << 63) - 1)
    offset, length, rows = table["offset"], table["length"], table["rows"]
    # Nothing is added up: the sum of two numbers of 64 bits may come out small.
    refused = (offset > size) | (length > size - offset.clip(0, size)) | (length == 0)
    refused |= (offset % _ALIGNED != 0) | (rows == 0) | (rows > MAX_BATCH_ROWS)
    if shard.kind == "arrow" and not refused.any():
        return None
    return int(refused.argmax())


def _require_inside(index: Index, shard: IndexedShard, number: int, batch: Batch) -> None:
    # The content of a sealed file is shorter than the file. Where exactly it ends is known once the
    # shard is open; a read that comes short is refused there.
    end = batch.offset + batch.length
    if shard.kind != "arrow" or end > shard.info.size or not batch.length:
        raise _contradiction(
            index,
            f"places record batch {number} of {shard.info.name} outside the shard",
            got=f"bytes {batch.offset} to {end}",
            expected=f"a part of {shard.info.size} bytes",
        )
    if batch.offset % _ALIGNED or not 0 < batch.rows <= MAX_BATCH_ROWS:
        raise _contradiction(
            index,
            f"describes record batch {number} of {shard.info.name} wrongly",
            got=f"{batch.rows} rows at byte {batch.offset}",
            expected=f"1 to {MAX_BATCH_ROWS} rows at a multiple of {_ALIGNED}",
        )


def _contradiction(
    index: Index, what: str, *, got: object = None, expected: object = None
) -> DataInvalid:
    return DataInvalid(
        f"index of dataset {index.name} {what}",
        check="index",
        owner=index.owner_name,
        got=got,
        expected=expected,
        hint="its owner seals it again; nothing of it was read",
    )


def _expect(value: JsonValue, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataInvalid("index holds a value of the wrong type", check="index")
    return value


def _batch(offset: int, length: int, rows: int) -> Batch:
    return Batch(offset=offset, length=length, rows=rows)
