"""Sealed files and folders for tests, from fixed keys and a repeatable source of randomness."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.consortium.datasets import sign_dataset
from sealtrain.sealing.chunked import CHUNK_BYTES, HEADER_BYTES, ChunkCipher
from sealtrain.sealing.chunkreader import Ciphertext
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import INDEX_NAME, DatasetDescription, dataset_root
from sealtrain.sealing.file import FileContext, SealedFile, open_file, seal_file
from sealtrain.sealing.header import read_header_from
from sealtrain.sealing.index import Index
from sealtrain.sealing.opened_dataset import SealedDataset, read_index
from sealtrain.sealing.sealer import NewDataset, SealOptions, seal_dataset
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.sealing.trailer import read_trailer
from sealtrain.sealing.writer import PAYLOAD_CONTEXT, SealedWriter
from sealtrain.signing.dsse import Ed25519Signer

DATASET_ID = "d1" * 16
OWNER_ID = "0a" * 32
KEY = DataKey(bytes(range(32)))
OTHER_KEY = DataKey(bytes(range(1, 33)))
BINDING = RecipeBinding("a1" * 20, "b1" * 32, OWNER_ID)
CANARY = "canary-6f1e9c"


def repeatable(label: str = "") -> Callable[[int], bytes]:
    """A source of bytes that depends on the label and the order of calls only."""
    count = 0

    def random(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{label}/{count}".encode()).digest(size)

    return random


def content(size: int, label: str = "") -> bytes:
    """Bytes that repeat nowhere."""
    return hashlib.shake_256(f"content/{label}".encode()).digest(size)


def context(**changes: Any) -> FileContext:
    fields: dict[str, Any] = {"dataset_id": DATASET_ID, "owner_id": OWNER_ID, "name": "records"}
    return FileContext(**(fields | changes))


def stanza(mark: str = "5a", kind: str = "owner") -> Stanza:
    """A stanza of the right form that wraps nothing."""
    return Stanza(kind=kind, recipient=mark * 32, body=mark.encode() * 16)


def sealed(
    data: bytes,
    *,
    key: DataKey = KEY,
    stanzas: Sequence[Stanza] = (),
    salt: str = "",
    **changes: Any,
) -> bytes:
    """A sealed file as bytes."""
    target = io.BytesIO()
    seal_file(
        io.BytesIO(data),
        target,
        data_key=key,
        context=context(**changes),
        stanzas=stanzas,
        random=repeatable(salt),
    )
    return target.getvalue()


def opened(
    file: bytes, *, key: DataKey = KEY, root: str | None = None, expect: FileContext | None = None
) -> SealedFile:
    return open_file(io.BytesIO(file), key, root=root, context=expect)


def root_of(file: bytes) -> str:
    with opened(file) as reader:
        return reader.root


def forged(file: bytes, key: DataKey, edit: Callable[[bytearray], None]) -> bytes:
    """A sealed file with its content edited by someone who knows the data key.

    Every chunk authenticates, header and trailer are the genuine ones: only the group hashes under
    the root say that it is another content.
    """
    read_at = Ciphertext(io.BytesIO(file)).read_at
    header, keys = read_header_from(read_at, key)
    assert keys is not None
    shape = read_trailer(read_at, len(file), header, keys=keys, root=None).shape
    start = header.size
    cipher = ChunkCipher.opening(
        keys.payload.reveal(), file[start : start + HEADER_BYTES], PAYLOAD_CONTEXT + header.core
    )
    plain, out = bytearray(shape.plain_size), bytearray(file)

    def chunks() -> Iterator[tuple[int, memoryview, memoryview]]:
        for number in range(shape.chunks):
            offset, length = shape.sealed_span(number, number + 1)
            piece = memoryview(plain)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            yield number, piece, memoryview(out)[start + offset : start + offset + length]

    for number, piece, sealed in chunks():
        cipher.open(number, sealed, piece)
    edit(plain)
    assert len(plain) == shape.plain_size
    for number, piece, sealed in chunks():
        cipher.seal(number, piece, sealed)
    return bytes(out)


def json_lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True, slots=True)
class SealedFolder:
    """A sealed dataset with everything needed to open it."""

    folder: Path
    key: DataKey
    description: DatasetDescription

    def open(self) -> SealedDataset:
        return SealedDataset.open(self.folder, self.key, root=self.description.root)


def seal_with(
    source: Path | Sequence[Path], out: Path, settings: dict[str, Any]
) -> DatasetDescription:
    """``seal_dataset``, whose objects' fields are given by name."""

    def of(kind: type[Any]) -> Any:
        given = {field.name: settings.pop(field.name) for field in fields(kind)
                 if field.name in settings}  # fmt: skip
        return kind(**given)

    new, options = of(NewDataset), of(SealOptions)
    return seal_dataset(source, out, new, options, **settings)


def sealed_folder(
    source: Path | Sequence[Path], out: Path, *, salt: str = "folder", **options: Any
) -> SealedFolder:
    """Seal with a fixed key; the stanza is one that wraps nothing."""
    keys: list[DataKey] = []

    def stanzas(data_key: DataKey, dataset_id: str) -> Sequence[Stanza]:
        keys.append(data_key)
        return (stanza(), stanza("6b", "recipe"))

    settings: dict[str, Any] = {
        "name": "records",
        "owner_id": OWNER_ID,
        "owner_name": "hospital-a",
        "binding": BINDING,
        "stanzas": stanzas,
        "sign": lambda description: description.root.encode(),
        "random": repeatable(salt),
    }
    description = seal_with(source, out, settings | options)
    return SealedFolder(out, keys[0], description)


def with_index(made: SealedFolder, change: Callable[[Index], Index]) -> SealedFolder:
    """The dataset under another index that its owner sealed and signed."""
    index = change(read_index(made.folder, made.key, root=made.description.root))
    path = made.folder / INDEX_NAME
    path.unlink()
    with path.open("xb") as file:
        writer = SealedWriter(file, data_key=made.key, context=index.context("index", 0))
        with writer:
            writer.write(index.to_bytes())
    shards = [shard.info for shard in index.shards]
    root = dataset_root(index.dataset_id, writer.finish().root, shards)
    return replace(made, description=replace(made.description, root=root))


def signed(description: DatasetDescription) -> bytes:
    """``dataset.json`` as an owner signs it: give it to ``sealed_folder`` as ``sign``."""
    owner = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    return sign_dataset(description, owner, sealed_at="2026-01-02T03:04:05Z").to_bytes()


def all_rows(dataset: SealedDataset) -> list[dict[str, Any]]:
    return [
        row for number in range(dataset.num_batches) for row in dataset.batch(number).to_pylist()
    ]


def everything_below(folder: Path) -> bytes:
    """Every byte of every file under a folder, hidden ones too."""
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
