"""What a sealed dataset is, as its owner will sign it, and the root that names every byte of it.

A dataset is a folder: ``index.sealed`` (its header carries the stanzas of the data key, its payload
says what lies where), ``shard-00000.sealed`` …, optionally ``commitments.sealed``, and
``dataset.json``, the owner's signature over the description and so over the root.

::

    leaf_i = SHA-256(0x00 ‖ canonical JSON {"name", "root", "size"} of shard i)
    root   = SHA-256(0x02 ‖ "sealtrain/dataset-root/v1" ‖ dataset id 16 ‖ index root 32
                     ‖ u32 number of shards ‖ top of the RFC 9162 tree over the leaves, by SHA-256)

The root is SHA-256 in every suite, so that a verifier of manifests needs no other hash. Stanzas
and ``dataset.json`` are not under it: the first may be rewrapped, the second signs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealtrain.base.canonical import canonical_json
from sealtrain.sealing.hashtree import LEAF, ROOT, Suite, suite_hash, tree_top
from sealtrain.sealing.stanza import RecipeBinding

INDEX_NAME: Final = "index.sealed"
MANIFEST_NAME: Final = "dataset.json"


def shard_name(number: int) -> str:
    """File name of a shard, counted from 0."""
    return f"shard-{number:05d}.sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One sealed file of a dataset.

    Attributes:
        name: File name in the folder.
        size: Bytes of the sealed file.
        root: File root, 64 hex digits.
    """

    name: str
    size: int
    root: str

    def to_dict(self) -> dict[str, str | int]:
        """JSON form."""
        return {"name": self.name, "size": self.size, "root": self.root}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDescription:
    """Facts about a sealed dataset that its owner signs.

    Attributes:
        dataset_id: 32 hex digits, random.
        name: Name the owner gave it.
        owner_id: 64 hex digits.
        owner_name: The owner's name.
        root: Dataset root, 64 hex digits.
        shards: Sealed files under the root, in order, the index excepted.
        records: Number of records, ``None`` for raw files.
        tokens: Number of tokens, where they were counted.
        schema_digest: 64 hex digits naming columns and types.
        binding: The recipe it was sealed for.
    """

    dataset_id: str
    name: str
    owner_id: str
    owner_name: str
    root: str
    shards: tuple[ShardInfo, ...]
    records: int | None
    tokens: int | None
    schema_digest: str
    binding: RecipeBinding


def dataset_root(dataset_id: str, index_root: str, shards: Sequence[ShardInfo]) -> str:
    """Root of a dataset.

    Args:
        dataset_id: 32 hex digits.
        index_root: File root of the index, 64 hex digits.
        shards: Sealed files in order, at least one.

    Returns:
        64 hex digits.
    """
    hasher = suite_hash(Suite.SHA256)
    leaves = [hasher(LEAF + canonical_json(shard.to_dict())) for shard in shards]
    return hashlib.sha256(
        ROOT
        + b"sealtrain/dataset-root/v1"
        + bytes.fromhex(dataset_id)
        + bytes.fromhex(index_root)
        + len(shards).to_bytes(4, "big")
        + tree_top(hasher, leaves)
    ).hexdigest()
