"""Account for every file of an image (spec/images.md §6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import ExtraMissing, ImageRefused
from sealtrain.image.layer import LayerEntry, layer_error
from sealtrain.image.layout import Image
from sealtrain.image.own_files import CONFIG, PACKAGES_FOLDER, STATUS_FOLDER, folders_of, own_files
from sealtrain.image.packages import (
    ImageDistribution,
    measure_image,
    record_text,
    require_recorded,
    wheels_of,
)
from sealtrain.image.pins import Pins, files_digest, load_image_recipe, load_pins
from sealtrain.recipe.errors import EnvironmentChanged
from sealtrain.recipe.installation import record_digest
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.measure import check_installation

_MAX_FINDINGS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What was found out about an image.

    Attributes:
        image: The image.
        pins: Of its recipe in the source.
        findings: Each difference as a refusal; none where the image is accounted for.
    """

    image: Image
    pins: Pins
    findings: tuple[ImageRefused, ...]

    @property
    def refusal(self) -> ImageRefused | None:
        """The first finding, and how many there are; ``None`` without any."""
        if not self.findings:
            return None
        first = self.findings[0]
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        return first.with_message(f"{first.message}{more}")


def verify_image(image: Image, source: Path, *, lock: Lock | None = None) -> Account:
    """Account for an image, and refuse it where anything in it is not accounted for.

    Args:
        image: As ``layout.read_image`` gives it, with the files kept that ``packages.keeps`` names.
        source: Source of sealtrain that its owner has reviewed.
        lock: Of a recipe that is to run in it.

    Raises:
        ImageRefused: Names the first difference.
        DataInvalid: The source is no source tree, or has no recipe of the image.
    """
    account = account_for(image, source, lock=lock)
    if (refusal := account.refusal) is not None:
        raise refusal
    return account


def account_for(image: Image, source: Path, *, lock: Lock | None = None) -> Account:
    """Every difference of an image. Arguments as ``verify_image``.

    Raises:
        DataInvalid: The source is no source tree, or has no recipe of the image.
    """
    recipe, pins = load_image_recipe(source, image.name), load_pins(source, image.name)
    known = {name: file.entry for name, file in own_files(source, recipe.rooms).items()}
    findings = _Findings()
    if dict(image.config) != dict(CONFIG):
        differ = sorted(
            key
            for key in image.config.keys() | CONFIG.keys()
            if image.config.get(key) != CONFIG.get(key)
        )
        findings.add("a container of the image starts in another way", "config", ", ".join(differ))
    if set(recipe.debian) != set(pins.debian):
        findings.add("the pins are of other Debian packages than the recipe", "debian", None)
    known |= _debian(image, pins, findings)
    known |= _wheels(image, pins, findings)
    known |= folders_of(known)
    _compare(image, known, findings)
    if lock is not None:
        findings.catch(
            lambda: check_installation(measure_image(image, lock.recipe, compared=True), lock)
        )
    return Account(image=image, pins=pins, findings=tuple(findings.found))


class _Findings:
    """Differences in the order in which they were found."""

    def __init__(self) -> None:
        self.found: list[ImageRefused] = []

    def add(self, problem: str, check: str, got: object = None, expected: object = None) -> None:
        self.keep(layer_error(problem, check=check, got=got, expected=expected))

    def keep(self, refusal: ImageRefused) -> None:
        if len(self.found) < _MAX_FINDINGS:
            self.found.append(refusal)

    def catch(self, check: Callable[[], None]) -> None:
        try:
            check()
        except ImageRefused as error:
            self.keep(error)
        except (EnvironmentChanged, ExtraMissing) as error:
            self.add(error.message, "lock", error.got, error.expected)


def _debian(image: Image, pins: Pins, findings: _Findings) -> dict[str, LayerEntry]:
    """Everything that Debian packages put into the image."""
    known: dict[str, LayerEntry] = {}
    for package, pin in sorted(pins.debian.items()):
        listed = f"{STATUS_FOLDER}/{package}.list"
        text = image.kept.get(listed, b"").decode("utf-8", "replace")
        names = [*text.splitlines(), f"{STATUS_FOLDER}/{package}"]
        entries = {name: image.entries[name] for name in names if name in image.entries}
        known |= entries
        if not text or text != "".join(f"{name}\n" for name in sorted(set(names[:-1]))):
            findings.add("the list of a Debian package is absent or malformed", "debian", package)
            continue
        known[listed] = _text_entry(listed, text.encode())
        got = files_digest(entries)
        if len(entries) != len(names) or got != pin.files_sha256:
            findings.add(
                f"the files of Debian package {package} are not the pinned ones",
                "debian",
                got,
                pin.files_sha256,
            )
    return known


def _wheels(image: Image, pins: Pins, findings: _Findings) -> dict[str, LayerEntry]:
    """Everything that wheels put into the image."""
    known: dict[str, LayerEntry] = {}
    try:
        wheels = wheels_of(image)
    except ImageRefused as error:
        findings.keep(error)
        return known
    for package in sorted(pins.wheels.keys() - wheels.keys()):
        findings.add("the image lacks a package", "wheels", "absent", package)
    for package, wheel in sorted(wheels.items()):
        known |= _files_of(image, wheel)
        pin = pins.wheels.get(package)
        if pin is None:
            findings.add("the image has a package that is not pinned", "wheels", package)
            continue
        got = record_digest(wheel.read_text("RECORD") or "")
        if got != pin.record_sha256:
            findings.add(
                f"the files of package {package} are not the pinned ones",
                "wheels",
                got,
                pin.record_sha256,
            )
        findings.catch(partial(require_recorded, image, package, wheel))
    return known


def _files_of(image: Image, wheel: ImageDistribution) -> dict[str, LayerEntry]:
    """The files of a wheel as the image must have them.

    Rows of ``RECORD`` name the bytes, and the pin names these rows. What else an entry has follows
    from its bytes: a program may be run, any other file not, and ``RECORD`` has one form.
    """
    record = f"{wheel.folder}/RECORD"
    found: dict[str, LayerEntry] = {}
    rows: dict[str, tuple[str, int]] = {}
    for name, hash_ in wheel.files_recorded.items():
        entry = image.entries.get(name)
        if entry is not None and entry.kind == "file":
            found[name] = replace(entry, mode=0o755 if entry.program else 0o644)
            rows[name.removeprefix(f"{PACKAGES_FOLDER}/")] = hash_, entry.size
    text = record_text(rows, record).encode()
    name = f"{PACKAGES_FOLDER}/{record}"
    return found | {name: _text_entry(name, text)}


def _text_entry(name: str, text: bytes) -> LayerEntry:
    return LayerEntry(name=name, kind="file", mode=0o644, size=len(text), sha256=sha256_hex(text))


def _compare(image: Image, known: Mapping[str, LayerEntry], findings: _Findings) -> None:
    for name, entry in image.entries.items():
        if name not in known:
            findings.add(f"not accounted for: {name}", "files", entry.describe()[:200])
        elif entry.describe() != known[name].describe():
            findings.add(
                f"differs from the source: {name}",
                "files",
                entry.describe()[:200],
                known[name].describe()[:200],
            )
    for name in sorted(known.keys() - image.entries.keys()):
        findings.add(f"the image lacks {name}", "files", "absent", known[name].describe()[:200])
