"""Seal and open single files (spec/sealed-file.md).

``seal_file`` streams any source into a sealed file; ``open_file`` returns a seekable, read-only
file object that pyarrow, tarfile or safetensors read like any other. The target appears whole or
not at all and plaintext is never written anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sealtrain.base.encoding import from_hex
from sealtrain.base.files import atomic_writer
from sealtrain.base.secret import Random
from sealtrain.sealing.chunkreader import Ciphertext
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.hashtree import GROUP_BYTES, GROUP_CHUNKS, Suite, group_hash
from sealtrain.sealing.header import FileContext, Header, read_header_from
from sealtrain.sealing.places import Ranges
from sealtrain.sealing.reader import SealedFile, open_sealed
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.trailer import read_trailer
from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

__all__ = [
    "FileContext",
    "Header",
    "SealedFile",
    "SealedFileInfo",
    "SealedWriter",
    "Suite",
    "open_file",
    "read_header",
    "root_of",
    "seal_file",
    "verify_ciphertext",
]

BLOCK_BYTES = 1 << 20
Progress = Callable[[int], None]


def seal_file(
    source: BinaryIO,
    target: Path | BinaryIO,
    *,
    data_key: DataKey,
    context: FileContext,
    stanzas: Sequence[Stanza] = (),
    padding: str | None = None,
    random: Random = os.urandom,
    progress: Progress | None = None,
) -> SealedFileInfo:
    """Seal everything ``source`` yields.

    Args:
        source: Read from its present position to its end.
        target: Path of a new file, or a file object that gets the bytes.
        data_key: Key of the dataset or store.
        context: Which file this is.
        stanzas: Wrapped copies of the data key.
        padding: Overrides the context's policy.
        random: Source of the salt.
        progress: Called with the content bytes sealed since the last call.

    Raises:
        AlreadyExists: The target path exists.
        DataInvalid, LimitExceeded, UsageError: Context, stanzas or policy are not acceptable.
    """
    if isinstance(target, Path):
        with atomic_writer(target) as file:
            return seal_file(
                source,
                file,
                data_key=data_key,
                context=context,
                stanzas=stanzas,
                padding=padding,
                random=random,
                progress=progress,
            )
    if padding is not None:
        context = replace(context, padding=padding)
    writer = SealedWriter(
        target, data_key=data_key, context=context, stanzas=stanzas, random=random
    )
    with writer:
        while block := source.read(BLOCK_BYTES):
            writer.write(block)
            if progress:
                progress(len(block))
    return writer.finish()


def open_file(
    source: Path | BinaryIO | Ranges,
    data_key: DataKey,
    *,
    context: FileContext | None = None,
    root: str | None = None,
    keep_open: bool = True,
) -> SealedFile:
    """Open a sealed file.

    Args:
        source: Path, seekable binary file, or a file elsewhere.
        data_key: Key of its dataset or store.
        context: What the file must be; ``None`` takes what it says.
        root: Signed file root (64 hex digits), checked group by group on every read; ``None``
            relies on authentication tags alone: they stop no rollback to an older sealing, and
            nothing that a holder of the data key does.
        keep_open: Hold the path's descriptor between reads.

    Raises:
        NotSealed, LimitExceeded, SealRefused: The file does not open.
    """
    expected = None if root is None else from_hex(root, length=32)
    ciphertext = Ciphertext(source, keep_open=keep_open)
    try:
        return open_sealed(ciphertext, data_key, context=context, root=expected)
    except BaseException:
        ciphertext.close()
        raise


def read_header(source: Path | BinaryIO | Ranges) -> Header:
    """Read context and stanzas without a key: an unverified claim, bounded in size.

    Raises:
        NotSealed, FileTruncated, LimitExceeded, HeaderDamaged: There is no well-formed header.
    """
    ciphertext = Ciphertext(source)
    try:
        return read_header_from(ciphertext.read_at)[0]
    finally:
        ciphertext.close()


def root_of(source: Path | BinaryIO | Ranges) -> str:
    """File root as the trailer's hashes give it, without a key and without reading the payload.

    Raises:
        NotSealed, FileTruncated, LimitExceeded, HeaderDamaged: Not a well-formed sealed file.
    """
    ciphertext = Ciphertext(source)
    try:
        header, _ = read_header_from(ciphertext.read_at)
        trailer = read_trailer(ciphertext.read_at, ciphertext.size, header, keys=None, root=None)
        return trailer.root.hex()
    finally:
        ciphertext.close()


def verify_ciphertext(source: Path | BinaryIO | Ranges, *, root: str | None = None) -> str:
    """Hash the whole ciphertext without a key and return the file root.

    Args:
        source: Path, seekable binary file, or a file elsewhere.
        root: Root it must have, or ``None``.

    Raises:
        RootMismatch: A group differs from its hash, or the root is another.
        NotSealed, FileTruncated, LimitExceeded, HeaderDamaged: Not a well-formed sealed file.
    """
    expected = None if root is None else from_hex(root, length=32)
    ciphertext = Ciphertext(source)
    try:
        header, _ = read_header_from(ciphertext.read_at)
        trailer = read_trailer(
            ciphertext.read_at, ciphertext.size, header, keys=None, root=expected
        )
        group = memoryview(bytearray(GROUP_BYTES))
        for number, leaf in enumerate(trailer.leaves):
            first = number * GROUP_CHUNKS
            offset, length = trailer.shape.sealed_span(first, first + GROUP_CHUNKS)
            ciphertext.read_exactly(header.size + offset, group[:length])
            if group_hash(header.context.suite, group[:length]) != leaf:
                raise RootMismatch(f"ciphertext group {number} was altered", check="group hash")
        return trailer.root.hex()
    finally:
        ciphertext.close()
