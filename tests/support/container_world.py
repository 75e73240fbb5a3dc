"""A small source of sealtrain with an image of its own: one Debian package, one wheel."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealtrain.base.distributions import DISTRIBUTIONS, code_folder

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "toy"
_VERSION = "3.11.2-6"


@dataclass(frozen=True, slots=True)
class ImageWorld:
    """Where source, packages and image lie.

    Attributes:
        source: Of sealtrain, with ``deploy/images/toy``.
        layout: The image as an OCI layout.
        cache: Of packages.
    """

    source: Path
    layout: Path
    cache: Path


def make_image_world(folder: Path) -> ImageWorld:
    """Write a source that has the real command line's files in small, pin it and build it."""
    source, cache = folder / "source", folder / "cache"
    cache.mkdir(parents=True)
    for name in ("sealtrain", "sealtrain-chain", "sealtrain-together", "sealtrain-rehearsal"):
        package = DISTRIBUTIONS[name]
        module = code_folder(source, name) / package / "__init__.py"
        module.parent.mkdir(parents=True)
        module.write_text(f'"""{package}."""\n')
    (source / "src/sealtrain/base").mkdir()
    shutil.copy(REPOSITORY / "src/sealtrain/base/version.py", source / "src/sealtrain/base")
    (source / "recipes").mkdir()
    (source / "recipes/sft.yaml").write_text("version: 1\n")
    (source / "pyproject.toml").write_text(
        '[project]\nname = "sealtrain"\ndependencies = ["toypackage>=1"]\n'
        '[project.optional-dependencies]\ntrain = ["toypackage>=1"]\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["src/sealtrain"]\n'
        '[tool.hatch.build.targets.wheel.shared-data]\n"recipes" = "share/sealtrain/recipes"\n'
    )
    deb, wheel = make_deb(cache / "toy.deb"), make_wheel(cache)
    deb = deb.rename(cache / f"{_sha256(deb)}.deb")
    recipe = source / "deploy/images" / NAME
    recipe.mkdir(parents=True)
    (recipe / "image.yaml").write_text(
        f"name: {NAME}\nextras: []\npackages: []\ndebian: [python3.11-minimal]\n"
    )
    (recipe / "pins.json").write_bytes(_pins(deb, wheel))
    world = ImageWorld(source, folder / "images" / NAME, cache)
    build(world)
    return world


def build(world: ImageWorld) -> str:
    """Build the image as ``make images`` does; returns its digest."""
    done = subprocess.run(
        [
            sys.executable, REPOSITORY / "tools/images/build.py", NAME, "--source", world.source,
            "--out", world.layout.parent, "--cache", world.cache,
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def make_deb(path: Path) -> Path:
    """A package with an interpreter, a link, documents that images leave out, and a script."""
    control = _tarred(
        {"./control": b"Package: python3.11-minimal\nVersion: 3.11.2-6\nArchitecture: amd64\n"},
        scripts={"./postinst": b"#!/bin/sh\nexit 1\n"},
    )
    data = _tarred(
        {
            "./usr/share/doc/python3.11-minimal/copyright": b"a licence\n",
            "./usr/share/doc/python3.11-minimal/changelog.gz": b"left out",
            "./usr/share/man/man1/python3.11.1.gz": b"left out",
        },
        scripts={"./usr/bin/python3.11": b"\x7fELF an interpreter"},
        links={"./usr/bin/python3": "python3.11"},
    )
    return pack_deb(path, control, data)


def make_files_deb(path: Path, files: dict[str, bytes]) -> Path:
    """A package with these files and nothing else."""
    control = _tarred({"./control": b"Package: toy\nVersion: 1\nArchitecture: amd64\n"})
    data = _tarred({f"./{name}": content for name, content in files.items()})
    return pack_deb(path, control, data)


def pack_deb(path: Path, control: bytes, data: bytes) -> Path:
    """A package of two archives."""
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": control, "data.tar.xz": data}
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, part in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode())
            file.write(part + b"\n" * (len(part) % 2))
    return path


def make_wheel(folder: Path) -> Path:
    """A wheel with a module, two programs, a launcher that images leave out, and its metadata."""
    path = folder / "toypackage-1.0-py3-none-any.whl"
    files = {
        "toypackage/__init__.py": b"VALUE = 1\n",
        "toypackage/tool": b"#!/usr/bin/python3.11\n",
        "toypackage/native.so": b"\x7fELF a library",
        "toypackage-1.0.data/scripts/toy": b"#!python\n",
        "toypackage-1.0.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: toypackage\nVersion: 1.0\n"
        ),
    }
    rows = [f"{name},sha256={_recorded(data)},{len(data)}\n" for name, data in files.items()]
    files["toypackage-1.0.dist-info/RECORD"] = "".join(
        [*rows, "toypackage-1.0.dist-info/RECORD,,\n"]
    ).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def _pins(deb: Path, wheel: Path) -> bytes:
    """The pins by the words of spec/images.md, not by the code that is tried."""
    interpreter, licence = b"\x7fELF an interpreter", b"a licence\n"
    control = b"Package: python3.11-minimal\nVersion: 3.11.2-6\nArchitecture: amd64\n"
    files = {
        "usr/bin/python3": "link python3.11",
        "usr/bin/python3.11": f"0755 {hashlib.sha256(interpreter).hexdigest()}",
        "usr/share/doc/python3.11-minimal/copyright": f"0644 {hashlib.sha256(licence).hexdigest()}",
        "var/lib/dpkg/status.d/python3.11-minimal": f"0644 {hashlib.sha256(control).hexdigest()}",
    }
    with zipfile.ZipFile(wheel) as archive:
        record = {
            name: f"sha256={_recorded(archive.read(name))}"
            for name in archive.namelist()
            if not name.endswith("RECORD") and ".data/" not in name
        }
    pins = {
        "version": 1,
        "name": NAME,
        "python": "3.11.2",
        "debian_date": "20261101T000000Z",
        "debian": {
            "python3.11-minimal": {
                "version": _VERSION,
                "path": "pool/main/p/python3.11/python3.11-minimal_3.11.2-6_amd64.deb",
                "sha256": _sha256(deb),
                "files_sha256": _digest(files),
            }
        },
        "wheels": {
            "toypackage": {
                "version": "1.0",
                "sha256": _sha256(wheel),
                "record_sha256": _digest(record),
            }
        },
    }
    return json.dumps(pins).encode()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recorded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _tarred(
    files: dict[str, bytes],
    *,
    scripts: dict[str, bytes] | None = None,
    links: dict[str, str] | None = None,
) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for mode, some in ((0o644, files), (0o755, scripts or {})):
            for name, data in some.items():
                head = tarfile.TarInfo(name)
                head.size, head.mode = len(data), mode
                tar.addfile(head, io.BytesIO(data))
        for name, target in (links or {}).items():
            head = tarfile.TarInfo(name)
            head.type, head.linkname = tarfile.SYMTYPE, target
            tar.addfile(head)
    return packed.getvalue()


Change = Callable[[dict[str, Any]], None]


def rewritten(
    layout: Path,
    *,
    layers: Callable[[list[bytes]], list[bytes]] = list,
    manifest: Change = lambda _: None,
    config: Change = lambda _: None,
    packed: bool = False,
) -> None:
    """Change an image as its operator can: every digest in it is right again afterwards.

    Args:
        layout: Changed in place.
        layers: The tars → other tars.
        manifest: Changes the manifest's fields.
        config: Changes the config's fields.
        packed: Compress the layers, as a registry does.
    """
    blobs = layout / "blobs/sha256"
    index = json.loads((layout / "index.json").read_bytes())
    told = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
    runs = json.loads((blobs / told["config"]["digest"][7:]).read_bytes())
    tars = layers([(blobs / layer["digest"][7:]).read_bytes() for layer in told["layers"]])
    runs["rootfs"]["diff_ids"] = [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    config(runs)
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if packed else "")
    told["layers"] = [
        _blob(blobs, kind, gzip.compress(tar, mtime=1) if packed else tar) for tar in tars
    ]
    told["config"] = _blob(blobs, told["config"]["mediaType"], _canonical(runs))
    manifest(told)
    index["manifests"] = [_blob(blobs, told["mediaType"], _canonical(told))]
    (layout / "index.json").write_bytes(_canonical(index))


def _blob(blobs: Path, kind: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


Edit = Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]


def edited(tar: bytes, edit: Edit, *, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar with other entries, sorted and written as an image's layer is."""
    found: list[tuple[tarfile.TarInfo, bytes]] = []
    with tarfile.open(fileobj=io.BytesIO(tar)) as old:
        for member in old:
            source = old.extractfile(member) if member.isreg() else None
            found += edit(member, b"" if source is None else source.read())
    return written(found, form=form)


def written(
    entries: list[tuple[tarfile.TarInfo, bytes]], *, form: int = tarfile.GNU_FORMAT
) -> bytes:
    """A tar of entries in the order of their names."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for head, data in sorted(entries, key=lambda one: one[0].name + "/" * one[0].isdir()):
            head.size = len(data)
            tar.addfile(head, io.BytesIO(data))
    return made.getvalue()


def file(name: str, data: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """A file of a layer."""
    head = tarfile.TarInfo(name)
    head.mode = mode
    return head, data
