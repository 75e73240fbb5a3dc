"""Make images, disk and enclave files twice, as unlike as one machine can, and compare digests.

    python tools/images/twice.py OUT [--image NAME]... [--cache FOLDER] [--other-python PROGRAM]

Both builders take the source of ``HEAD``. What differs between them:

| | first | second |
|---|---|---|
| user | the caller | 65534, where the caller is root |
| folder | ``OUT/first`` | deeper below ``OUT``, the source's with a space in its name |
| day | today | 400 days later, and 11 hours (libfaketime) |
| umask, time zone, language | 022, UTC, C.UTF-8 | 077, fourteen hours east, C |
| Python | this one | ``--other-python`` |
| seed of Python's hashes | 1 | 2 |

Each makes the OCI image of every NAME, its enclave image file, and the guest's disk of
``guest-cpu``, with a kernel that each builds again. ``OUT/digests.json`` then says commit, builders
and digests, for ``tools/release_table.py``. Where a digest differs, the first part that does is
named, and the exit status is 1. Packages come from one cache, each checked by its digest as it is
read.

Needs git, what ``tools/enclave/kernel.py`` needs, and ``apt-get install libfaketime``; without
``--faketime`` both build on one day, and the record says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from release_table import describe  # noqa: E402

DISK_IMAGE: Final = "guest-cpu"
MODULES: Final = (
    "virtio_mmio",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "nsm",
)
LIBRARY: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
LATER: Final = "+34599600"
"""Seconds: 400 days and 11 hours."""
NOBODY: Final = 65534
_SAY: Final = (
    "import json,os,platform,time;os.umask(mask:=os.umask(0));"
    "print(json.dumps({'day':time.strftime('%Y-%m-%d',time.gmtime()),'user':os.getuid(),"
    "'umask':f'{mask:03o}','zone':time.strftime('%z'),'python':platform.python_version()}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Who builds, where and when.

    Attributes:
        folder: Its own; what it makes lies in it.
        python: Interpreter, of 3.11 or newer.
        user: Its number; ``None`` for the caller's.
        umask: Of its files.
        variables: Of its environment, beside ``PATH`` and what names the libraries.
    """

    folder: Path
    python: Path
    user: int | None
    umask: int
    variables: Mapping[str, str]

    @property
    def source(self) -> Path:
        """Its copy of the source."""
        return self.folder / ("source" if self.user is None else "the source")

    def run(self, *words: str | Path) -> str:
        """Run a program as this builder; what it says.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        rooms = sorted((self.source / "packages").glob("*/src"))
        places = [self.source / "src", *rooms, *libraries()]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.variables,
        }
        done = subprocess.run(  # noqa: S603  # our own words
            [str(word) for word in words],
            cwd=self.folder,
            env=environment,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            umask=self.umask,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def say(self) -> dict[str, Any]:
        """User, day, time zone, umask and interpreter, as a program of this builder sees them."""
        said: dict[str, Any] = json.loads(self.run(self.python, "-c", _SAY))
        return said

    def take_source(self, packed: Path) -> None:
        """Unpack the source, as this user with this umask."""
        self.source.mkdir()
        if self.user is not None:
            os.chown(self.source, self.user, self.user)
        self.run("tar", "-xmf", packed, "-C", self.source, "--no-same-permissions")

    def make(self, images: list[str], cache: Path) -> dict[str, Path]:
        """Name → what was made of it."""
        tools, images_at = self.source / "tools", self.folder / "images"
        kept = ("--cache", cache)
        found = {}
        kernel = self.folder / "kernel"
        self._step(tools / "enclave/kernel.py", kernel, *kept)
        modules = [word for name in MODULES for word in ("--module", kernel / f"{name}.ko")]
        for name in images:
            self._step(tools / "images/build.py", name, "--out", images_at, *kept)
            found[name] = images_at / name
            eif = self.folder / f"{name}.eif"
            self._step(
                *("-m", "sealtrain", "image", "eif", found[name], "--kernel", kernel / "vmlinuz"),
                *(*modules, "--out", eif),
            )
            found[eif.name] = eif
        if DISK_IMAGE in images:
            disk = self.folder / f"{DISK_IMAGE}.raw"
            self._step(tools / "images/disk.py", found[DISK_IMAGE], "--out", disk, *kept)
            found[disk.name] = disk
            found[f"{disk.name}.uki"] = disk.with_name(f"{disk.name}.uki")
        return found

    def _step(self, *words: str | Path) -> None:
        began = time.monotonic()
        self.run(self.python, *words)
        name = " ".join(Path(word).name for word in words[:5])
        print(f"{time.monotonic() - began:7.1f} s  {self.folder.name}: {name}", flush=True)


def libraries() -> list[Path]:
    """Where this interpreter has its packages; another one of its version reads them too."""
    return [Path(place) for place in sys.path if place.endswith("site-packages")]


def builders(out: Path, other_python: Path, faketime: Path | None) -> tuple[Builder, Builder]:
    """The two, whose folders are made here."""
    is_root = os.geteuid() == 0
    first, second = out / "first", out / "another" / "and-deeper" / "second"
    later = {} if faketime is None else {"LD_PRELOAD": str(faketime), "FAKETIME": LATER}
    made = (
        Builder(
            folder=first,
            python=Path(sys.executable),
            user=None,
            umask=0o022,
            variables={"TZ": "UTC", "LANG": "C.UTF-8", "PYTHONHASHSEED": "1"},
        ),
        Builder(
            folder=second,
            python=other_python,
            user=NOBODY if is_root else None,
            umask=0o077,
            variables={"TZ": "EAST-14", "LC_ALL": "C", "PYTHONHASHSEED": "2", **later},
        ),
    )
    for builder in made:
        builder.folder.mkdir(parents=True)
        if builder.user is not None:
            os.chown(builder.folder, builder.user, builder.user)
    return made


def kind_of(path: Path) -> str:
    """How ``release_table`` describes what was made."""
    if path.is_dir():
        return "image"
    return "eif" if path.suffix == ".eif" else "file"


def first_difference(one: Path, other: Path) -> str:
    """The first part in which two files or layouts of one name differ."""
    if one.is_dir():
        names = {
            str(path.relative_to(place)) for place in (one, other) for path in place.rglob("*")
        }
        for name in sorted(names):
            pair = (one / name, other / name)
            if not all(path.exists() for path in pair):
                return f"{name}, which only one of them has"
            if pair[0].is_file() and pair[0].read_bytes() != pair[1].read_bytes():
                return name
        return "no file"
    with one.open("rb") as left, other.open("rb") as right:
        at = 0
        while True:
            pieces = left.read(1 << 20), right.read(1 << 20)
            if pieces[0] != pieces[1]:
                pairs = zip(*pieces, strict=False)
                inner = next((n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, pieces)))
                return f"byte {at + inner}"
            if not pieces[0]:
                return "no byte"
            at += len(pieces[0])


def compare(
    made: tuple[Mapping[str, Path], Mapping[str, Path]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the table says of each thing, and a line for each that came out unlike."""
    found, unlike = [], []
    for name, path in made[0].items():
        rows = [describe(kind_of(each[name]), name, each[name]) for each in made]
        found.append(rows[0])
        if rows[0] != rows[1]:
            unlike.append(f"{name}: {first_difference(path, made[1][name])}")
    return found, unlike


def git(*words: str) -> str:
    """What git says of this repository."""
    done = subprocess.run(  # noqa: S603  # our own words
        ["git", "-C", str(ROOT), *words],  # noqa: S607
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def main() -> int:
    """Build twice, compare, and write the record; the exit status."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("out", type=Path, help="folder to write; it must not exist")
    words.add_argument("--image", action="append", default=[], help="[broker and guest-cpu]")
    words.add_argument("--cache", type=Path, default=ROOT / ".images", help="folder for packages")
    words.add_argument("--other-python", type=Path, default=Path(sys.executable))
    words.add_argument("--faketime", type=Path, nargs="?", const=LIBRARY, help=f"[{LIBRARY}]")
    given = words.parse_args()
    if given.faketime is not None and not given.faketime.is_file():
        words.error(f"{given.faketime} is missing: apt-get install libfaketime")
    out: Path = given.out.resolve()
    out.mkdir()
    given.cache.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "HEAD")
    packed = out / "source.tar"
    git("archive", "--format=tar", "-o", str(packed), commit)
    packed.chmod(0o644)
    said, made = [], []
    for builder in builders(out, given.other_python, given.faketime):
        said.append(builder.say())
        print(json.dumps(said[-1]), flush=True)
        builder.take_source(packed)
        made.append(builder.make(given.image or ["broker", DISK_IMAGE], given.cache.resolve()))
    found, unlike = compare((made[0], made[1]))
    for line in unlike:
        print(f"differs: {line}", file=sys.stderr)
    if unlike:
        return 1
    record = {"commit": commit, "builders": said, "files": found}
    (out / "digests.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for row in found:
        print(f"equal: {row['name']}  {row['digest']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
