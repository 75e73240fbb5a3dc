"""Common to folders and archives of images: which files are images, and batches that hold them.

The sealer neither decodes nor changes an image: the column holds the bytes of the file. Its first
bytes must be those of the format in its name, so that the owner finds a damaged export before the
guest does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS: Final = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WebP"}
IMAGE_SUFFIXES: Final = tuple(_KINDS)
MAX_MEDIA_BYTES: Final = 256 << 20
"""Largest file that becomes one value."""
SIGNATURE_BYTES: Final = 12
STEP_BYTES: Final = 4 << 20


def check_image(suffix: str, start: bytes, size: int, where: str) -> None:
    """Check that a file begins like an image of its name's format.

    Args:
        suffix: One of ``IMAGE_SUFFIXES``.
        start: Its first ``SIGNATURE_BYTES`` bytes, fewer where it is shorter.
        size: Bytes of the file.
        where: The file, for the message.

    Raises:
        RecordInvalid: The file does not begin like that.
        LimitExceeded: The file is larger than ``MAX_MEDIA_BYTES``.
    """
    if size > MAX_MEDIA_BYTES:
        raise LimitExceeded(
            f"{where} is too large for one record", got=size, expected=MAX_MEDIA_BYTES
        )
    kind = _KINDS[suffix]
    if image_kind(start) != kind:
        raise RecordInvalid(
            f"{where} is not a {kind} image",
            check="image",
            hint="check that it is complete, not encrypted, and has the right suffix",
        )


def image_kind(start: bytes) -> str | None:
    """What a file is that begins like this: ``JPEG``, ``PNG`` or ``WebP``, else ``None``.

    Args:
        start: Its first ``SIGNATURE_BYTES`` bytes, fewer where it is shorter.
    """
    if start.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WebP" if start.startswith(b"RIFF") and start[8:12] == b"WEBP" else None


def group_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Record batches of about 4 MiB.

    Args:
        rows: Bytes a row holds, and its values by column; a missing value is null.
        schema: Columns and types.
    """
    import pyarrow as pa

    held: list[dict[str, Any]] = []
    held_bytes = 0
    for size, row in rows:
        held.append(row)
        held_bytes += size
        if held_bytes >= STEP_BYTES:
            yield pa.RecordBatch.from_pylist(held, schema=schema)
            held, held_bytes = [], 0
    if held:
        yield pa.RecordBatch.from_pylist(held, schema=schema)
