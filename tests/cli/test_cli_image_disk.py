"""``sealtrain image verify --disk``: every byte of a guest's disk is accounted for."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from boot_files import program
from container_world import ImageWorld, build, make_files_deb, make_image_world
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import DataInvalid, ImageRefused, UsageError
from sealtrain.image.disk.debian_package import read_package
from sealtrain.image.disk.guest_disk import FIRST_PROGRAM, initrd_entries, write_guest_disk
from sealtrain.image.disk.inputs import (
    DISK_PINS,
    GPU_LIST,
    GpuFiles,
    guest_files,
    load_gpu_files,
    read_pinned,
)

pytestmark = pytest.mark.claim("C714")
REPOSITORY = Path(__file__).resolve().parents[2]
RELEASE = "7.3.4-toy"
STUB = program((".text", b"stub"), *((f".data{number}", b"x") for number in range(7)))
PACKAGES = {
    "kernel": {f"usr/lib/modules/{RELEASE}/vmlinuz": program((".text", b"kernel"))},
    "modules": {f"usr/lib/modules/{RELEASE}/kernel/a/dm-verity.ko": b"x\0depends=\0y"},
    "stub": {"usr/lib/systemd/boot/efi/linuxx64.efi.stub": STUB},
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class DiskWorld:
    """An image, its source, the packages of a disk, and the disk."""

    image: ImageWorld
    packages: Path
    disk: Path

    def written(self, folder: Path, gpu: GpuFiles | None = None) -> bytes:
        out = io.BytesIO()
        folder.mkdir()
        with guest_files(
            self.image.layout, self.image.source,
            lambda pin: read_pinned(self.packages, pin), folder, gpu,
        ) as files:  # fmt: skip
            write_guest_disk(files, out)
        return out.getvalue()

    def verify(self, disk: Path, *more: str | Path) -> Any:
        words = ["image", "verify", self.image.layout, "--source", self.image.source, "--json"]
        words += ["--disk", disk, "--packages", self.packages, *more]
        return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> DiskWorld:
    folder = tmp_path_factory.mktemp("disk")
    image, packages = make_image_world(folder / "image"), folder / "packages"
    for name in FIRST_PROGRAM:
        place = image.source / "src/sealtrain" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "src/sealtrain" / name, place)
    packages.mkdir()
    pins: dict[str, Any] = {"version": 1, "debian_date": "20261101T000000Z"}
    for name, files in PACKAGES.items():
        deb = make_files_deb(packages / f"{name}_1_amd64.deb", files)
        digest = sha256(deb.read_bytes())
        pins[name] = {"version": "1", "path": f"pool/main/{name}_1_amd64.deb", "sha256": digest}
    (image.source / DISK_PINS).parent.mkdir(parents=True)
    (image.source / DISK_PINS).write_text(json.dumps(pins))
    shutil.rmtree(image.layout)
    build(image)
    made = DiskWorld(image, packages, folder / "disk.raw")
    made.disk.write_bytes(made.written(folder / "unpacked"))
    return made


def test_a_disk_is_accounted_for_with_its_image(world: DiskWorld) -> None:
    done = world.verify(world.disk)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["disk"] == sha256(world.disk.read_bytes())


@pytest.mark.parametrize("part", ["partition table", "UKI", "root", "behind"])
def test_a_disk_with_another_byte_is_refused(world: DiskWorld, tmp_path: Path, part: str) -> None:
    data = bytearray(world.disk.read_bytes())
    at = {"partition table": 512 + 60, "UKI": data.index(b"# Linux") if b"# Linux" in data else
          data.index(b"import sys"), "root": data.index(b"an interpreter"),
          "behind": len(data) - 1}[part]  # fmt: skip
    data[at] ^= 1
    (tmp_path / "disk").write_bytes(data)
    assert isinstance(world.verify(tmp_path / "disk").exception, ImageRefused)


@pytest.mark.parametrize("name", [*PACKAGES])
def test_a_package_that_is_another_or_missing_is_refused(
    world: DiskWorld, tmp_path: Path, name: str
) -> None:
    shutil.copytree(world.packages, tmp_path / "packages")
    other = DiskWorld(world.image, tmp_path / "packages", world.disk)
    make_files_deb(other.packages / f"{name}_1_amd64.deb", {"usr/bin/sh": b"#!"})
    assert isinstance(other.verify(world.disk).exception, ImageRefused)
    (other.packages / f"{name}_1_amd64.deb").unlink()
    assert isinstance(other.verify(world.disk).exception, ImageRefused)


def test_words_that_say_nothing_alone_are_refused(world: DiskWorld, tmp_path: Path) -> None:
    words = ["image", "verify", world.image.layout, "--source", world.image.source]
    for more in (
        ("--disk", world.disk), ("--packages", world.packages), ("--gpu-files", tmp_path),
    ):  # fmt: skip
        done = CliRunner().invoke(app, [*map(str, (*words, *more))])
        assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    "package",
    [b"", b"!<arch>\n", b"!<arch>\n" + b"x" * 59, b"!<arch>\n" + b" " * 60,
     b"!<arch>\ndata.tar        0           0     0     100644  99        `\nshort",
     b"!<arch>\ndata.tar        0           0     0     100644  4         `\n\0\1\2\3"],
)  # fmt: skip
def test_a_malformed_package_is_refused(package: bytes) -> None:
    with pytest.raises(ImageRefused):
        read_package(package)


# --- GPUs -----------------------------------------------------------------------------------------

FIRMWARE = "nvidia/580.95.05/gsp_ga10x.bin"


def gpu_folder(folder: Path, **changes: Any) -> Path:
    files = {"nvidia.ko": b"n\0depends=\0", "nvidia_uvm.ko": b"u\0depends=nvidia\0",
             FIRMWARE: b"firmware"}  # fmt: skip
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    listed = {
        "version": 1, "driver": "580.95.05", "kernel": RELEASE,
        "modules": {name: sha256(files[name]) for name in ("nvidia.ko", "nvidia_uvm.ko")},
        "firmware": {FIRMWARE: sha256(files[FIRMWARE])},
    } | changes  # fmt: skip
    (folder / GPU_LIST).write_text(json.dumps(listed))
    return folder


def test_a_disk_for_gpus_has_their_files_and_is_accounted_for_with_them(
    world: DiskWorld, tmp_path: Path
) -> None:
    folder = gpu_folder(tmp_path / "gpu")
    gpu = load_gpu_files(folder)
    with guest_files(
        world.image.layout, world.image.source, lambda pin: read_pinned(world.packages, pin),
        tmp_path, gpu,
    ) as files:  # fmt: skip
        found = initrd_entries(files)
        order = found["modules/order"].data.split()
        assert order == [b"dm_verity", b"nvidia", b"nvidia_uvm"]
        assert files.entries[f"lib/firmware/{FIRMWARE}"].size == len(b"firmware")
    (tmp_path / "disk").write_bytes(world.written(tmp_path / "unpacked", gpu))
    assert world.verify(tmp_path / "disk", "--gpu-files", folder).exit_code == 0
    assert isinstance(world.verify(tmp_path / "disk").exception, ImageRefused)
    assert isinstance(world.verify(world.disk, "--gpu-files", folder).exception, ImageRefused)


@pytest.mark.parametrize(
    "changes",
    [
        {"modules": {}}, {"firmware": {}}, {"modules": {"nvidia.ko": ""}},
        {"modules": {"nvidia.ko": None}}, {"modules": {"../nvidia.ko": "00" * 32}},
        {"modules": ["nvidia.ko"]}, {"firmware": {"nvidia/580.95.05/../x.bin": "00" * 32}},
        {"firmware": {"/etc/passwd": "00" * 32}}, {"version": 2}, {"further": 1},
    ],
)  # fmt: skip
def test_a_list_without_digests_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DataInvalid):
        load_gpu_files(gpu_folder(tmp_path, **changes))


@pytest.mark.parametrize("odd", ["another", "missing", "further", "no list"])
def test_files_beside_the_list_are_refused(tmp_path: Path, odd: str) -> None:
    folder = gpu_folder(tmp_path)
    if odd == "another":
        (folder / "nvidia.ko").write_bytes(b"other")
    elif odd == "missing":
        (folder / FIRMWARE).unlink()
    elif odd == "further":
        (folder / "nvidia_drm.ko").write_bytes(b"")
    else:
        (folder / GPU_LIST).unlink()
    with pytest.raises((ImageRefused, DataInvalid)):
        load_gpu_files(folder)


def test_modules_for_another_kernel_are_refused(world: DiskWorld, tmp_path: Path) -> None:
    gpu = load_gpu_files(gpu_folder(tmp_path / "gpu", kernel="6.12.1"))
    with pytest.raises(ImageRefused) as caught:
        world.written(tmp_path / "unpacked", gpu)
    assert caught.value.got == "6.12.1"
