"""Write the table of releases: digests of images, disk and enclave image file, and their registers.

Usage::

    python tools/release_table.py            write docs/reference/releases.md from releases.json
    python tools/release_table.py --check    fail where the page is not the current one
    python tools/release_table.py --add VERSION --file NAME=PATH --eif NAME=PATH

``--add`` appends what is named to ``docs/reference/releases.json``: a file by its SHA-256 and
length, an enclave image file with PCR 0 to 2 besides, an OCI layout by its digest. A release is
added once, by the person who made it; whoever builds the same files compares their digests.
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
VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[a-z]+[0-9]+)?")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def page(releases: list[dict[str, Any]]) -> str:
    """The page of these releases, newest first."""
    if not releases:
        return HEAD + EMPTY
    lines = ["| release | file | digest | registers |", "|---|---|---|---|"]
    for release in reversed(releases):
        for item in release["files"]:
            registers = "; ".join(f"{name} `{value}`" for name, value in item["registers"].items())
            size = f", {item['bytes']} bytes" if "bytes" in item else ""
            lines.append(
                f"| {release['version']} | {item['name']}{size} | `{item['digest']}` "
                f"| {registers or 'none'} |"
            )
    return HEAD + "\n".join(lines) + "\n"


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
    """Append a release; one that is there is never changed.

    Raises:
        ValueError: No version or name, a name twice, or a release that is there.
    """
    releases = json.loads(data.read_text("utf-8"))
    files = list(items)
    names = [item["name"] for item in files]
    if not VERSION.fullmatch(version) or not all(map(NAME.fullmatch, names)) or not files:
        raise ValueError("a release needs a version and files with names")
    if len(set(names)) != len(names) or any(each["version"] == version for each in releases):
        raise ValueError("a release and its files are added once")
    releases.append({"version": version, "files": files})
    data.write_text(json.dumps(releases, indent=1) + "\n", "utf-8")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", metavar="VERSION")
    for kind in ("file", "eif", "image"):
        parser.add_argument(f"--{kind}", action="append", default=[], metavar="NAME=PATH")
    given = parser.parse_args()
    if given.add:
        named = [
            (kind, *word.partition("=")[::2])
            for kind in ("image", "file", "eif")
            for word in getattr(given, kind)
        ]
        add(given.add, [describe(kind, name, Path(path)) for kind, name, path in named])
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
