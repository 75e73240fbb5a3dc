"""The index of a sealed dataset: what lies in which shard. It is itself sealed.

Names of original files, schema, record counts and batch positions are content too, so they live in
the payload of ``index.sealed`` and nowhere else. Its plaintext is canonical JSON; batch tables are
base64 of big-endian ``u64 offset | u32 length | u32 rows`` entries, 16 bytes a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.description import ShardInfo
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.header import FileContext

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batch", "Index", "IndexedShard", "schema_digest_of"]

MAX_INDEX_BYTES: Final = 256 << 20
MAX_SHARDS: Final = 1 << 20
MAX_BATCH_BYTES: Final = (1 << 32) - 1
_ENTRY: Final = struct.Struct(">QII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Where one Arrow record batch lies in its shard's content."""

    offset: int
    length: int
    rows: int


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
    batches: tuple[Batch, ...] = ()


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
                "shards": [
                    shard.info.to_dict()
                    | {
                        "kind": shard.kind,
                        "file": shard.file,
                        "batches": _pack_batches(shard.batches),
                    }
                    for shard in self.shards
                ],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        """Parse the plaintext of an index.

        Raises:
            DataInvalid: A field is missing, unknown or of another type.
            LimitExceeded: Longer than 256 MiB or more than 2**20 shards.
        """
        value = parse_canonical(data, max_bytes=MAX_INDEX_BYTES)
        try:
            return _parse(value)
        except (KeyError, TypeError, AttributeError, struct.error) as error:
            raise DataInvalid("index of the sealed dataset is malformed", check="index") from error


def schema_digest_of(schema: pa.Schema | None) -> str:
    """Digest of columns and types: SHA-256 of canonical JSON ``[[name, type, nullable], …]``.

    Args:
        schema: ``None`` for raw files, whose digest is that of JSON ``"raw"``.
    """
    if schema is None:
        return sha256_hex(canonical_json("raw"))
    fields = [[field.name, str(field.type), field.nullable] for field in schema]
    return sha256_hex(canonical_json(fields))


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
    if "/" in info.name or info.name.startswith("."):
        raise DataInvalid("index names a shard outside its folder", check="index")
    return IndexedShard(
        info=info,
        kind=_expect(value["kind"], str),
        file=_expect(value["file"], str),
        batches=_unpack_batches(_expect(value["batches"], str)),
    )


def _expect(value: JsonValue, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataInvalid("index holds a value of the wrong type", check="index")
    return value


def _pack_batches(batches: Sequence[Batch]) -> str:
    return to_base64(
        b"".join(_ENTRY.pack(batch.offset, batch.length, batch.rows) for batch in batches)
    )


def _unpack_batches(text: str) -> tuple[Batch, ...]:
    return tuple(
        Batch(offset=offset, length=length, rows=rows)
        for offset, length, rows in _ENTRY.iter_unpack(from_base64(text))
    )
