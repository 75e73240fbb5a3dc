"""Fetch the packages of images: Debian's from its mirrors, wheels from the package indexes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import httpx2

from sealtrain.base.digests import file_sha256, sha256_hex
from sealtrain.image.pins import DebianPin, WheelPin

MIRROR = os.environ.get("DEBIAN_MIRROR", "https://deb.debian.org")
SNAPSHOT = "https://snapshot.debian.org/archive"
PLATFORM = (
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    *(f"--platform=manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)),
    "--platform=manylinux2014_x86_64",
    "--platform=manylinux2010_x86_64",
    "--platform=manylinux1_x86_64",
    "--platform=linux_x86_64",
)
"""What pip needs to know of an image when it runs elsewhere."""


def debian_file(pin: DebianPin, date: str, cache: Path) -> Path:
    """A package of Debian with the pinned digest, from the cache, a mirror or the snapshots.

    Raises:
        SystemExit: Nobody has it.
    """
    place = cache / f"{pin.sha256}.deb"
    if place.is_file() and file_sha256(place) == pin.sha256:
        return place
    archive = "debian-security" if pin.path.startswith("pool/updates/") else "debian"
    for url in (f"{MIRROR}/{archive}/{pin.path}", f"{SNAPSHOT}/{archive}/{date}/{pin.path}"):
        try:
            answer = httpx2.get(url, follow_redirects=True, timeout=60)
        except httpx2.HTTPError as error:
            print(f"{url}: {type(error).__name__}", file=sys.stderr)
            continue
        if answer.status_code == 200 and sha256_hex(answer.content) == pin.sha256:
            place.write_bytes(answer.content)
            return place
        print(f"{url}: {answer.status_code}, not the pinned package", file=sys.stderr)
    raise SystemExit(f"nobody has {pin.path} with SHA-256 {pin.sha256}")


def pinned_wheels(pins: dict[str, WheelPin], cache: Path) -> list[Path]:
    """The pinned wheels, from the cache or by pip with their digests.

    Raises:
        SystemExit: pip did not find one.
    """
    there = {file_sha256(path): path for path in cache.glob("*.whl")}
    missing = {name: pin for name, pin in pins.items() if pin.sha256 not in there}
    if missing:
        lines = [
            f"{name}=={pin.version} --hash=sha256:{pin.sha256}" for name, pin in missing.items()
        ]
        wanted = cache / "requirements.txt"
        wanted.write_text("\n".join(lines) + "\n", "utf-8")
        download_wheels(["--no-deps", "--require-hashes", "-r", str(wanted)], cache)
        there = {file_sha256(path): path for path in cache.glob("*.whl")}
    try:
        return [there[pin.sha256] for _, pin in sorted(pins.items())]
    except KeyError as error:
        raise SystemExit(f"pip brought no wheel with SHA-256 {error}") from None


def download_wheels(words: Iterable[str], into: Path) -> None:
    """Have pip download wheels for images.

    Raises:
        SystemExit: It failed; its own words stand on stderr.
    """
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*command, *PLATFORM, "-d", str(into), *words])  # noqa: S603  # pip, with our own words
    if done.returncode:
        raise SystemExit("pip could not download the wheels")
