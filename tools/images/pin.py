"""Pin what an image is made of: write ``deploy/images/NAME/pins.json``. Needs Debian and a network.

Usage: ``python tools/images/pin.py NAME [--cache FOLDER]``

1. Debian's signed package indexes give the newest version of each package of ``image.yaml``.
2. pip resolves the requirements of its extras under ``constraints.txt``, for CPython 3.11 on Linux;
   with Flower, ``tools/flower/pins.txt`` counts before it.
3. Every package is read as the builder reads it, and its digests are written.

Read the difference before you commit it: from then on, owners account for images with it.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import cmp_to_key
from pathlib import Path

import httpx2
from fetching import MIRROR, debian_file, download_wheels
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packed import read_debian, wheel_content

from sealtrain.base.digests import file_sha256, sha256_hex
from sealtrain.base.files import atomic_write
from sealtrain.image.pins import (
    IMAGES,
    INTERPRETER,
    DebianPin,
    ImageRecipe,
    Pins,
    WheelPin,
    load_image_recipe,
)
from sealtrain.recipe.installation import record_digest, requirements_in

ROOT = Path(__file__).resolve().parents[2]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = (
    ("debian", "bookworm"),
    ("debian", "bookworm-updates"),
    ("debian-security", "bookworm-security"),
)
_NONE = "0" * 64

Paragraph = dict[str, str]


def indexes() -> tuple[dict[str, list[Paragraph]], str]:
    """Debian's packages by name, in every version, and the time of the indexes.

    Raises:
        SystemExit: An index is not the one that Debian signed.
    """
    found: dict[str, list[Paragraph]] = {}
    dates = []
    for archive, suite in SUITES:
        base = f"{MIRROR}/{archive}/dists/{suite}"
        release = _read_signed(_get(f"{base}/InRelease"))
        dates.append(parsedate_to_datetime(_field(release, "Date")))
        name = "main/binary-amd64/Packages.xz"
        packed = _get(f"{base}/{name}")
        if f" {sha256_hex(packed)} " not in release.partition("\nSHA256:")[2]:
            raise SystemExit(f"{base}/{name} is not the index that Debian signed")
        for text in lzma.decompress(packed).decode().split("\n\n"):
            paragraph = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
            if paragraph:
                found.setdefault(paragraph["Package"], []).append(paragraph)
    # The archive of snapshots has a package some hours after the mirrors have it.
    date = max(dates).astimezone(UTC) + timedelta(days=1)
    return found, f"{date:%Y%m%dT%H%M%SZ}"


def _read_signed(message: bytes) -> str:
    """The text that Debian's archive keys signed."""
    with tempfile.TemporaryDirectory() as folder:
        signed, text = Path(folder, "InRelease"), Path(folder, "Release")
        signed.write_bytes(message)
        words = ["gpgv", "--quiet", "--keyring", KEYRING, "--output", str(text), str(signed)]
        done = subprocess.run(words, capture_output=True)  # noqa: S603  # with our own words
        if done.returncode:
            raise SystemExit(
                f"the signature of Debian does not hold: {done.stderr.decode()[-200:]}"
            )
        return text.read_text("utf-8")


def _field(text: str, name: str) -> str:
    (value,) = (
        line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{name}: ")
    )
    return value


def _get(url: str) -> bytes:
    return httpx2.get(url, follow_redirects=True, timeout=120).raise_for_status().content


def _newest(versions: list[Paragraph]) -> Paragraph:
    def order(one: Paragraph, other: Paragraph) -> int:
        words = ["dpkg", "--compare-versions", one["Version"], "gt", other["Version"]]
        return 1 if subprocess.run(words).returncode == 0 else -1  # noqa: S603  # two versions

    return max(versions, key=cmp_to_key(order))


def debian_pins(names: tuple[str, ...], cache: Path) -> tuple[dict[str, DebianPin], str]:
    """Pins of Debian packages, and the time of the indexes."""
    known, date = indexes()
    found = {}
    for name in names:
        if name not in known:
            raise SystemExit(f"Debian has no package {name}")
        newest = _newest(known[name])
        pin = DebianPin(
            version=newest["Version"],
            path=newest["Filename"],
            sha256=newest["SHA256"],
            files_sha256=_NONE,
        )
        package = read_debian(debian_file(pin, date, cache))
        found[name] = pin.model_copy(update={"files_sha256": package.files_sha256()})
    return found, date


def wheel_pins(recipe: ImageRecipe, cache: Path) -> dict[str, WheelPin]:
    """Pins of the wheels that an image's extras of sealtrain and its own packages need."""
    wanted = [*_requirements(recipe.extras), *recipe.packages]
    found = {}
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        held = Path(folder) / "constraints.txt"
        held.write_text(_constraints(recipe.extras), "utf-8")
        download_wheels(["-c", str(held), *wanted], Path(folder))
        for wheel in sorted(Path(folder).glob("*.whl")):
            name, version, _, _ = parse_wheel_filename(wheel.name)
            found[str(name)] = WheelPin(
                version=version.public,
                sha256=file_sha256(wheel),
                record_sha256=record_digest(wheel_content(wheel)[1]),
            )
            shutil.move(wheel, cache / wheel.name)
    return found


def _constraints(extras: tuple[str, ...]) -> str:
    """The versions that the tests of these extras ran with, one per line."""
    names = ["constraints.txt"]
    if "federated" in extras:
        names.append("tools/flower/pins.txt")
    held = {}
    for line in (line for name in names for line in (ROOT / name).read_text("utf-8").splitlines()):
        if line and not line.startswith("#"):
            held[canonicalize_name(Requirement(line).name)] = line
    return "\n".join(held.values()) + "\n"


def _requirements(extras: tuple[str, ...]) -> list[str]:
    """Requirement lines of sealtrain and of its extras, without those of other systems."""
    lines = [Requirement(line) for line in requirements_in(ROOT / "pyproject.toml")]
    wanted, pending, walked = [], ["", *extras], set[str]()
    while pending:
        active = pending.pop()
        if active in walked:
            continue
        walked.add(active)
        for line in lines:
            if line.marker is None and active:
                continue
            if line.marker is not None and not line.marker.evaluate({"extra": active}):
                continue
            if line.name == "sealtrain":
                pending += sorted(line.extras)
            else:
                bare = Requirement(str(line))
                bare.marker = None
                wanted.append(str(bare))
    return sorted(set(wanted))


def main() -> int:
    """Pin one image."""
    words = argparse.ArgumentParser(description="Pin what an image is made of.")
    words.add_argument("name")
    words.add_argument("--cache", type=Path, default=ROOT / ".images", help="folder for packages")
    given = words.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    recipe = load_image_recipe(ROOT, given.name)
    debian, date = debian_pins(recipe.debian, given.cache)
    wheels = wheel_pins(recipe, given.cache)
    pins = Pins(
        version=1,
        name=recipe.name,
        python=debian[INTERPRETER].version.partition("-")[0],
        debian_date=date,
        debian=debian,
        wheels=wheels,
    )
    place = ROOT / IMAGES / recipe.name / "pins.json"
    atomic_write(place, pins.to_bytes(), overwrite=True)
    print(f"{place.relative_to(ROOT)}: {len(debian)} Debian packages, {len(wheels)} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
