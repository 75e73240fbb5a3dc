"""A folder of images as Arrow record batches, laid out as Hugging Face's ``imagefolder`` is.

1. ``folder/LABEL/name.png``: columns ``image`` (binary, the file's bytes) and ``label`` (string,
   the sub-folder). Images in the folder itself give ``image`` alone. There is no mixture.
2. With ``metadata.jsonl`` or ``metadata.csv`` in the folder: ``image`` and every column of that
   file but ``file_name``, the path of an image in the folder. Sub-folders are then not labels. The
   metadata names every image once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import FormatUnknown
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular import delimited, jsonl
from sealtrain.sealing.tabular.media import (
    IMAGE_SUFFIXES,
    SIGNATURE_BYTES,
    check_image,
    group_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_NAMES = ("metadata.jsonl", "metadata.csv")
_FILE_NAME = "file_name"
Progress = Callable[[int], None]


def open_folder(
    folder: Path, files: Sequence[Path], progress: Progress
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and records of a folder of images.

    Args:
        folder: The folder of images.
        files: Every file below it, sorted.
        progress: Called with source bytes as they are converted.

    Raises:
        FormatUnknown: A file is neither an image nor the metadata.
        SchemaMismatch: Images lie in folders and beside them, or the metadata has no ``file_name``.
        RecordInvalid: An image is not of its name's format, or the metadata does not name it once.
        LimitExceeded: An image is larger than 256 MiB.
    """
    described = [path for path in files if path.parent == folder and path.name in METADATA_NAMES]
    images = [path for path in files if path not in described]
    for path in images:
        where = path.relative_to(folder).as_posix()
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            raise FormatUnknown(
                f"{where} is not an image",
                got=path.suffix or "no suffix",
                expected=", ".join(IMAGE_SUFFIXES),
                hint="move other files out of the folder",
            )
        _check(path, where)
    if len(described) > 1:
        raise SchemaMismatch("the folder has metadata.jsonl and metadata.csv", check="schema")
    if described:
        return _read_described(folder, images, described[0], progress)
    return _read_labelled(folder, images, progress)


def _read_labelled(
    folder: Path, images: Sequence[Path], progress: Progress
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow as pa

    depths = {len(path.relative_to(folder).parts) for path in images}
    if depths - {1, 2} or len(depths) > 1:
        raise SchemaMismatch(
            "the images do not all lie in one sub-folder for each label",
            check="schema",
            expected="folder/LABEL/name.png for all, or folder/name.png for all",
            hint="move the images into label folders, or describe them in metadata.jsonl",
        )
    labelled = depths == {2}
    names = ["image", "label"] if labelled else ["image"]
    kinds = {"image": pa.binary(), "label": pa.string()}
    schema = pa.schema([(name, kinds[name]) for name in names])

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for path in images:
            data = _content(path, folder)
            progress(len(data))
            yield len(data), {"image": data, "label": path.parent.name}

    return schema, group_rows(rows(), schema)


def _read_described(
    folder: Path, images: Sequence[Path], metadata: Path, progress: Progress
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow as pa

    reader = jsonl if metadata.suffix == ".jsonl" else delimited
    written = reader.infer_schema(metadata)
    if _FILE_NAME not in written.names or "image" in written.names:
        raise SchemaMismatch(
            f"{metadata.name} needs a column {_FILE_NAME} and none called image", check="schema"
        )
    by_name = {path.relative_to(folder).as_posix(): path for path in images}
    others = [field for field in written if field.name != _FILE_NAME]
    schema = pa.schema([pa.field("image", pa.binary()), *others])

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        left, number = dict(by_name), 0
        for batch in reader.read_batches(metadata, written, progress):
            for values in batch.to_pylist():
                number += 1
                path = left.pop(str(values.pop(_FILE_NAME)), None)
                if path is None:
                    raise RecordInvalid(
                        f"{metadata.name}: record {number} names no image, or a repeated image",
                        check="record",
                        expected="the path of an image in the folder, written as file_name",
                    )
                data = _content(path, folder)
                progress(len(data))
                yield len(data), {"image": data, **values}
        if left:
            raise RecordInvalid(
                f"{metadata.name} does not name every image of the folder",
                check="record",
                got=f"{len(left)} images without a record",
                hint="name them all, or move the others away",
            )

    return schema, group_rows(rows(), schema)


def _check(path: Path, where: str) -> None:
    with path.open("rb") as file:
        start = file.read(SIGNATURE_BYTES)
    check_image(path.suffix.lower(), start, path.stat().st_size, where)


def _content(path: Path, folder: Path) -> bytes:
    data = path.read_bytes()
    where = path.relative_to(folder).as_posix()
    check_image(path.suffix.lower(), data[:SIGNATURE_BYTES], len(data), where)
    return data
