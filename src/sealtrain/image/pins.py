"""What goes into an image: its recipe and its pins in the source (spec/images.md §5)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.digests import map_sha256
from sealtrain.base.files import read_regular
from sealtrain.base.models import Hex64, StrictModel, load_json, load_model
from sealtrain.base.yamltext import parse_yaml
from sealtrain.errors import DataInvalid
from sealtrain.image.layer import LayerEntry

IMAGES: Final = "deploy/images"
"""Folder of the images' recipes in the source."""
INTERPRETER: Final = "python3.11-minimal"
_MAX_BYTES: Final = 4 << 20

ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")]
DebianName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]{1,99}$")]
DebianVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+:~-]{0,99}$")]
WheelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$")]
WheelVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.!_-]{1,64}$")]
Requirement = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!_-]+$")
]
Extra = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")]


class ImageRecipe(StrictModel):
    """``image.yaml``: what a person decides about an image.

    Attributes:
        rooms: Distributions of sealtrain in it beside the core.
    """

    name: ImageName
    debian: Annotated[tuple[DebianName, ...], Field(min_length=1)]
    extras: tuple[Extra, ...]
    packages: tuple[Requirement, ...]
    rooms: tuple[Literal["sealtrain-chain", "sealtrain-nodes", "sealtrain-together"], ...] = ()


class DebianPin(StrictModel):
    """One Debian package.

    Attributes:
        version: As Debian writes it.
        path: In Debian's archive, ``pool/…``.
        sha256: Of the ``.deb``.
        files_sha256: ``files_digest`` of what an image takes from it.
    """

    version: DebianVersion
    path: Annotated[str, StringConstraints(pattern=r"^pool/[A-Za-z0-9/+._~-]{1,300}\.deb$")]
    sha256: Hex64
    files_sha256: Hex64


class WheelPin(StrictModel):
    """One wheel: its version, its digest, and the record digest of spec/recipe.md §3.1."""

    version: WheelVersion
    sha256: Hex64
    record_sha256: Hex64


class Pins(StrictModel):
    """``pins.json``: the very files that an image is made of, beside sealtrain itself."""

    version: Literal[1]
    name: ImageName
    python: Annotated[str, StringConstraints(pattern=r"^3\.11\.[0-9]{1,3}$")]
    debian_date: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
    debian: dict[DebianName, DebianPin]
    wheels: dict[WheelName, WheelPin]

    @model_validator(mode="after")
    def _has_its_interpreter(self) -> Self:
        interpreter = self.debian.get(INTERPRETER)
        if interpreter is None or not interpreter.version.startswith(f"{self.python}-"):
            raise ValueError(f"{INTERPRETER} is not of version {self.python}")
        return self

    def to_bytes(self) -> bytes:
        """JSON with a line for each field: people read what changed in it."""
        return (json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n").encode()


def load_image_recipe(source: Path, name: str) -> ImageRecipe:
    """The recipe of an image in the source.

    Raises:
        DataInvalid: The source has none, or it breaks its form.
    """
    path = _folder(source, name) / "image.yaml"
    document = parse_yaml(read_regular(path, _MAX_BYTES), error=DataInvalid, what=str(path))
    return load_model(ImageRecipe, document, DataInvalid, str(path))


def load_pins(source: Path, name: str) -> Pins:
    """The pins of an image in the source.

    Raises:
        DataInvalid: The source has none, or they break their form.
    """
    path = _folder(source, name) / "pins.json"
    data = read_regular(path, _MAX_BYTES)
    pins = load_json(Pins, data, DataInvalid, str(path), max_bytes=_MAX_BYTES)
    if pins.name != name:
        raise DataInvalid(f"{path} has the pins of another image", got=pins.name, expected=name)
    return pins


def _folder(source: Path, name: str) -> Path:
    load_model(_Named, {"name": name}, DataInvalid, "name of an image")
    return source / IMAGES / name


class _Named(StrictModel):
    name: ImageName


def files_digest(entries: Mapping[str, LayerEntry]) -> str:
    """Digest of a Debian package's files and links in an image, 64 hex digits (§5)."""
    return map_sha256({name: entry.describe() for name, entry in entries.items()})
