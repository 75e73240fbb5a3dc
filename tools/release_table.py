"""Write the table of releases: digests of images, disk and enclave image file, and their registers.

Usage::

    python tools/release_table.py            write docs/reference/releases.md from releases.json
    python tools/release_table.py --check    fail where the page is not the current one
    python tools/release_table.py --add VERSION --twice digests.json
    python tools/release_table.py --add VERSION --file NAME=PATH --eif NAME=PATH
    python tools/release_table.py --source --twice digests.json

``--add`` appends what is named to ``docs/reference/releases.json``: a file by its SHA-256 and
length, an enclave image file with PCR 0 to 2 besides, an OCI layout by its digest, or all that
``tools/images/twice.py`` built twice with equal digests. A release is added once, by the person who
made it; whoever builds the same files compares their digests. ``--source`` has the page show, until
the next release, what was built of a source that is not released: each later one replaces it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sealtrain.base.digests import file_sha256
from sealtrain.image.layout import describe_image
from sealtrain.image.machine.enclavefile import measure_enclave

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
DATA, PAGE = FOLDER / "releases.json", FOLDER / "releases.md"
HEAD = """# Releases

The files of each release and their digests. A build from the source of a release gives the same
digests again ([images](../../spec/images.md), [guest's disk](../../spec/guest-image.md)); an owner
who has built the files states it in a
[verification record](../../spec/images.md#10-verification-record).

Written by `tools/release_table.py` from `releases.json`.

"""
EMPTY = """**Nothing was released yet**: the table is empty. `make images` makes the images, and the
pages above say how to make a disk and an enclave image file from them.
"""
OF_SOURCE = """
## Source that is not released

Of commit `{commit}`; every later commit that changes code or pins has other digests. No release,
and nothing to run: it shows that two builders get the same bytes, by `tools/images/twice.py`.

| builder | day | user | umask | time zone | Python |
|---|---|---:|---|---|---|
{builders}

"""
TABLE_HEAD = ["| release | file | digest | registers |", "|---|---|---|---|"]
VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[a-z]+[0-9]+)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def page(releases: list[dict[str, Any]]) -> str:
    """The page of these releases, newest first; then what was built of a later source."""
    released = [release for release in releases if "version" in release]
    text = HEAD
    if released:
        lines = [line for each in reversed(released) for line in rows(each["version"], each)]
        text += "\n".join([*TABLE_HEAD, *lines]) + "\n"
    else:
        text += EMPTY
    for source in releases[len(released) :]:
        builders = "\n".join(
            f"| {name} | {said['day']} | {said['user']} | {said['umask']} | {said['zone']} "
            f"| {said['python']} |"
            for name, said in zip(("first", "second"), source["builders"], strict=True)
        )
        text += OF_SOURCE.format(commit=source["commit"], builders=builders)
        text += "\n".join([*TABLE_HEAD, *rows("none", source)]) + "\n"
    return text


def rows(version: str, release: dict[str, Any]) -> list[str]:
    """Rows of the table."""
    found = []
    for item in release["files"]:
        registers = "; ".join(f"{name} `{value}`" for name, value in item["registers"].items())
        size = f", {item['bytes']} bytes" if "bytes" in item else ""
        found.append(
            f"| {version} | {item['name']}{size} | `{item['digest']}` | {registers or 'none'} |"
        )
    return found


def describe(kind: str, name: str, path: Path) -> dict[str, Any]:
    """What the table says of a file or layout."""
    if kind == "image":
        return {"name": name, "digest": describe_image(path).digest, "registers": {}}
    registers = {}
    if kind == "eif":
        found = measure_enclave(path.read_bytes())
        registers = {f"PCR {number}": value for number, value in sorted(found.items())}
    return {
        "name": name,
        "bytes": path.stat().st_size,
        "digest": f"sha256:{file_sha256(path)}",
        "registers": registers,
    }


def add(version: str, items: Iterable[dict[str, Any]], data: Path = DATA) -> None:
    """Append a release; one that is there is never changed, and no unreleased source stays.

    Raises:
        ValueError: No version or name, a name twice, or a release that is there.
    """
    releases = [each for each in json.loads(data.read_text("utf-8")) if "version" in each]
    files = list(items)
    if not VERSION.fullmatch(version) or any(each["version"] == version for each in releases):
        raise ValueError("a release needs a version, and is added once")
    require_named(files)
    write(data, [*releases, {"version": version, "files": files}])


def set_source(twice: dict[str, Any], data: Path = DATA) -> None:
    """Show what was built twice of a source that is not released, in place of an earlier one.

    Args:
        twice: The record of ``tools/images/twice.py``.
        data: The file to change.

    Raises:
        ValueError: No commit or name, a name twice, or not two builders.
    """
    releases = [each for each in json.loads(data.read_text("utf-8")) if "version" in each]
    if not COMMIT.fullmatch(twice["commit"]) or len(twice["builders"]) != 2:
        raise ValueError("such a source has a commit and two builders")
    require_named(twice["files"])
    wanted = {name: twice[name] for name in ("commit", "builders", "files")}
    write(data, [*releases, wanted])


def require_named(files: list[dict[str, Any]]) -> None:
    """Return if there are files, each with a name of its own.

    Raises:
        ValueError: There is none, or a name is none or comes twice.
    """
    names = [item["name"] for item in files]
    if not names or len(set(names)) != len(names) or not all(map(NAME.fullmatch, names)):
        raise ValueError("there are files, each with a name of its own")


def write(data: Path, releases: list[dict[str, Any]]) -> None:
    """Write the file that the page is made from."""
    data.write_text(json.dumps(releases, indent=1) + "\n", "utf-8")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--add", metavar="VERSION")
    goal.add_argument("--source", action="store_true")
    parser.add_argument("--twice", type=Path, metavar="FILE")
    for kind in ("file", "eif", "image"):
        parser.add_argument(f"--{kind}", action="append", default=[], metavar="NAME=PATH")
    given = parser.parse_args()
    twice = None if given.twice is None else json.loads(given.twice.read_text("utf-8"))
    if given.source:
        if twice is None:
            parser.error("--source needs --twice")
        set_source(twice)
    if given.add:
        named = [
            (kind, *word.partition("=")[::2])
            for kind in ("image", "file", "eif")
            for word in getattr(given, kind)
        ]
        built = [] if twice is None else twice["files"]
        files = [describe(kind, name, Path(path)) for kind, name, path in named]
        add(given.add, [*built, *files])
    text = page(json.loads(DATA.read_text("utf-8")))
    if given.check:
        if PAGE.read_text("utf-8") != text:
            print("stale: run python tools/release_table.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
