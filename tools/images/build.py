"""Make an image out of its pins (spec/images.md); the same source gives the same digest.

Usage: ``python tools/images/build.py NAME --out FOLDER [--cache FOLDER] [--key FILE]``

1. Packages are fetched by digest, into the cache.
2. Three layers are written: Debian's files, the wheels, sealtrain.
3. FOLDER/NAME gets the OCI layout; beside it lie its SBOM and its provenance, signed with a key.

It needs no root, no container tool and no Debian.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fetching import debian_file, pinned_wheels
from packed import Content, read_debian, wheel_content
from statements import provenance, sbom

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.image.account import verify_image
from sealtrain.image.layer import write_layer
from sealtrain.image.layout import (
    CONFIG_TYPE,
    INDEX_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    TITLE,
    read_image,
)
from sealtrain.image.own_files import CONFIG, folders_of, own_files
from sealtrain.image.packages import code_of, keeps
from sealtrain.image.pins import Pins, load_image_recipe, load_pins
from sealtrain.recipe.installation import record_digest

ROOT = Path(__file__).resolve().parents[2]


def build(source: Path, name: str, out: Path, cache: Path) -> str:
    """Write the OCI layout of an image to ``out``; returns its digest."""
    pins = load_pins(source, name)
    debian = _debian(pins, cache)
    wheels = _wheels(pins, cache)
    own = own_files(source, load_image_recipe(source, name).rooms)
    folders = folders_of([*debian, *wheels, *own])
    layout = _Layout(out)
    layout.add(debian | {name: (entry, io.BytesIO) for name, entry in folders.items()})
    layout.add(wheels)
    layout.add({name: (file.entry, file.open) for name, file in own.items()})
    return layout.close(name)


def _debian(pins: Pins, cache: Path) -> Content:
    found: Content = {}
    for name, pin in sorted(pins.debian.items()):
        package = read_debian(debian_file(pin, pins.debian_date, cache))
        if (package.name, package.files_sha256()) != (name, pin.files_sha256):
            raise SystemExit(f"{name} has other files than the pins say: tools/images/pin.py")
        _merge(found, package.content)
    return found


def _wheels(pins: Pins, cache: Path) -> Content:
    found: Content = {}
    paths = pinned_wheels(pins.wheels, cache)
    for (name, pin), path in zip(sorted(pins.wheels.items()), paths, strict=True):
        content, record = wheel_content(path)
        if record_digest(record) != pin.record_sha256:
            raise SystemExit(f"{name} has other files than the pins say: tools/images/pin.py")
        _merge(found, content)
    return found


def _merge(found: Content, more: Content) -> None:
    for name, (entry, open_file) in more.items():
        if name in found and found[name][0] != entry:
            raise SystemExit(f"two packages have different files at {name}")
        found[name] = (entry, open_file)


class _Layout:
    """An OCI layout that is being written."""

    def __init__(self, out: Path) -> None:
        self._blobs = out / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._out = out
        self._layers: list[dict[str, JsonValue]] = []

    def add(self, content: Content) -> None:
        unnamed = self._blobs / "layer"
        with unnamed.open("wb") as file:
            entries = [entry for entry, _ in content.values()]
            digest = write_layer(entries, lambda entry: content[entry.name][1](), file)
        path = unnamed.rename(self._blobs / digest)
        self._layers.append(_descriptor(LAYER_TYPE, digest, path.stat().st_size))

    def close(self, name: str) -> str:
        config = self._blob(
            CONFIG_TYPE,
            {
                "architecture": "amd64",
                "os": "linux",
                "created": "1970-01-01T00:00:00Z",
                "config": dict(CONFIG),
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [layer["digest"] for layer in self._layers],
                },
            },
        )
        manifest = self._blob(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": config,
                "layers": list(self._layers),
                "annotations": {TITLE: name},
            },
        )
        index: JsonValue = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest]}
        (self._out / "index.json").write_bytes(canonical_json(index))
        (self._out / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))
        return str(manifest["digest"])

    def _blob(self, kind: str, document: Mapping[str, Any]) -> dict[str, JsonValue]:
        data = canonical_json(dict(document))
        (self._blobs / sha256_hex(data)).write_bytes(data)
        return _descriptor(kind, sha256_hex(data), len(data))


def _descriptor(kind: str, digest: str, size: int) -> dict[str, JsonValue]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def main() -> int:
    """Build one image, account for it, and write its statements."""
    words = argparse.ArgumentParser(description="Make an image out of its pins.")
    words.add_argument("name")
    words.add_argument("--source", type=Path, default=ROOT, help="source of sealtrain [this one]")
    words.add_argument("--out", type=Path, required=True, help="folder for the layout")
    words.add_argument("--cache", type=Path, default=ROOT / ".images", help="folder for packages")
    words.add_argument("--key", type=Path, help="identity that signs the provenance")
    given = words.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    layout: Path = given.out / given.name
    if layout.exists():
        shutil.rmtree(layout)
    digest = build(given.source, given.name, layout, given.cache)
    image = read_image(layout, keeps)
    account = verify_image(image, given.source)
    code = code_of(image)
    listed = canonical_json(sbom(account.pins, digest, code))
    (given.out / f"{given.name}.cdx.json").write_bytes(listed)
    (given.out / f"{given.name}.provenance.json").write_bytes(
        provenance(account.pins, digest, code, key=given.key)
    )
    print(f"{given.name}  {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
