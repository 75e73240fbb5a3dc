"""WebDataset tar files as Arrow record batches: files with one key make one record.

A member's key is its path up to the first dot of its last part; the rest names column and type.
Where its owner says that keys have dots, it is the path up to the last one, and there are no
columns of rule 5.
Members of one record lie next to each other; a missing file of a record is null.

1. ``key.jpg``, ``.jpeg``, ``.png``, ``.webp``: column ``image``, binary, the file's bytes.
2. ``key.txt``: column ``text``, UTF-8.
3. ``key.cls``: column ``label``, int64 in decimal digits.
4. ``key.json``: an object whose fields are columns, as a line of JSON.
5. ``key.left.png``, ``key.caption.txt``: columns of the name before the suffix.

Two passes: the first settles columns and types over every record, the second converts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular import jsonl
from sealtrain.sealing.tabular.archive import Member, members, show_member
from sealtrain.sealing.tabular.media import (
    IMAGE_SUFFIXES,
    MAX_MEDIA_BYTES,
    SIGNATURE_BYTES,
    STEP_BYTES,
    check_image,
)

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_BYTES: Final = 16 << 20
_COLUMN_OF: Final = {".txt": "text", ".cls": "label"} | dict.fromkeys(IMAGE_SUFFIXES, "image")
_INT64: Final = range(-(1 << 63), 1 << 63)
Progress = Callable[[int], None]


@dataclass(slots=True)
class _Sample:
    """Members of one key.

    Attributes:
        number: Position of its first member.
        suffixes: Column → suffix of the file it comes from.
        values: Column → content, where it was read.
        fields: Line of JSON with further columns.
        size: Bytes of all its members.
    """

    number: int
    suffixes: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    fields: bytes | None = None
    size: int = 0


def infer_schema(path: Path, *, dotted: bool = False) -> pa.Schema:
    """Columns and types that fit every record of the archive: see ``jsontypes``.

    Args:
        path: The archive.
        dotted: Keys may have dots.

    Raises:
        RecordInvalid: The archive is damaged, a member is of an unknown kind or not of its name's
            format, or a record has one column twice.
        SchemaMismatch: Two records give one column different types.
        LimitExceeded: A member is too large.
    """
    import pyarrow as pa

    types = {".txt": pa.string(), ".cls": pa.int64()} | dict.fromkeys(IMAGE_SUFFIXES, pa.binary())
    kinds: dict[str, pa.DataType] = {}

    def lines() -> Iterator[bytes]:
        for sample in _samples(path, whole=False, dotted=dotted):
            for column, suffix in sample.suffixes.items():
                if kinds.setdefault(column, types[suffix]) != types[suffix]:
                    raise SchemaMismatch(
                        f"{path.name}: the record at member {sample.number} has column {column} "
                        "from another kind of file than records before",
                        check="schema",
                        column=column,
                        hint="use one kind of file for one column; of keys with dots, such as "
                        "scan.1.jpg: --format webdataset-dots",
                    )
            yield sample.fields or b"{}\n"

    fields = jsonl.infer_blocks(path, _join_lines(lines()))
    if twice := set(fields.names) & set(kinds):
        raise SchemaMismatch(
            f"{path.name}: a field of .json has the name of a column from files",
            check="schema",
            got=", ".join(sorted(twice)),
            hint="rename the field",
        )
    files = [pa.field(column, kind) for column, kind in sorted(kinds.items())]
    return pa.schema([*files, *fields])


def read_batches(
    path: Path, schema: pa.Schema, progress: Progress, *, dotted: bool = False
) -> Iterator[pa.RecordBatch]:
    """Convert the archive under ``schema``, about 4 MiB at a time. Raises as ``infer_schema``."""
    held: list[_Sample] = []
    held_bytes = first = 0
    for sample in _samples(path, whole=True, dotted=dotted):
        held.append(sample)
        held_bytes += sample.size
        if held_bytes >= STEP_BYTES:
            yield _batch(path, first, held, schema)
            progress(held_bytes)
            first += len(held)
            held, held_bytes = [], 0
    if held:
        yield _batch(path, first, held, schema)
        progress(held_bytes)


def _batch(path: Path, first: int, samples: list[_Sample], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from_files = {column for sample in samples for column in sample.values}
    fields = pa.schema([field for field in schema if field.name not in from_files])
    lines = b"".join(sample.fields or b"{}\n" for sample in samples)
    table = jsonl.parse_block(path, first, lines, fields) if fields.names else None
    columns = []
    for column in schema:
        if column.name in from_files:
            values = [sample.values.get(column.name) for sample in samples]
            columns.append(pa.array(values, column.type))
        elif table is not None:
            columns.append(table.column(column.name).combine_chunks())
    return pa.record_batch(columns, schema=schema)


def _samples(path: Path, *, whole: bool, dotted: bool) -> Iterator[_Sample]:
    """Records of the archive; files are read whole, or as far as their checks need."""
    key: str | None = None
    sample = _Sample(0)
    keys = bytearray()
    for member in members(path):
        try:
            this, column, suffix = _parts(path, member, dotted=dotted)
        except RecordInvalid as error:
            raise show_member(error, path, member.number) from None
        if this != key:
            if key is not None:
                yield sample
            key, sample = this, _Sample(member.number)
            keys += hashlib.blake2b(this.encode(), digest_size=16).digest()
        where = f"{path.name}: member {member.number}"
        try:
            _take(sample, member, column, suffix, where, whole=whole)
        except RecordInvalid as error:
            raise show_member(error, path, member.number) from None
    if key is not None:
        yield sample
    _refuse_repeated(path, keys)


def _parts(path: Path, member: Member, *, dotted: bool) -> tuple[str, str, str]:
    """Key, column and suffix; the column is empty for fields of JSON."""
    folder, _, last = member.name.rpartition("/")
    stem, dot, rest = last.rpartition(".") if dotted else last.partition(".")
    named, _, final = rest.rpartition(".")
    suffix = f".{final.lower()}"
    if dot and suffix == ".json" and not named:
        column = ""
    elif dot and suffix in _COLUMN_OF and len(named) <= 128:
        column = named or _COLUMN_OF[suffix]
    else:
        raise RecordInvalid(
            f"{path.name}: member {member.number} is of an unknown kind",
            check="archive",
            expected="a name like key.jpg, .png, .webp, .txt, .cls or .json",
            hint="leave other files out of the archive",
        )
    return f"{folder}/{stem}", column, suffix


def _take(
    sample: _Sample, member: Member, column: str, suffix: str, where: str, *, whole: bool
) -> None:
    if column in sample.suffixes or (not column and sample.fields is not None):
        raise RecordInvalid(
            f"{where} gives its record a column twice",
            check="archive",
            hint="write each key once, with one file for one column; of keys with dots, such as "
            "scan.1.jpg: --format webdataset-dots",
        )
    sample.size += member.size
    if suffix in IMAGE_SUFFIXES:
        sample.suffixes[column] = suffix
        check_image(suffix, member.read(SIGNATURE_BYTES), member.size, where)
        if whole:
            sample.values[column] = member.read(MAX_MEDIA_BYTES)
        return
    if member.size > MAX_TEXT_BYTES:
        raise LimitExceeded(
            f"{where} is too long", got=member.size, expected=f"at most {MAX_TEXT_BYTES}"
        )
    try:
        text = member.read(MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError:
        raise RecordInvalid(
            f"{where} is not UTF-8", check="record", hint="save it as UTF-8"
        ) from None
    if column:
        sample.suffixes[column] = suffix
        sample.values[column] = _number(text, where) if suffix == ".cls" else text
    else:
        sample.fields = _line(text, where)


def _number(text: str, where: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isascii() or not digits.removeprefix("-").isdigit():
        raise RecordInvalid(
            f"{where} does not hold a decimal number",
            check="record",
            hint="write whole numbers into .cls, and names of labels into .txt or .json",
        )
    if len(digits) > 20 or int(digits) not in _INT64:
        raise RecordInvalid(
            f"{where} holds a number beyond 64 bits", check="record", hint="write it as text: .txt"
        )
    return int(digits)


def _line(text: str, where: str) -> bytes:
    try:
        good = isinstance(parse_foreign(text.encode()), dict)
    except ValueError:
        good = False
    if not good:
        raise RecordInvalid(
            f"{where} is not a JSON object",
            check="record",
            hint='write one object, such as {"label": "1"}',
        ) from None
    # Outside of strings, where JSON forbids them, line breaks mean nothing.
    return text.replace("\r", " ").replace("\n", " ").encode() + b"\n"


def _join_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines, as ``jsonl`` takes them."""
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= jsonl.BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _refuse_repeated(path: Path, keys: bytearray) -> None:
    """Check that no key comes back after another one: half of its record would be missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(keys) // 16
    digests = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(keys)])
    if pc.count_distinct(digests).as_py() != count:
        seen: dict[bytes, int] = {}
        for number in range(1, count + 1):
            first = seen.setdefault(bytes(keys[16 * number - 16 : 16 * number]), number)
            if first != number:
                break
        raise RecordInvalid(
            f"{path.name}: record {number} has the key of record {first}, and others lie between",
            check="archive",
            hint="write the files of a record next to each other, and every key once",
        )
