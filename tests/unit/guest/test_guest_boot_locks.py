"""What a guest's kernel refuses before the root is started, and the disk for the run's files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sealtrain.errors import ImageRefused
from sealtrain.guest.boot.decisions import (
    SCRATCH_KEY_BYTES,
    SCRATCH_SERIAL,
    choose_scratch,
    crypt_table,
)
from sealtrain.guest.boot.empty_files import BLOCK, LEAST_BLOCKS, write_empty_files
from sealtrain.guest.boot.locks import LOCKDOWN, SETTINGS, SWAPS, lock_kernel

pytestmark = pytest.mark.claim("C711")
USER = 65532


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in (*SETTINGS, LOCKDOWN, SWAPS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("7\n")
    (tmp_path / LOCKDOWN).write_text("[none] integrity confidentiality\n")
    (tmp_path / SWAPS).write_text("Filename\tType\tSize\tUsed\tPriority\n")
    return tmp_path


def take(path: Path, value: str) -> None:
    """As a kernel that has every setting."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory")
    locked = path.name == "lockdown"
    path.write_text(f"none integrity [{value}]\n" if locked else f"{value}\n")


def test_the_kernel_takes_no_module_kernel_debugger_or_swap(top: Path) -> None:
    lock_kernel(top, take)
    kept = {name: (top / name).read_text().strip() for name in SETTINGS}
    assert kept == SETTINGS
    assert kept["proc/sys/kernel/modules_disabled"] == "1"
    assert [*SETTINGS][-1] == "proc/sys/kernel/modules_disabled"


@pytest.mark.parametrize("name", [*SETTINGS, LOCKDOWN])
def test_a_setting_that_is_missing_starts_no_root(top: Path, name: str) -> None:
    (top / name).unlink()
    with pytest.raises(ImageRefused):
        lock_kernel(top, take)


@pytest.mark.parametrize("name", [*SETTINGS, LOCKDOWN])
def test_a_setting_that_is_not_kept_starts_no_root(top: Path, name: str) -> None:
    def ignore(path: Path, value: str) -> None:
        if path != top / name:
            take(path, value)

    with pytest.raises(ImageRefused) as caught:
        lock_kernel(top, ignore)
    assert caught.value.check == name


def test_memory_on_a_disk_starts_no_root(top: Path) -> None:
    with (top / SWAPS).open("a") as file:
        file.write("/dev/vdc partition 1048572 0 -2\n")
    with pytest.raises(ImageRefused) as caught:
        lock_kernel(top, take)
    assert caught.value.check == SWAPS


# --- The disk for files of the run ----------------------------------------------------------------


def test_one_disk_at_most_is_the_runs() -> None:
    assert choose_scratch({}) is None
    assert choose_scratch({"vda": "", "vdb": "sealtrain-config"}) is None
    assert choose_scratch({"vda": "", "vdc": SCRATCH_SERIAL}) == "vdc"
    with pytest.raises(ImageRefused):
        choose_scratch({"vdb": SCRATCH_SERIAL, "vdc": SCRATCH_SERIAL})


def test_each_boot_has_a_key_of_its_own_for_it() -> None:
    table = crypt_table("254:32", bytes(range(64))).split()
    assert table[0] == "aes-xts-plain64"
    assert bytes.fromhex(table[1]) == bytes(range(64))
    assert len(bytes.fromhex(table[1])) == SCRATCH_KEY_BYTES
    assert table[2:] == ["0", "254:32", "0", "1", "sector_size:4096"]


def made(path: Path, size: int) -> Path:
    """A file system over what a disk held before."""
    with path.open("w+b") as file:
        file.truncate(size)
        file.write(os.urandom(1 << 20))
        write_empty_files(file, size // BLOCK, USER)
    return path


@pytest.mark.parametrize("size", [64 << 20, (128 << 20) + 30 * BLOCK, (1 << 30) + 123 * BLOCK])
def test_the_tools_of_ext4_find_it_clean_and_empty(tmp_path: Path, size: int) -> None:
    checker, other = (shutil.which(name, path="/usr/sbin:/sbin") for name in ("e2fsck", "debugfs"))
    if checker is None or other is None:
        pytest.skip("e2fsprogs is not installed")
    disk = made(tmp_path / "disk", size)
    listed = subprocess.run([other, "-R", "ls -p /", disk], check=True, capture_output=True)
    assert listed.stdout.split() == [b"/2/040700/65532/65532/.//", b"/2/040700/65532/65532/..//"]
    # The checker asks for a folder that nothing else does.
    subprocess.run([other, "-w", "-R", "mkdir lost+found", disk], check=True, capture_output=True)
    checked = subprocess.run([checker, "-fn", disk], check=False, capture_output=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.needs("mount")
def test_linux_writes_files_into_it(tmp_path: Path) -> None:
    disk, place = made(tmp_path / "disk", 200 << 20), tmp_path / "place"
    place.mkdir()
    words = ["mount", "-t", "ext4", "-o", "loop,nosuid,nodev", disk, place]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("this machine mounts no file")
    try:
        status = place.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (USER, USER, 0o700)
        for number in range(40):
            (place / f"file-{number}").write_bytes(bytes([number]) * (1 << 20))
        (place / "another").hardlink_to(place / "file-7")
        subprocess.run(["umount", place], check=True)
        subprocess.run(words, check=True)
        assert (place / "another").read_bytes() == b"\7" * (1 << 20)
        assert len([*place.iterdir()]) == 41
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("blocks", [0, 1, LEAST_BLOCKS - 1])
def test_a_disk_that_is_too_small_is_refused(blocks: int) -> None:
    out = io.BytesIO()
    with pytest.raises(ImageRefused):
        write_empty_files(out, blocks, USER)
    assert out.getvalue() == b""
