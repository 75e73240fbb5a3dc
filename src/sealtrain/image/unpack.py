"""The files of an image in a folder, as a container's root (spec/images.md §9).

Because a layer can be written in one way only, the folder proves itself: its files give the tar of
each layer again, whose SHA-256 the image's config names. A later start needs no layer of the image.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from pydantic import Field

from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import open_regular, read_regular
from sealtrain.base.models import StrictModel, load_json
from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.image.layer import LayerEntry, layer_error, write_layer
from sealtrain.image.layout import Described, Progress, describe_image, read_image

_ROOT: Final = "root"
_NAMES: Final = "layers.json"
_MAX_NAMES_BYTES: Final = 64 << 20
_MAX_NAMES: Final = 200_000


class _Names(StrictModel):
    """Which layer an entry is of; a lie here gives another tar."""

    layers: Annotated[tuple[tuple[str, ...], ...], Field(max_length=16)]


def unpack_image(
    layout: Path, digest: str, folder: Path, *, progress: Progress = lambda _: None
) -> tuple[Path, Described]:
    """The root folder of an image, every byte of which has been compared with its digest.

    Args:
        layout: OCI layout of the image, a folder or a tar.
        digest: That the image must have, ``sha256:`` and 64 hex digits.
        folder: Where it was unpacked, or will be.
        progress: Called with the number of bytes that were read of layers.

    Raises:
        DataInvalid: There is no OCI layout.
        ImageRefused: It is another image, breaks the form of images, or what was unpacked of it has
            been changed.
    """
    said = describe_image(layout)
    if said.digest != digest:
        raise layer_error(
            "the layout is of another image than the document names",
            check="digest",
            got=said.digest,
            expected=digest,
        )
    with _one_at_a_time(folder.parent):
        if not folder.exists():
            _unpack(layout, said, folder, progress)
    root = folder / _ROOT
    _require_same(root, _names(folder), said)
    return root, said


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Hold a lock on a folder: of two first starts, the second finds what the first unpacked."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unpack(layout: Path, said: Described, folder: Path, progress: Progress) -> None:
    """Fill a hidden folder beside ``folder``, and rename it once every digest was right.

    A hidden folder that is there was left by a start that was killed: its lock is free.
    """
    filling = folder.with_name(f".{folder.name}.filling")
    shutil.rmtree(filling, ignore_errors=True)
    root = filling / _ROOT
    root.mkdir(parents=True)
    root.chmod(0o755)
    with _Files(root) as files:
        image = read_image(layout, lambda _: False, into=files.begin, progress=progress)
    if image.digest != said.digest:
        raise layer_error("the layout changed meanwhile", check="digest", got=image.digest)
    # Links come last: while files are written, no link can lead out of the folder.
    for entry in image.entries.values():
        if entry.kind == "link":
            (root / entry.name).symlink_to(entry.target)
    (filling / _NAMES).write_bytes(
        canonical_json({"layers": [list(layer) for layer in image.layers]})
    )
    filling.rename(folder)


class _Files:
    """Writes folders and files below a root, one open at a time. Use as a context."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: BinaryIO | None = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def begin(self, entry: LayerEntry) -> BinaryIO | None:
        """Make a folder, or a file that gets its bytes."""
        self._close()
        place = self._root / entry.name
        if entry.kind == "folder":
            place.mkdir()
            place.chmod(entry.mode)
        elif entry.kind == "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._open = os.fdopen(os.open(place, flags, entry.mode), "wb")
            os.fchmod(self._open.fileno(), entry.mode)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _names(folder: Path) -> tuple[tuple[str, ...], ...]:
    try:
        data = read_regular(folder / _NAMES, _MAX_NAMES_BYTES)
        return load_json(
            _Names, data, ImageRefused, _NAMES,
            max_bytes=_MAX_NAMES_BYTES, max_values=2 * _MAX_NAMES,
        ).layers  # fmt: skip
    except (DataInvalid, ImageRefused) as error:
        raise _refusal_of_change(folder, error.message) from error


def _require_same(root: Path, layers: tuple[tuple[str, ...], ...], said: Described) -> None:
    entries = _entries(root)
    named = [name for names in layers for name in names]
    if (
        len(layers) != len(said.diff_ids)
        or len(named) != len(entries)
        or set(named) != entries.keys()
    ):
        odd = sorted(entries.keys() ^ set(named))
        raise _refusal_of_change(root.parent, odd[0][:200] if odd else "layers.json")

    def open_entry(entry: LayerEntry) -> BinaryIO:
        return os.fdopen(open_regular(root / entry.name), "rb")

    for number, (names, diff_id) in enumerate(zip(layers, said.diff_ids, strict=True), 1):
        try:
            got = write_layer((entries[name] for name in names), open_entry, None)
        except (ImageRefused, DataInvalid, ValueError) as error:
            raise _refusal_of_change(root.parent, f"layer {number}") from error
        if got != diff_id:
            raise _refusal_of_change(root.parent, f"layer {number}", got=got, expected=diff_id)


def _entries(root: Path) -> dict[str, LayerEntry]:
    """What lies below a root, without digests of its files."""
    found: dict[str, LayerEntry] = {}
    pending = [""]
    while pending:
        above = pending.pop()
        with os.scandir(root / above) as there:
            for item in there:
                name = f"{above}{item.name}"
                status = item.stat(follow_symlinks=False)
                entry = LayerEntry(name=name, kind="file", mode=stat.S_IMODE(status.st_mode))
                if item.is_symlink():
                    target = Path(item.path).readlink()
                    entry = replace(entry, kind="link", mode=0o777, target=str(target))
                elif item.is_dir():
                    entry = replace(entry, kind="folder")
                    pending.append(f"{name}/")
                elif item.is_file():
                    entry = replace(entry, size=status.st_size)
                else:
                    raise _refusal_of_change(root.parent, name[:200])
                found[name] = entry
    return found


def _refusal_of_change(
    folder: Path, what: str, *, got: object = None, expected: object = None
) -> ImageRefused:
    return ImageRefused(
        f"what was unpacked of the image has been changed: {what}",
        check="root",
        got=got,
        expected=expected,
        hint=f"delete {folder}: it is made anew from the image",
    )
