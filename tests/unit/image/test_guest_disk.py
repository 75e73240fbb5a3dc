"""A guest's disk: independent tools read what we write, and strangers' parts are refused."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from boot_files import program

from sealtrain.errors import ImageRefused
from sealtrain.guest.boot.decisions import parse_parameters
from sealtrain.image.disk.account import verify_disk
from sealtrain.image.disk.cpio import FILE, PROGRAM, Entry, link, read_files, write_archive
from sealtrain.image.disk.erofs import write_file_system
from sealtrain.image.disk.fat import write_system_partition
from sealtrain.image.disk.guest_disk import (
    FIRST_PROGRAM,
    PACKAGES,
    GuestFiles,
    initrd_entries,
    write_guest_disk,
)
from sealtrain.image.disk.partitions import (
    ROOT_KIND,
    SYSTEM_KIND,
    read_partitions,
    write_disk,
)
from sealtrain.image.disk.unified_writer import write_unified
from sealtrain.image.disk.verity import BLOCK, hash_tree
from sealtrain.image.layer import LayerEntry
from sealtrain.image.machine.pe_file import Portable
from sealtrain.image.machine.unified import Unified, measure_unified

pytestmark = pytest.mark.claim("C661")
LIMITS = {"app-compose.json": 100, "ticket.json": 10}
STUB = program((".text", b"stub"), *((f".data{number}", b"x") for number in range(7)))
TEXTS = {"a/x": b"hello" * 1000, "a/empty": b"", "b/c/" + "n" * 200: b"q"}


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def entries() -> list[LayerEntry]:
    folders = [
        LayerEntry(name=name, kind="folder", mode=mode)
        for name, mode in (("a", 0o755), ("b", 0o1777), ("b/c", 0o755))
    ]
    many = {f"a/file-{'x' * 40}-{number:04}": b"%d" % number for number in range(200)}
    files = [
        LayerEntry(name=name, kind="file", mode=0o644, size=len(text))
        for name, text in (TEXTS | many).items()
    ]
    return [*folders, *files, LayerEntry(name="b/l", kind="link", mode=0o777, target="../a/x")]


def opened(entry: LayerEntry) -> io.BytesIO:
    number = entry.name.rpartition("-")[2]
    return io.BytesIO(TEXTS[entry.name] if entry.name in TEXTS else b"%d" % int(number))


def file_system() -> bytes:
    out = io.BytesIO()
    write_file_system(entries(), opened, out)
    return out.getvalue()


def disk(*names: str, size: int = 5000) -> bytes:
    out = io.BytesIO()
    parts = [(name, ROOT_KIND, io.BytesIO(b"x" * size)) for name in names]
    write_disk(parts, out)
    return out.getvalue()


# --- What independent tools say -------------------------------------------------------------------


def test_erofs_utils_extract_what_went_in(tmp_path: Path) -> None:
    fsck = tool("fsck.erofs")
    (tmp_path / "fs").write_bytes(file_system())
    subprocess.run([fsck, f"--extract={tmp_path / 'out'}", tmp_path / "fs"], check=True)
    for entry in entries():
        place = tmp_path / "out" / entry.name
        if entry.kind == "file":
            assert place.read_bytes() == opened(entry).read()
    assert (tmp_path / "out/b/l").readlink() == Path("../a/x")
    assert len(list((tmp_path / "out/a").iterdir())) == 202


def test_veritysetup_accepts_the_tree(tmp_path: Path) -> None:
    veritysetup = tool("veritysetup")
    data = file_system()
    tree = hash_tree(io.BytesIO(data))
    place = tmp_path / "partition"
    words = [f"--hash-offset={tree.blocks * BLOCK}"]
    for changed, good in ((data, True), (data[:5000] + b"!" + data[5001:], False)):
        place.write_bytes(changed + tree.appended)
        command = [veritysetup, "verify", place, place, tree.root.hex(), *words]
        assert (subprocess.run(command, check=False).returncode == 0) is good


def test_mtools_and_fsck_read_the_system_partition(tmp_path: Path) -> None:
    check, copy = tool("fsck.vfat"), tool("mcopy")
    content = bytes(range(256)) * 5000
    (tmp_path / "esp").write_bytes(write_system_partition(content))
    subprocess.run([check, "-n", tmp_path / "esp"], check=True)
    words = ["-i", tmp_path / "esp", "::EFI/BOOT/BOOTX64.EFI", tmp_path / "out"]
    subprocess.run([copy, *words], check=True)
    assert (tmp_path / "out").read_bytes() == content


def test_sgdisk_finds_no_problem(tmp_path: Path) -> None:
    sgdisk = tool("sgdisk")
    (tmp_path / "disk").write_bytes(disk("one", "two"))
    done = subprocess.run([sgdisk, "-v", tmp_path / "disk"], check=True, capture_output=True)
    assert b"No problems found" in done.stdout


def test_cpio_lists_the_archive() -> None:
    cpio = tool("cpio")
    made = write_archive({"init": Entry(PROGRAM, b"#!"), "a/b": Entry(FILE), "l": link("a")})
    done = subprocess.run([cpio, "-it"], input=made, check=True, capture_output=True)
    assert done.stdout.split() == [b"a", b"a/b", b"init", b"l"]


def test_systemd_computes_the_same_register(tmp_path: Path) -> None:
    measure = "/usr/lib/systemd/systemd-measure"
    if not Path(measure).exists():
        pytest.skip("systemd-measure is not installed")
    contents = {".osrel": b"ID=x\n", ".cmdline": b"quiet", ".initrd": b"i" * 5000}
    contents[".linux"] = program((".text", b"kernel"))
    uki = write_unified(STUB, list(contents.items()))
    words = ["--bank=sha256", "--phase="]
    for name, content in contents.items():
        (tmp_path / name[1:]).write_bytes(content)
        words.append(f"--{name[1:]}={tmp_path / name[1:]}")
    done = subprocess.run([measure, "calculate", *words], check=False, capture_output=True)
    how = Unified(algorithm="sha256", stub_loads_kernel=True, early_stub=True)
    assert f"11:sha256={measure_unified(uki, how)[11]}" in done.stdout.decode()


# --- Without any tool -----------------------------------------------------------------------------


def test_sections_of_a_uki_are_read_back() -> None:
    uki = write_unified(STUB, [(".osrel", b"ID=x"), (".linux", b"k" * 9)])
    read = Portable(uki, "the UKI")
    assert [section.name for section in read.sections][8:] == [".osrel", ".linux"]
    assert bytes(read.content(".linux") or b"") == b"k" * 9
    assert len(read.authenticode("sha256")) == 32


@pytest.mark.parametrize(
    ("stub", "sections"),
    [
        (program((".text", b"x")), [(".text", b"")]),
        (program((".text", b"x")), [(".linux", b""), (".linux", b"")]),
        (program((".text", b"x")), [(".too-long-a-name", b"")]),
        (program((".text", b"x"), signed=b"signed!!"), [(".linux", b"")]),
        (program((".text", b"x")), [(f".{number}", b"") for number in range(12)]),
        (b"MZ", []),
    ],
)
def test_a_stub_that_cannot_take_the_sections_is_refused(
    stub: bytes, sections: list[tuple[str, bytes]]
) -> None:
    with pytest.raises(ImageRefused):
        write_unified(stub, sections)


def test_what_is_written_twice_is_equal() -> None:
    assert file_system() == file_system()
    assert disk("one") == disk("one")
    backwards = io.BytesIO()
    write_file_system(reversed(entries()), opened, backwards)
    assert backwards.getvalue() == file_system()


@pytest.mark.parametrize(
    "entry",
    [
        LayerEntry(name="a", kind="folder", mode=0o755),
        LayerEntry(name="none/x", kind="file", mode=0o644),
        LayerEntry(name="a/x/y", kind="file", mode=0o644),
        LayerEntry(name="large", kind="file", mode=0o644, size=1 << 32),
    ],
)
def test_an_odd_entry_makes_no_file_system(entry: LayerEntry) -> None:
    with pytest.raises(ImageRefused):
        write_file_system([*entries(), entry], opened, io.BytesIO())


def test_a_file_of_another_size_makes_no_file_system() -> None:
    for size in (4999, 5001):
        odd = [LayerEntry(name="x", kind="file", mode=0o644, size=size)]
        with pytest.raises(ImageRefused):
            write_file_system(odd, lambda _: io.BytesIO(TEXTS["a/x"]), io.BytesIO())


def test_the_root_hash_depends_on_each_block() -> None:
    data = bytes(BLOCK * 300)
    honest = hash_tree(io.BytesIO(data))
    assert honest.blocks == 300
    assert len(honest.appended) == BLOCK * (1 + 1 + 3)
    for at in (0, 150 * BLOCK, len(data) - 1):
        changed = bytearray(data)
        changed[at] = 1
        assert hash_tree(io.BytesIO(bytes(changed))).root != honest.root
    for short in (b"", data[:-1]):
        with pytest.raises(ValueError):
            hash_tree(io.BytesIO(short))


# --- Disks and archives of strangers --------------------------------------------------------------


def repaired(image: bytearray) -> io.BytesIO:
    """The same with right checksums: only the partitions are odd."""
    table = bytes(image[1024 : 1024 + 128 * 128])
    struct.pack_into("<I", image, 512 + 88, zlib.crc32(table))
    struct.pack_into("<I", image, 512 + 16, 0)
    struct.pack_into("<I", image, 512 + 16, zlib.crc32(bytes(image[512 : 512 + 92])))
    return io.BytesIO(bytes(image))


def test_partitions_are_read_back() -> None:
    out = io.BytesIO()
    content = write_system_partition(b"MZ")
    parts = [("esp", SYSTEM_KIND, io.BytesIO(content)), ("root", ROOT_KIND, io.BytesIO(b"x"))]
    write_disk(parts, out)
    esp, root = read_partitions(out)
    assert (esp.name, esp.kind, esp.start) == ("esp", SYSTEM_KIND, 1 << 20)
    assert (root.name, root.start, root.size) == ("root", (1 << 20) + esp.size, 1 << 20)
    assert out.getvalue()[esp.start : esp.start + esp.size] == content


@pytest.mark.claim("C662")
@pytest.mark.parametrize("odd", ["twice", "over", "outside", "backwards"])
def test_an_odd_partition_is_refused(odd: str) -> None:
    if odd == "twice":
        image = io.BytesIO(disk("root", "root"))
    else:
        made = bytearray(disk("one", "two"))
        first, last = struct.unpack_from("<QQ", made, 1024 + 128 + 32)
        place = {
            "over": (2048, last),
            "outside": (first, 1 << 40),
            "backwards": (last, first - 1),
        }[odd]
        struct.pack_into("<QQ", made, 1024 + 128 + 32, *place)
        image = repaired(made)
    with pytest.raises(ImageRefused):
        read_partitions(image)


@pytest.mark.claim("C662")
@pytest.mark.parametrize("at", [512 + 16, 512 + 40, 512 + 88, 1024 + 60, 1024 + 128 * 128 - 1])
def test_a_table_with_a_wrong_checksum_is_refused(at: int) -> None:
    made = bytearray(disk("one", "two"))
    made[at] ^= 1
    with pytest.raises(ImageRefused):
        read_partitions(io.BytesIO(bytes(made)))


def test_the_expected_files_of_an_archive_are_read() -> None:
    made = write_archive({name: Entry(FILE, b"x") for name in LIMITS})
    assert read_files(io.BytesIO(made + bytes(1 << 20)), LIMITS) == dict.fromkeys(LIMITS, b"x")


@pytest.mark.claim("C662")
@pytest.mark.parametrize(
    "archive",
    [
        write_archive({"other": Entry(FILE)}),
        write_archive({"../ticket.json": Entry(FILE)}),
        write_archive({"folder/ticket.json": Entry(FILE)}),
        write_archive({"ticket.json": link("/etc/passwd")}),
        write_archive({"ticket.json": Entry(0o020600)}),
        write_archive({"ticket.json": Entry(FILE, b"x" * 11)}),
        write_archive({"ticket.json": Entry(FILE)})[:-124] * 2 + write_archive({}),
        write_archive({"ticket.json": Entry(FILE, b"x" * 9)})[:125],
        write_archive({"ticket.json": Entry(FILE)}).replace(b"070701", b"070702"),
        write_archive({"ticket.json": Entry(FILE)}).replace(b"00000000", b"+0000000", 1),
        b"",
        bytes(1 << 16),
    ],
)
def test_an_archive_with_anything_else_is_refused(archive: bytes) -> None:
    with pytest.raises(ImageRefused):
        read_files(io.BytesIO(archive), LIMITS)


def test_a_long_file_is_refused_before_it_is_read() -> None:
    class Counted(io.BytesIO):
        most = 0

        def read(self, size: int | None = -1) -> bytes:
            self.most = max(self.most, size or 0)
            return super().read(size)

    archive = Counted(write_archive({"ticket.json": Entry(FILE, bytes(100 << 20))}))
    with pytest.raises(ImageRefused):
        read_files(archive, LIMITS)
    assert archive.most < 512


@pytest.mark.parametrize("size", [0, (1 << 30) + 1])
def test_a_program_that_fits_no_partition_is_refused(size: int) -> None:
    class Sized(bytes):
        def __len__(self) -> int:
            return size

    with pytest.raises(ImageRefused):
        write_system_partition(Sized())


# --- Whole disks ----------------------------------------------------------------------------------


def guest_files(tmp_path: Path) -> GuestFiles:
    """A disk's files in small: an interpreter, a kernel, a module and the one it needs."""
    texts = {"usr/bin/python3.11": b"\x7fELF", "usr/lib/python3.11/os.py": b"", "etc/passwd": b"x"}
    listed = {name: LayerEntry(name=name, kind="file", mode=0o755, size=len(text))
              for name, text in texts.items()}  # fmt: skip
    for name in texts:
        for above in Path(name).parents:
            if str(above) != ".":
                listed[str(above)] = LayerEntry(name=str(above), kind="folder", mode=0o755)
    source = tmp_path / "sealtrain"
    for name in FIRST_PROGRAM:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"# {name}\n")
    modules = {"dm_verity": b"a\0depends=dm-mod\0b", "dm_mod": b"a\0depends=\0b"}
    return GuestFiles(
        entries=listed,
        open_file=lambda entry: io.BytesIO(texts[entry.name]),
        kernel=program((".text", b"kernel")),
        release="7.3",
        modules=modules.get,
        stub=STUB,
        source=source,
    )


def written(files: GuestFiles) -> tuple[bytes, bytes]:
    out = io.BytesIO()
    uki = write_guest_disk(files, out)
    return out.getvalue(), uki


def test_a_disk_is_accounted_for_until_one_bit_differs(tmp_path: Path) -> None:
    files = guest_files(tmp_path)
    image, uki = written(files)
    assert written(files) == (image, uki)
    verify_disk(io.BytesIO(image), files)
    for at in (0, 600, image.index(b"# errors.py"), image.index(b"\x7fELF"), len(image) - 1):
        changed = bytearray(image)
        changed[at] ^= 1
        with pytest.raises(ImageRefused):
            verify_disk(io.BytesIO(bytes(changed)), files)
    for other in (image[:-512], image + bytes(512)):
        with pytest.raises(ImageRefused):
            verify_disk(io.BytesIO(other), files)


def test_what_differs_in_a_disk_is_named(tmp_path: Path) -> None:
    files = guest_files(tmp_path)
    image, _ = written(files)
    at = image.index(b"# errors.py")
    changed = image[:at] + b"! errors.py" + image[at + 11 :]
    with pytest.raises(ImageRefused) as caught:
        verify_disk(io.BytesIO(changed), files)
    assert caught.value.got == f".initrd {PACKAGES}/sealtrain/errors.py"


def test_modules_come_after_those_they_need_and_nothing_else_is_started(tmp_path: Path) -> None:
    found = initrd_entries(guest_files(tmp_path))
    assert found["modules/order"].data == b"dm_mod\ndm_verity\n"
    assert {"init", "usr/bin/python3.11", "modules/dm_verity.ko"} <= found.keys()
    assert "etc/passwd" not in found


def test_another_root_has_another_command_line(tmp_path: Path) -> None:
    files = guest_files(tmp_path)
    _, uki = written(files)
    line = bytes(Portable(uki, "the UKI").content(".cmdline") or b"").decode()
    entries = dict(files.entries)
    del entries["etc/passwd"]
    _, other = written(replace(files, entries=entries))
    read = parse_parameters(line)
    assert read.root_hash != parse_parameters(
        bytes(Portable(other, "the UKI").content(".cmdline") or b"").decode()
    ).root_hash  # fmt: skip
    assert read.blocks > 0
