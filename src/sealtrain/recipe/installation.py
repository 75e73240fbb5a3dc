"""Digests of the installed code and of every package that a recipe needs.

A package is pinned by version and by its *record digest*: SHA-256 of the canonical map from file to
hash that its wheel's RECORD lists. Rows that an installer writes on its own (launchers outside the
package folder, INSTALLER, REQUESTED, direct_url.json, compiled caches) are left out, so the same
wheel has the same digest on every machine.

A recipe needs extras of sealtrain and the packages that it names itself; the guest can import no
others (``sandbox.imports``). A recipe does not say whether data lies on this machine or behind a
URL, so the clients that read data from elsewhere are part of extra ``train``.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import Distribution, PackageMetadata
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import StringConstraints

from sealtrain.base.digests import file_sha256, map_sha256, tree_sha256
from sealtrain.base.distributions import CORE, DISTRIBUTIONS, room_missing
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import Hex64, StrictModel
from sealtrain.base.shipped import find_shipped
from sealtrain.base.version import VERSION, own_folders
from sealtrain.errors import ExtraMissing
from sealtrain.recipe.engines import extras_of
from sealtrain.recipe.errors import EnvironmentChanged
from sealtrain.recipe.importable import Importable
from sealtrain.recipe.kinds import distributions_of
from sealtrain.recipe.recipe import PhaseRecipe

_WRITTEN_BY_INSTALLERS = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "uv_cache.json")
_OWN = CORE
_INSTALL = "pip install 'sealtrain[train]' (from a checkout: pip install -e '.[train]')"
_BACKENDS = "tools/backends/install.sh"
_ALTERNATIVE = re.compile(r"\bor\b")
_OF_EXTRA = re.compile(r"""(?:^|[\s(])extra\s*==\s*["']([^"']*)["'][\s)]*$""")

Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.+!_-]{1,64}$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$")]


class CodePin(StrictModel):
    """One of sealtrain's distributions: its version, and ``tree_sha256`` of its Python files.

    A distribution is measured by its files: the RECORD of one that is used from its source folder
    lists no code.
    """

    name: PackageName
    version: Version
    sha256: Hex64


class PackagePin(StrictModel):
    """One installed package."""

    version: Version
    record_sha256: Hex64


class EnvironmentPin(StrictModel):
    """CPython's version and the packages that the recipe needs."""

    python: Annotated[
        str, StringConstraints(pattern=r"^3\.[0-9]{1,2}\.[0-9]{1,3}((a|b|rc)[0-9]{1,2})?\+?$")
    ]
    packages: dict[PackageName, PackagePin]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The code and the packages of a recipe as they are installed on this machine.

    Attributes:
        code: Digests of the core, and of the rooms that the recipe's kind names.
        environment: Digests of the packages.
        importable: The modules that these packages have.
    """

    code: tuple[CodePin, ...]
    environment: EnvironmentPin
    importable: Importable = field(default_factory=Importable, compare=False)


def measure_code(distributions: Iterable[str] | None = None) -> tuple[CodePin, ...]:
    """Measure the sealtrain that runs.

    Args:
        distributions: Of which; every one that is installed when ``None``.

    Raises:
        ExtraMissing: One is not installed.
    """
    pins = []
    for name in DISTRIBUTIONS if distributions is None else distributions:
        (folder,) = own_folders([name]).values()
        if folder.is_dir():
            digest = tree_sha256(folder, suffixes=(".py",))
            pins.append(CodePin(name=name, version=VERSION, sha256=digest))
        elif distributions is not None:
            raise room_missing(name)
    return tuple(pins)


def code_sha256(pins: Iterable[CodePin]) -> str:
    """One digest for several: of the canonical map from name to digest, 64 hex digits."""
    return map_sha256({pin.name: pin.sha256 for pin in pins})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationPaths:
    """Where sealtrain and packages are installed.

    Attributes:
        code: Measures these distributions of sealtrain there.
        python: Full version of the interpreter.
        requirements: Requirement lines of sealtrain.
        distribution: Finds a package by its normalised name, or raises ``PackageNotFoundError``.
        markers: Values of markers (PEP 508) that differ from those of this interpreter.
    """

    code: Callable[[Iterable[str]], tuple[CodePin, ...]]
    python: str
    requirements: Callable[[], list[str]]
    distribution: Callable[[str], Distribution]
    markers: Mapping[str, str] = field(default_factory=dict)


def _here() -> InstallationPaths:
    return InstallationPaths(
        code=measure_code,
        python=platform.python_version(),
        requirements=own_requirements,
        distribution=importlib.metadata.distribution,
    )


def measure_installation(
    recipe: PhaseRecipe, place: InstallationPaths | None = None
) -> Installation:
    """Measure the code, and the packages of a recipe with their dependencies.

    Args:
        recipe: Names what it needs.
        place: Where; what runs here when ``None``.

    Raises:
        ExtraMissing: A required package is missing, of another version, or not measurable.
    """
    place = place or _here()
    own = distributions_of(recipe.collaboration)
    found = _closure(packages_of(recipe), place)
    files = {name: dict(read_recorded(_record(name, dist))) for name, dist in sorted(found.items())}
    pins = {
        name: PackagePin(version=found[name].version, record_sha256=map_sha256(listed))
        for name, listed in files.items()
    }
    return Installation(
        code=place.code(own),
        environment=EnvironmentPin(python=place.python, packages=pins),
        importable=Importable(found, files, own),
    )


def check_package_files(names: tuple[str, ...]) -> None:
    """Hash every recorded file of installed packages (about 1 s for each GB).

    Args:
        names: Normalised package names.

    Raises:
        EnvironmentChanged: A file is missing or differs from its package's RECORD.
    """
    for name in names:
        dist = importlib.metadata.distribution(name)
        for file, expected in read_recorded(_record(name, dist)):
            path = Path(str(dist.locate_file(file)))
            actual = as_recorded(file_sha256(path)) if path.is_file() else "absent"
            if actual != expected:
                raise EnvironmentChanged(
                    f"a file of package {name} is not the recorded one: {file}",
                    check="environment",
                    got=actual,
                    expected=expected,
                    hint=f"reinstall {name}",
                )


class Installed(Distribution):
    """A package's metadata, parsed once: libraries ask for a version at every turn.

    Args:
        found: The package, as its finder gives it.
    """

    def __init__(self, found: Distribution) -> None:
        self._found = found

    @cached_property
    def metadata(self) -> PackageMetadata:
        """As ``Distribution``."""
        return self._found.metadata

    def read_text(self, filename: str) -> str | None:
        """As ``Distribution``."""
        return self._found.read_text(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """As ``Distribution``."""
        return Path(str(self._found.locate_file(path)))


def _closure(wanted: PackagesWanted, place: InstallationPaths) -> dict[str, Distribution]:
    try:
        from packaging.requirements import Requirement
    except ImportError as error:
        raise ExtraMissing("package 'packaging' is not installed", hint=_INSTALL) from error
    found: dict[str, Distribution] = {}
    walked: set[tuple[str, str]] = set()
    own = place.requirements()
    pending = [(f"{_OWN}[{','.join(wanted.extras)}]", "", _INSTALL)]
    for line in wanted.of_backend:
        hint = f"sh {find_shipped(_BACKENDS)} BACKEND makes an environment with it"
        pending.append((line, "", hint))
    pending += [(line, "", f"pip install '{line}'") for line in wanted.of_scripts]
    while pending:
        line, active, hint = pending.pop()
        if _is_of_another_extra(line, active):
            continue
        requirement = Requirement(line)
        markers = {**place.markers, "extra": active}
        if requirement.marker is not None and not requirement.marker.evaluate(markers):
            continue
        name = normalise_name(requirement.name)
        if name == _OWN:  # an extra may name other extras of sealtrain
            for extra in requirement.extras:
                if (name, extra) not in walked:
                    walked.add((name, extra))
                    pending += [(line, extra, hint) for line in own]
            continue
        try:
            dist = found.get(name) or Installed(place.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            if hint:
                raise _missing(name, "absent", str(requirement.specifier), hint) from None
            continue  # a wheel may leave out a requirement of its index; no code then loads it
        if hint and not requirement.specifier.contains(dist.version, prereleases=True):
            raise _missing(name, dist.version, str(requirement.specifier), hint)
        found[name] = dist
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in walked:
                walked.add((name, extra))
                pending += [(line, extra, "") for line in dist.requires or ()]
    return found


def _is_of_another_extra(line: str, active: str) -> bool:
    """Whether a requirement's marker ends in ``extra == …`` of another extra.

    Most lines of packages are such ones, and parsing one takes longer than seeing it.
    """
    _, _, marker = line.partition(";")
    ending = _OF_EXTRA.search(marker)
    if ending is None or _ALTERNATIVE.search(marker):
        return False
    return normalise_name(ending[1]) != normalise_name(active)


def _missing(name: str, got: str, expected: str, hint: str) -> ExtraMissing:
    return ExtraMissing(
        f"the recipe needs the package {name}",
        check="environment",
        got=got,
        expected=expected or "any version",
        hint=hint,
    )


def own_requirements() -> list[str]:
    """Requirement lines of sealtrain, with ``; extra == …`` markers where they have one."""
    # In a checkout, the file beside the code has the requirements of the running code; the
    # installed metadata may be older.
    project_file = own_folders()["sealtrain"].parents[1] / "pyproject.toml"
    if not project_file.is_file():
        try:
            return importlib.metadata.requires(_OWN) or []
        except importlib.metadata.PackageNotFoundError:
            raise ExtraMissing("sealtrain is not installed", hint=_INSTALL) from None
    return requirements_in(project_file)


def requirements_in(project_file: Path) -> list[str]:
    """Requirement lines of a source's ``pyproject.toml``, as ``own_requirements``."""
    project = tomllib.loads(project_file.read_text("utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra, wanted in project["optional-dependencies"].items():
        for line in wanted:
            name, _, marker = line.partition(";")
            within = f"({marker.strip()}) and " if marker else ""
            lines.append(f"{name.strip()} ; {within}extra == '{extra}'")
    return lines


def record_digest(record: str) -> str:
    """Digest of a RECORD file's text, 64 hex digits (spec/recipe.md)."""
    return map_sha256(dict(read_recorded(record)))


def _record(name: str, dist: Distribution) -> str:
    text = dist.read_text("RECORD")
    if _is_editable(dist):
        raise ExtraMissing(
            f"package {name} is used from its source folder, so it cannot be measured",
            check="environment",
            hint=f"install {name} without --editable",
        )
    if text is None:
        raise ExtraMissing(
            f"package {name} has no RECORD, so it cannot be measured",
            check="environment",
            hint=f"reinstall {name} from a wheel",
        )
    return text


def _is_editable(dist: Distribution) -> bool:
    """Whether an installer noted that a package's code lies in its source folder."""
    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        return bool(origin.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


def read_recorded(record: str) -> Iterator[tuple[str, str]]:
    """Files of a package with their hashes as RECORD writes them (``sha256=…``), in its order."""
    for row in csv.reader(io.StringIO(record)):
        if len(row) != 3 or not row[1]:
            continue
        path, parts = row[0], row[0].split("/")
        if "" in parts or "." in parts:  # rare, and a Path for each row takes longer than hashing
            path = PurePosixPath(path).as_posix()
            parts = path.split("/")
        if path.startswith("/") or ".." in parts or "__pycache__" in parts:
            continue
        folder, name = ["", *parts][-2:]
        if name in _WRITTEN_BY_INSTALLERS and folder.endswith(".dist-info"):
            continue
        yield path, row[1]


def as_recorded(digest: str) -> str:
    """A SHA-256 in hex as RECORD writes it."""
    return "sha256=" + to_base64(bytes.fromhex(digest)).translate(str.maketrans("+/", "-_")).rstrip(
        "="
    )


def normalise_name(name: str) -> str:
    """Name of a package as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True)
class PackagesWanted:
    """The packages that must be installed for a recipe.

    Attributes:
        extras: Extras of sealtrain, ``train`` first.
        of_backend: Requirements of a backend that no extra installs, as ``name==version``.
        of_scripts: Requirements that the recipe's own scripts have, as ``name==version``.
    """

    extras: tuple[str, ...] = ("train",)
    of_backend: tuple[str, ...] = ()
    of_scripts: tuple[str, ...] = ()


def packages_of(recipe: PhaseRecipe) -> PackagesWanted:
    """The packages of a recipe; pure, from the recipe alone."""
    extras = ["train"]
    if recipe.backend.extra is not None:
        extras.append(recipe.backend.extra)
    extras += extras_of(recipe)
    if recipe.validation is not None and recipe.validation.personal is not None:
        extras.append("validation")
    if recipe.collaboration is not None:
        extras += recipe.collaboration.extras
    return PackagesWanted(tuple(extras), recipe.backend.packages, recipe.packages)
