"""``sealtrain image eif``: what it writes, and what it refuses to compare or to make."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import AlreadyExists, ImageRefused, UsageError
from sealtrain.image.layer import LayerEntry
from sealtrain.image.machine.cpio import MAX_FILE_BYTES, CpioWriter
from sealtrain.image.machine.enclavebuild import boot_ramdisk, least_memory

pytestmark = pytest.mark.claim("C670")

VECTORS = Path(__file__).parents[2] / "vectors" / "image" / "enclave.json"
CASE: dict[str, Any] = json.loads(VECTORS.read_text("utf-8"))["cases"][0]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, data in CASE["layout"].items():
        file = tmp_path / "layout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
    (tmp_path / "vmlinuz").write_bytes(base64.b64decode(CASE["kernel"]))
    for name, data in CASE["modules"]:
        (tmp_path / f"{name.replace('_', '-')}.ko").write_bytes(base64.b64decode(data))
    return tmp_path


def run(files: Path, *words: str | Path) -> Any:
    modules = [word for name, _ in CASE["modules"] for word in ("--module", _module(files, name))]
    fixed = [files / "layout", "--kernel", files / "vmlinuz", *modules]
    return CliRunner().invoke(app, ["image", "eif", *map(str, [*fixed, *words])])


def _module(files: Path, name: str) -> Path:
    return files / f"{name.replace('_', '-')}.ko"


def refusal(files: Path, *words: str | Path) -> Any:
    return run(files, *words).exception


def test_a_file_is_written_once_and_compared_with_its_parts(files: Path) -> None:
    out = files / "image.eif"
    done = run(files, "--out", out, "--json")
    said = json.loads(done.stdout)
    assert (len(out.read_bytes()), said["size"]) == (CASE["eif_bytes"], CASE["eif_bytes"])
    assert said["values"] == {name: CASE[name] for name in ("pcr0", "pcr1", "pcr2")}
    assert said["memory_mib"] == least_memory(said["size"])
    assert run(files, "--compare", out).exit_code == 0
    assert isinstance(refusal(files, "--out", out), AlreadyExists)
    assert sorted(path.name for path in files.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("at", [560, 900, 1400, -5])
def test_another_file_is_named_by_what_differs(files: Path, at: int) -> None:
    """A section differs by a byte, and the checksum is right."""
    out = files / "image.eif"
    run(files, "--out", out)
    made = bytearray(out.read_bytes())
    made[at] ^= 1
    made[544:548] = zlib.crc32(made[548:], zlib.crc32(made[:544])).to_bytes(4, "big")
    out.write_bytes(made)
    error = refusal(files, "--compare", out)
    assert isinstance(error, ImageRefused)
    assert error.check == "EIF"


def test_another_default_of_memory_is_another_file(files: Path) -> None:
    out = files / "image.eif"
    run(files, "--out", out, "--memory-mib", "512")
    assert run(files, "--compare", out, "--memory-mib", "512").exit_code == 0
    assert isinstance(refusal(files, "--compare", out), ImageRefused)
    assert isinstance(refusal(files, "--compare", out, "--processors", "3"), ImageRefused)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--out", "new", "--compare", "vmlinuz"),
        ("--out", "new", "--module", "vmlinuz"),
        ("--out", "new", "--module", "nsm.ko"),
        ("--out", "new", "--module", "nsm.ko.xz"),
    ],
    ids=["neither", "both", "no module", "twice", "packed"],
)
def test_words_that_make_no_sense_are_refused(files: Path, words: tuple[str, ...]) -> None:
    placed = [word if word.startswith("--") else files / word for word in words]
    assert isinstance(refusal(files, *placed), UsageError)
    assert not (files / "new").exists()


def test_a_file_that_is_no_eif_is_refused(files: Path) -> None:
    assert isinstance(refusal(files, "--compare", files / "vmlinuz"), ImageRefused)


def test_a_kernel_that_is_none_is_refused(files: Path) -> None:
    (files / "vmlinuz").write_bytes(b"\x7fELF".ljust(4096, b"\0"))
    error = refusal(files, "--out", files / "new")
    assert isinstance(error, ImageRefused)
    assert error.check == "kernel"
    assert not (files / "new").exists()


def test_a_layout_with_a_wrong_digest_writes_nothing(files: Path) -> None:
    for blob in (files / "layout/blobs/sha256").iterdir():
        if blob.stat().st_size > 5000:
            blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
    assert isinstance(refusal(files, "--out", files / "new"), ImageRefused)
    assert not (files / "new").exists()


def test_modules_keep_their_order_and_have_names_of_the_kernel() -> None:
    one = boot_ramdisk({"a": b"\x7fELF1", "b": b"\x7fELF2"}, "sha256:00")
    other = boot_ramdisk({"b": b"\x7fELF2", "a": b"\x7fELF1"}, "sha256:00")
    assert one != other
    for name in ("", "../x", "a/b", "a\n", "a" * 65, "A"):
        with pytest.raises(ImageRefused, check=carries(check="module")):
            boot_ramdisk({name: b"\x7fELF"}, "sha256:00")
    with pytest.raises(ImageRefused, check=carries(check="module")):
        boot_ramdisk({"a": b"\xfd7zXZ"}, "sha256:00")


def test_a_file_of_another_length_ends_no_archive() -> None:
    archive = CpioWriter(io.BytesIO().write)
    archive.begin_file("x", 0o644, 3)
    archive.add(b"12")
    with pytest.raises(ImageRefused, check=carries(check="ramdisk")):
        archive.finish()
    with pytest.raises(ImageRefused, check=carries(check="ramdisk")):
        archive.begin_file("y", 0o644, MAX_FILE_BYTES + 1)


@pytest.mark.parametrize("name", ["init", "enclave", "enclave/image", "dev/console", "sys/x"])
def test_nothing_of_an_image_takes_a_place_of_the_boot_ramdisk(name: str) -> None:
    from sealtrain.image.machine.enclavebuild import ImageEntries

    entries = ImageEntries(CpioWriter(io.BytesIO().write))
    entries.begin(LayerEntry(name="dev", kind="folder", mode=0o755))
    with pytest.raises(ImageRefused, check=carries(check="ramdisk")):
        entries.begin(LayerEntry(name=name, kind="file", mode=0o755))


def test_a_link_in_the_place_of_a_folder_of_the_boot_ramdisk_is_refused() -> None:
    from sealtrain.image.machine.enclavebuild import ImageEntries

    entries = ImageEntries(CpioWriter(io.BytesIO().write))
    for name in ("dev", "proc", "sys"):
        with pytest.raises(ImageRefused, check=carries(check="ramdisk")):
            entries.begin(LayerEntry(name=name, kind="link", mode=0o777, target="tmp"))
