"""Header of a sealed file: what it is (core), who may open it (stanzas), and the proof of both.

::

    "SEALTRN" 0x01 | u32 core length | u32 stanza length | core | stanzas | key check 32 | MAC 32

The core is canonical JSON and enters the payload's key and C2SP context, so the payload opens under
no other core. The MAC, under a key derived from the data key and the core, covers every byte before
it: without the data key no stanza is added, dropped or reordered unseen. Stanzas enter nothing
else, which is why ``rewrap`` leaves the payload alone.

Checks, in order:
 1. The file starts with the magic (``NotSealed``) and holds its whole header (``FileTruncated``).
 2. Core and stanzas are within their limits (``LimitExceeded``).
 3. The key check belongs to this data key (``WrongKey``).
 4. The MAC verifies (``HeaderDamaged``).
 5. Core and stanzas parse and are canonical (``HeaderDamaged``).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.errors import DataInvalid, LimitExceeded, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import FileTruncated, HeaderDamaged, NotSealed, WrongContext, WrongKey
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.padding import check_policy
from sealtrain.sealing.stanza import Stanza, check_stanzas, parse_stanzas

MAGIC: Final = b"SEALTRN\x01"
SUFFIX: Final = ".sealed"
"""Ends the name of a sealed file."""
PREFIX_BYTES: Final = 16
MAX_CORE_BYTES: Final = 4096
MAX_STANZA_BYTES: Final = 256 << 10
PROOF_BYTES: Final = 64
KINDS: Final = ("arrow", "raw", "index", "commitments", "blob", "model")

BindingValue = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """Which file this is. Authenticated; stored in the clear in the header.

    Attributes:
        dataset_id: 32 hex digits, or empty outside a dataset.
        owner_id: 64 hex digits, or empty outside a dataset.
        name: Name of the dataset, or of the blob in its store.
        shard: Position in the dataset, 0 … 2**31 - 1.
        schema_digest: 64 hex digits naming columns and types, or empty.
        padding: Padding policy of the payload.
        kind: ``arrow``, ``raw``, ``index``, ``commitments``, ``blob`` or ``model``.
        suite: Hash of the tree.
        binding: More names and values the file is bound to (run id, step, counter).
    """

    dataset_id: str
    owner_id: str
    name: str
    shard: int = 0
    schema_digest: str = ""
    padding: str = "none"
    kind: str = "raw"
    suite: Suite = Suite.BLAKE3
    binding: Mapping[str, BindingValue] = field(default_factory=dict)

    def to_core(self) -> bytes:
        """Canonical JSON of this context.

        Raises:
            DataInvalid: A value is outside its range or of another type.
            UsageError: The padding policy is unknown.
            LimitExceeded: Longer than 4096 bytes.
        """
        check_policy(self.padding)
        texts = (self.dataset_id, self.owner_id, self.name, self.schema_digest)
        if not all(isinstance(text, str) for text in texts) or self.kind not in KINDS:
            raise DataInvalid("file context holds a value of the wrong type")
        if isinstance(self.shard, bool) or not 0 <= self.shard < 1 << 31:
            raise DataInvalid("shard number is out of range", got=self.shard)
        for key, value in self.binding.items():
            if not isinstance(key, str) or isinstance(value, bool):
                raise DataInvalid("file context is bound to a value that is no text or integer")
            if not isinstance(value, str | int):
                raise DataInvalid("file context is bound to a value that is no text or integer")
        core = canonical_json(
            {item.name: getattr(self, item.name) for item in fields(self)}
            | {"suite": int(Suite.of(self.suite)), "binding": dict(self.binding)}
        )
        if len(core) > MAX_CORE_BYTES:
            raise LimitExceeded(
                "file context is too long", got=len(core), expected=f"at most {MAX_CORE_BYTES}"
            )
        return core

    @classmethod
    def from_core(cls, core: bytes) -> FileContext:
        """Parse a header's core.

        Raises:
            HeaderDamaged: Not the canonical JSON of a context.
        """
        try:
            return _parse_core(core)
        except (DataInvalid, UsageError, TypeError) as error:
            raise HeaderDamaged("header core is malformed", check="header core") from error

    def require(self, actual: FileContext) -> None:
        """Refuse a file that is genuine but another one.

        Raises:
            WrongContext: ``actual`` differs; the first differing field is named.
        """
        for item in fields(self):
            got, expected = getattr(actual, item.name), getattr(self, item.name)
            if got != expected:
                raise WrongContext(
                    f"sealed file is another one: its {item.name.replace('_', ' ')} differs",
                    check="file context",
                    got=got,
                    expected=expected,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A parsed header. Read without a key it is a claim only.

    Attributes:
        context: Which file this is.
        stanzas: Wrapped copies of the data key.
        core: The bytes of the context as they stand in the file.
        size: Bytes of the header; the payload starts there.
    """

    context: FileContext
    stanzas: tuple[Stanza, ...]
    core: bytes
    size: int

    @property
    def dataset_id(self) -> str:
        """Dataset the file belongs to."""
        return self.context.dataset_id


class FileKeys:
    """Keys of one file, derived from the data key and the file's core."""

    __slots__ = ("check", "header", "payload", "trailer")

    def __init__(self, data_key: DataKey, core: bytes) -> None:
        """Derive the keys.

        Args:
            data_key: Key of the dataset or store.
            core: Canonical JSON of the file's context.
        """
        file_key = data_key.derive("sealed-file", core.decode())
        self.check = data_key.derive("key-check").reveal()
        self.header = file_key.derive("sealed-file-header")
        self.payload = file_key.derive("sealed-file-payload")
        self.trailer = file_key.derive("sealed-file-trailer")


def encode_header(core: bytes, stanzas: Sequence[Stanza], keys: FileKeys) -> bytes:
    """Bytes of a header.

    Args:
        core: From ``FileContext.to_core``.
        stanzas: At most 64, one for each recipient.
        keys: Derived from the data key and the same core.

    Raises:
        LimitExceeded: Too many or too long stanzas.
        HeaderDamaged: One recipient twice.
    """
    wrapped = canonical_json([stanza.to_dict() for stanza in check_stanzas(stanzas)])
    if len(wrapped) > MAX_STANZA_BYTES:
        raise LimitExceeded(
            "stanzas are too long", got=len(wrapped), expected=f"at most {MAX_STANZA_BYTES}"
        )
    lengths = len(core).to_bytes(4, "big") + len(wrapped).to_bytes(4, "big")
    body = MAGIC + lengths + core + wrapped + keys.check
    return body + keys.header.mac(body)


def read_header_from(
    read_at: Callable[[int, int], bytes], data_key: DataKey | None = None
) -> tuple[Header, FileKeys | None]:
    """Read a header; with a key, verify it before parsing anything inside it.

    Args:
        read_at: Returns up to that many bytes at an offset of the file.
        data_key: Key of the file. Without it the result is an unverified claim.

    Returns:
        The header and, with a key, the file's keys.

    Raises:
        NotSealed, FileTruncated, LimitExceeded, WrongKey, HeaderDamaged: See the checks above.
    """
    prefix = read_at(0, PREFIX_BYTES)
    if prefix[: len(MAGIC)] != MAGIC[: len(prefix)] or not prefix:
        raise NotSealed(
            "not a sealed file of a version this release knows",
            check="magic",
            hint="give a file or folder made by `sealtrain seal`",
        )
    if len(prefix) < PREFIX_BYTES:
        raise FileTruncated("file ends inside its header", check="header length")
    core_size = int.from_bytes(prefix[8:12], "big")
    stanza_size = int.from_bytes(prefix[12:16], "big")
    if core_size > MAX_CORE_BYTES or stanza_size > MAX_STANZA_BYTES:
        raise LimitExceeded(
            "header is too long",
            check="header length",
            got=f"{core_size} + {stanza_size} bytes",
            expected=f"at most {MAX_CORE_BYTES} + {MAX_STANZA_BYTES}",
        )
    size = PREFIX_BYTES + core_size + stanza_size + PROOF_BYTES
    rest = read_at(PREFIX_BYTES, size - PREFIX_BYTES)
    if len(rest) < size - PREFIX_BYTES:
        raise FileTruncated("file ends inside its header", check="header length")
    core = rest[:core_size]
    keys = _verify(prefix + rest, core, data_key) if data_key else None
    stanzas = _parse_stanzas(rest[core_size : core_size + stanza_size])
    header = Header(context=FileContext.from_core(core), stanzas=stanzas, core=core, size=size)
    return header, keys


def _parse_core(core: bytes) -> FileContext:
    value = parse_canonical(core, max_bytes=MAX_CORE_BYTES)
    if not isinstance(value, dict) or set(value) != {item.name for item in fields(FileContext)}:
        raise DataInvalid("core lacks a field or has one too many")
    if not isinstance(value["binding"], dict) or not isinstance(value["shard"], int):
        raise DataInvalid("core holds a value of the wrong type")
    context = replace(FileContext(**value), suite=Suite.of(value["suite"]))
    if context.to_core() != core:
        raise DataInvalid("core is not canonical")
    return context


def _verify(header: bytes, core: bytes, data_key: DataKey) -> FileKeys:
    try:
        keys = FileKeys(data_key, core)
    except UnicodeDecodeError as error:
        raise HeaderDamaged("header core is malformed", check="header core") from error
    if not hmac.compare_digest(keys.check, header[-64:-32]):
        raise WrongKey(
            "file was sealed under another data key",
            check="key check",
            hint="use the key of this dataset; its stanzas say who holds it",
        )
    if not hmac.compare_digest(keys.header.mac(header[:-32]), header[-32:]):
        raise HeaderDamaged(
            "header does not authenticate",
            check="header MAC",
            hint="the header was altered; fetch the file again from its owner",
        )
    return keys


def _parse_stanzas(data: bytes) -> tuple[Stanza, ...]:
    try:
        value: JsonValue = parse_canonical(data, max_bytes=MAX_STANZA_BYTES)
    except LimitExceeded:
        raise
    except DataInvalid as error:
        raise HeaderDamaged("stanzas are malformed", check="stanza") from error
    return parse_stanzas(value)
