"""Files of records as they lie on an owner's disk: their format by name, opened and unpacked.

A text format may be packed with gzip (``.csv.gz``); Parquet and Arrow compress by themselves.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from sealtrain.sealing.errors import RecordInvalid

_PACKED: Final = ".gz"
_TEXT: Final = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
_SHEET: Final = "a spreadsheet", "save each sheet as CSV (UTF-8), and seal the CSV"
_PACK: Final = "an archive or a compressed file", "unpack it, or pack text with gzip (.csv.gz)"
_STATISTICS: Final = "a file of a statistics program", "export it as CSV or Parquet"
_PICKLE: Final = "a Python file that can carry code", "write the records as Parquet or JSON lines"
_DATABASE: Final = "a database", "export the table as CSV or Parquet"
_SYSTEM: Final = ("thumbs.db", "desktop.ini")
_KINDS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), _SHEET),
    **dict.fromkeys((".gz", ".zip", ".7z", ".rar", ".bz2", ".xz", ".zst", ".tgz"), _PACK),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".rdata", ".rds"), _STATISTICS),
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".pt", ".npy", ".npz"), _PICKLE),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".mdb", ".accdb"), _DATABASE),
    ".txt": ("plain text", 'write one JSON object a line (.jsonl), such as {"text": …}'),
    ".tar": ("an archive", "seal it with --format webdataset, or unpack it"),
    ".bin": ("a binary file", "seal token shards with --format tokens"),
}


def format_of(path: Path) -> str:
    """The suffix that names a file's format, lower case: ``.csv`` of ``a.CSV`` and ``a.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[1] == _PACKED and suffixes[0] in _TEXT:
        return suffixes[0]
    return suffixes[-1] if suffixes else ""


def unreadable(path: Path) -> tuple[str, str] | None:
    """What a file is that holds no records we read, and what to do; ``None`` for unknown ones."""
    if path.name.startswith(".") or path.name.lower() in _SYSTEM:
        return "a file of a desktop, and no records", "remove it from the folder"
    return _KINDS.get(format_of(path))


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where its name says that it is packed.

    Raises:
        RecordInvalid: It is damaged, or not packed as its name says.
    """
    if not is_packed(path):
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            # Read ahead: single bytes out of a packed file are slow.
            yield cast("BinaryIO", io.BufferedReader(packed, 1 << 20))
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise refuse_damaged(path) from None


def is_packed(path: Path) -> bool:
    """Whether a file's name says that it is packed."""
    return path.suffix.lower() == _PACKED


def refuse_damaged(path: Path) -> RecordInvalid:
    """The refusal of a packed file that does not unpack."""
    return RecordInvalid(
        f"{path.name} is not a whole gzip file",
        check="format",
        hint="pack it again: gzip -k FILE",
    )
