"""The packages in an image, measured as those of an installation (spec/recipe.md §3.1)."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import PurePosixPath
from typing import Final

from sealtrain.base.digests import map_sha256
from sealtrain.base.distributions import CORE, DISTRIBUTIONS
from sealtrain.image.layer import LayerEntry, layer_error
from sealtrain.image.layout import Image
from sealtrain.image.own_files import PACKAGES_FOLDER, STATUS_FOLDER
from sealtrain.image.pins import INTERPRETER
from sealtrain.recipe.installation import (
    CodePin,
    Installation,
    InstallationPaths,
    as_recorded,
    measure_installation,
    normalise_name,
    read_recorded,
)
from sealtrain.recipe.recipe import PhaseRecipe

_MARKERS: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
_OWN: Final = CORE


def keeps(name: str) -> bool:
    """Whether a file of an image is one that says what other files are."""
    above, _, last = name.rpartition("/")
    return above == STATUS_FOLDER or (
        above.endswith(".dist-info") and last in ("METADATA", "RECORD")
    )


class ImageDistribution(Distribution):
    """A package in an image, as ``importlib.metadata`` describes installed ones."""

    def __init__(self, folder: str, kept: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._kept = kept

    def read_text(self, filename: str) -> str | None:
        """As ``Distribution``."""
        data = self._kept.get(f"{PACKAGES_FOLDER}/{self.folder}/{filename}")
        return None if data is None else data.decode("utf-8", "replace")

    def locate_file(self, path: str | os.PathLike[str]) -> PurePosixPath:  # type: ignore[override]
        """As ``Distribution``; a place in the image."""
        return PurePosixPath("/", PACKAGES_FOLDER, os.fspath(path))

    @property
    def files_recorded(self) -> dict[str, str]:
        """Name in the image of each file that ``RECORD`` lists with its hash."""
        rows = read_recorded(self.read_text("RECORD") or "")
        return {f"{PACKAGES_FOLDER}/{path}": hash_ for path, hash_ in rows}


def wheels_of(image: Image) -> dict[str, ImageDistribution]:
    """The packages in an image by normalised name, without sealtrain.

    Raises:
        ImageRefused: A package is there twice.
    """
    found: dict[str, ImageDistribution] = {}
    for name in image.kept:
        folder, _, last = name.removeprefix(f"{PACKAGES_FOLDER}/").partition("/")
        if last != "METADATA" or not name.startswith(f"{PACKAGES_FOLDER}/"):
            continue
        package = normalise_name(folder.removesuffix(".dist-info").partition("-")[0])
        if package in found:
            raise layer_error("a package is there twice", check="wheels", got=package)
        found[package] = ImageDistribution(folder, image.kept)
    found.pop(_OWN, None)
    return found


def record_text(files: Mapping[str, tuple[str, int]], record: str) -> str:
    """The only ``RECORD`` that a wheel has in an image (spec/images.md §3).

    Args:
        files: Hash, as ``RECORD`` writes it, and size of each file, by its path there.
        record: Path of ``RECORD`` itself.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((path, hash_, size) for path, (hash_, size) in sorted(files.items()))
    rows.writerow((record, "", ""))
    return text.getvalue()


def require_recorded(image: Image, package: str, wheel: ImageDistribution) -> None:
    """Compare each file of a wheel with the hash in its ``RECORD``.

    Raises:
        ImageRefused: One differs.
    """
    for name, hash_ in wheel.files_recorded.items():
        entry = image.entries.get(name)
        got = "absent" if entry is None else as_recorded(entry.sha256) if entry.sha256 else "a link"
        if got != hash_:
            raise layer_error(
                f"a file of {package} is not the one that its RECORD names: {name}",
                check="wheels",
                got=got,
                expected=hash_,
            )


def python_of(image: Image) -> str:
    """Full version of the image's interpreter, by its Debian package.

    Raises:
        ImageRefused: The package is not there, or does not say.
    """
    control = image.kept.get(f"{STATUS_FOLDER}/{INTERPRETER}", b"").decode("utf-8", "replace")
    for line in control.splitlines():
        if line.startswith("Version: "):
            return line.removeprefix("Version: ").partition("-")[0]
    raise layer_error("the image has no interpreter", check="debian", expected=INTERPRETER)


def code_of(image: Image, distributions: Iterable[str] | None = None) -> tuple[CodePin, ...]:
    """Digests of sealtrain in an image, as ``recipe.installation.measure_code`` has them.

    Args:
        distributions: Of which; every one in the image when ``None``.

    Raises:
        ImageRefused: One is not there, or sealtrain is there twice.
    """
    versions = [
        name.removeprefix(f"{PACKAGES_FOLDER}/{_OWN}-").removesuffix(".dist-info/METADATA")
        for name in image.kept
        if name.startswith(f"{PACKAGES_FOLDER}/{_OWN}-") and name.endswith(".dist-info/METADATA")
    ]
    if len(versions) != 1:
        raise layer_error(
            "the image has not one sealtrain",
            check="sealtrain",
            got=", ".join(versions)[:200] or "none",
        )
    pins = []
    for name in DISTRIBUTIONS if distributions is None else distributions:
        tree = _tree(image.entries, f"{PACKAGES_FOLDER}/{DISTRIBUTIONS[name]}/")
        if tree:
            pins.append(CodePin(name=name, version=versions[0], sha256=map_sha256(tree)))
        elif distributions is not None:
            raise layer_error(
                "the image lacks a part of sealtrain", check="sealtrain", expected=name
            )
    return tuple(pins)


def _tree(entries: Mapping[str, LayerEntry], folder: str) -> dict[str, str]:
    return {
        name.removeprefix(folder): entry.sha256
        for name, entry in entries.items()
        if name.startswith(folder) and name.endswith(".py")
    }


def measure_image(image: Image, recipe: PhaseRecipe, *, compared: bool = False) -> Installation:
    """Measure sealtrain and a recipe's packages in an image, as if the image were running.

    Args:
        image: As ``layout.read_image`` gives it, with the files kept that ``keeps`` names.
        recipe: That is to run in it.
        compared: The caller has compared each wheel's files with ``require_recorded``.

    Raises:
        ExtraMissing: The image lacks a package, or has it in another version.
        ImageRefused: A file of a package is not the one that its ``RECORD`` names, or the recipe
            names another image.
    """
    named = recipe.hardware.image
    if named is not None and named.rpartition("@")[2] != image.digest:
        raise layer_error(
            "the recipe names another image", check="lock", got=image.digest, expected=named
        )
    wheels = wheels_of(image)
    if not compared:
        for package, wheel in wheels.items():
            require_recorded(image, package, wheel)

    def distribution(name: str) -> Distribution:
        try:
            return wheels[normalise_name(name)]
        except KeyError:
            raise PackageNotFoundError(name) from None

    (core,), python = code_of(image, [CORE]), python_of(image)
    own = ImageDistribution(f"{_OWN}-{core.version}.dist-info", image.kept)
    place = InstallationPaths(
        code=lambda names: code_of(image, names),
        python=python,
        requirements=lambda: own.requires or [],
        distribution=distribution,
        markers={
            **_MARKERS,
            "python_full_version": python,
            "python_version": python.rpartition(".")[0],
        },
    )
    return measure_installation(recipe, place)
