"""OCI image layouts: one image in a folder or a tar, read strictly (spec/images.md §1 and §2).

Whatever a blob claims to be, its digest is computed again over the bytes that were read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, cast

from pydantic import Field, StringConstraints

from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import open_regular
from sealtrain.base.models import StrictModel, load_json
from sealtrain.base.tarheaders import PLAIN, content, headers
from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.image.layer import LayerEntry, layer_error, read_layer

INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
TITLE: Final = "org.opencontainers.image.title"

_MAX_DOCUMENT_BYTES: Final = 1 << 20
_MAX_ENTRIES: Final = 200_000
_MAX_BYTES: Final = 64 << 30
_MAX_KEPT_BYTES: Final = 256 << 20
_MAX_MEMBERS: Final = 1000
_READ_BYTES: Final = 1 << 20
_HINT: Final = "name a folder or a tar with index.json and blobs (skopeo copy … oci:FOLDER)"

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Progress = Callable[[int], None]
Sink = Callable[[LayerEntry], BinaryIO | None]
"""Called with each entry before its bytes are read; gives what gets those of a file."""


class _Descriptor(StrictModel):
    mediaType: str  # noqa: N815  # as the image specification writes it
    digest: Digest
    size: Annotated[int, Field(ge=0, le=_MAX_BYTES)]


class _Indexed(_Descriptor):
    annotations: dict[str, str] | None = None
    platform: dict[str, Any] | None = None


class _Index(StrictModel):
    schemaVersion: Literal[2]  # noqa: N815
    mediaType: str = INDEX_TYPE  # noqa: N815
    manifests: Annotated[tuple[_Indexed, ...], Field(min_length=1, max_length=1)]
    annotations: dict[str, str] | None = None


class _Manifest(StrictModel):
    schemaVersion: Literal[2]  # noqa: N815
    mediaType: Literal["application/vnd.oci.image.manifest.v1+json"]  # noqa: N815
    config: _Descriptor
    layers: Annotated[tuple[_Descriptor, ...], Field(min_length=1, max_length=16)]
    annotations: dict[str, str]


class _RootFs(StrictModel):
    type: Literal["layers"]
    diff_ids: tuple[Digest, ...]


class _Config(StrictModel):
    architecture: Literal["amd64"]
    os: Literal["linux"]
    created: Literal["1970-01-01T00:00:00Z"]
    config: dict[str, Any]
    rootfs: _RootFs


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an image's manifest and config say, whose digests are right; no layer was read.

    Attributes:
        digest: Of its manifest, ``sha256:`` and 64 hex digits.
        name: Its title.
        config: How a container of it starts.
        diff_ids: SHA-256 of each layer's tar, 64 hex digits.
    """

    digest: str
    name: str
    config: Mapping[str, Any]
    diff_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Described):
    """An image whose digests are right; nothing says yet where its files come from.

    Attributes:
        layers: Names of the entries of each layer.
        entries: Everything in its layers, by name.
        kept: Bytes of the files that were asked for, by name.
    """

    layers: tuple[tuple[str, ...], ...]
    entries: Mapping[str, LayerEntry]
    kept: Mapping[str, bytes]


def describe_image(path: Path) -> Described:
    """Read an image's manifest and config.

    Args:
        path: OCI layout, a folder or a tar.

    Raises:
        DataInvalid: There is no OCI layout.
        ImageRefused: They break the form of images, or have other digests.
    """
    with _open_blobs(path) as blobs:
        return _describe(blobs)[0]


def read_image(
    path: Path,
    keeps: Callable[[str], bool],
    *,
    into: Sink = lambda _: None,
    progress: Progress = lambda _: None,
) -> Image:
    """Read an image whole.

    Args:
        path: OCI layout, a folder or a tar.
        keeps: Name → whether a file's bytes are wanted.
        into: Gets the bytes of the other files, before any digest is known to be right.
        progress: Called with the number of bytes that were read of layers.

    Raises:
        DataInvalid: There is no OCI layout.
        ImageRefused: It breaks the form of images, or a digest in it is wrong.
    """
    with _open_blobs(path) as blobs:
        said, layers = _describe(blobs)
        found = _Found(keeps, into)
        names = []
        for layer, diff_id in zip(layers, said.diff_ids, strict=True):
            with blobs.layer(layer, progress) as tar:
                names.append(found.add(tar, diff_id))
    return Image(
        digest=said.digest,
        name=said.name,
        config=said.config,
        diff_ids=said.diff_ids,
        layers=tuple(names),
        entries=found.entries,
        kept=found.kept,
    )


def _describe(blobs: _Blobs) -> tuple[Described, tuple[_Descriptor, ...]]:
    index = _document(_Index, blobs.index(), "the index")
    data = blobs.document(index.manifests[0], "the manifest")
    manifest = _document(_Manifest, data, "the manifest")
    config = _document(_Config, blobs.document(manifest.config, "the config"), "the config")
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise layer_error(
            "the config has another number of layers than the manifest", check="config"
        )
    if manifest.annotations.keys() != {TITLE}:
        raise layer_error(
            "the manifest has other annotations than a title",
            check="manifest",
            got=", ".join(sorted(manifest.annotations))[:200] or "none",
        )
    said = Described(
        digest=f"sha256:{sha256_hex(data)}",
        name=manifest.annotations[TITLE],
        config=config.config,
        diff_ids=tuple(id_.removeprefix("sha256:") for id_ in config.rootfs.diff_ids),
    )
    return said, manifest.layers


class _Found:
    """The entries of layers so far."""

    def __init__(self, keeps: Callable[[str], bool], into: Sink) -> None:
        self.entries: dict[str, LayerEntry] = {}
        self.kept: dict[str, bytes] = {}
        self._keeps, self._into = keeps, into
        self._buffer: io.BytesIO | None = None
        self._bytes = self._kept_bytes = 0

    def add(self, tar: BinaryIO, diff_id: str) -> tuple[str, ...]:
        """Read a layer; returns the names of its entries."""
        names = []
        for entry in read_layer(tar, diff_id, self._begin):
            names.append(entry.name)
            self.entries[entry.name] = entry
            if self._buffer is not None:
                self.kept[entry.name] = self._buffer.getvalue()
        return tuple(names)

    def _begin(self, entry: LayerEntry) -> BinaryIO | None:
        """Check an entry before anything of it is read or written."""
        above, _, _ = entry.name.rpartition("/")
        if above and (above not in self.entries or self.entries[above].kind != "folder"):
            raise layer_error("an entry is in no folder", check="layer", got=entry.name[:200])
        if entry.name in self.entries:
            raise layer_error("an entry is there twice", check="layer", got=entry.name[:200])
        kept = entry.kind == "file" and self._keeps(entry.name)
        self._bytes += entry.size
        self._kept_bytes += entry.size if kept else 0
        if (
            len(self.entries) >= _MAX_ENTRIES
            or self._bytes > _MAX_BYTES
            or self._kept_bytes > _MAX_KEPT_BYTES
        ):
            raise layer_error("the image is too large", check="layer", expected="≤ 64 GiB")
        self._buffer = io.BytesIO() if kept else None
        return self._buffer or self._into(entry)


def _document(cls: type[Any], data: bytes, what: str) -> Any:
    try:
        return load_json(cls, data, ImageRefused, what, max_bytes=_MAX_DOCUMENT_BYTES)
    except (DataInvalid, ImageRefused) as error:
        raise layer_error(f"{what} is malformed: {error.message}", check="layout") from error


class _Blobs:
    """Files of a layout by name."""

    def __init__(self, open_file: Callable[[str], BinaryIO]) -> None:
        self._open = open_file

    def index(self) -> bytes:
        with self._open("index.json") as file:
            return file.read(_MAX_DOCUMENT_BYTES + 1)

    def document(self, told: _Descriptor, what: str) -> bytes:
        with self._blob(told) as file:
            data = file.read(_MAX_DOCUMENT_BYTES + 1)
        if len(data) != told.size or f"sha256:{sha256_hex(data)}" != told.digest:
            raise layer_error(
                f"{what} is not the blob that its digest names",
                check="blob",
                got=f"sha256:{sha256_hex(data)}",
                expected=told.digest,
            )
        return data

    def _blob(self, told: _Descriptor) -> BinaryIO:
        try:
            return self._open(f"blobs/sha256/{told.digest.removeprefix('sha256:')}")
        except DataInvalid as error:
            raise layer_error(
                "the layout lacks a blob", check="blob", expected=told.digest
            ) from error

    @contextmanager
    def layer(self, told: _Descriptor, progress: Progress) -> Iterator[BinaryIO]:
        """A layer's tar; when the block ends, the whole blob has been hashed."""
        if told.mediaType not in (LAYER_TYPE, f"{LAYER_TYPE}+gzip"):
            raise layer_error(
                "a layer is of another kind",
                check="layer",
                got=told.mediaType[:100],
                expected=f"{LAYER_TYPE} or {LAYER_TYPE}+gzip",
            )
        with self._blob(told) as file:
            hashed = _Hashed(file, told.size, progress)
            buffered = io.BufferedReader(hashed, _READ_BYTES)
            try:
                if told.mediaType == LAYER_TYPE:
                    yield cast("BinaryIO", buffered)
                else:
                    with gzip.GzipFile(fileobj=buffered) as tar:
                        yield cast("BinaryIO", tar)
            except (OSError, EOFError, zlib.error) as error:
                raise layer_error("a layer is not readable", check="layer") from error
            while buffered.read(_READ_BYTES):
                pass
            if (got := hashed.digest()) != told.digest:
                raise layer_error(
                    "a layer is not the blob that its digest names",
                    check="blob",
                    got=got,
                    expected=told.digest,
                )


class _Hashed(io.RawIOBase):
    """Reads at most as many bytes as a blob may have, and hashes them."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress) -> None:
        self._file, self._left, self._progress = file, size + 1, progress
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._digest.update(data)
        self._left -= len(data)
        self._progress(len(data))
        return len(data)

    def digest(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"


@contextmanager
def _open_blobs(path: Path) -> Iterator[_Blobs]:
    if path.is_dir():
        yield _Blobs(lambda name: os.fdopen(open_regular(path / name), "rb"))
        return
    with os.fdopen(open_regular(path), "rb") as file:
        found = _members(file, path)

        def open_member(name: str) -> BinaryIO:
            if name not in found:
                raise DataInvalid(f"{path} has no {name}", hint=_HINT)
            return content(file, found[name])

        yield _Blobs(open_member)


def _members(file: BinaryIO, path: Path) -> dict[str, tarfile.TarInfo]:
    """Plain files of a layout's tar by name; of two with one name, the later."""
    try:
        return {
            member.name.removeprefix("./"): member
            for member in itertools.islice(headers(file, path.name), _MAX_MEMBERS)
            if member.type in PLAIN and member.size >= 0 and not member.issparse()
        }
    except tarfile.TarError as error:
        raise DataInvalid(f"{path} is no OCI layout", hint=_HINT) from error
