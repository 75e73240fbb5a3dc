"""A folder whose files stay as they were written."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.errors import LimitExceeded

pytestmark = pytest.mark.long


def written(folder: PrivateFolder, name: str, data: bytes) -> Path:
    with folder.writer(name) as file:
        file.write(data)
    return folder.path / name


def test_files_are_read_by_name_as_often_as_wanted() -> None:
    folder = PrivateFolder()
    place = written(folder, "inner/x.txt", b"abc" * 1000)
    written(folder, "empty", b"")
    assert place.read_bytes() == place.read_bytes() == b"abc" * 1000
    assert sorted(path.name for path in folder.path.rglob("*")) == ["empty", "inner", "x.txt"]
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.close()


def test_no_process_alters_what_was_written() -> None:
    folder = PrivateFolder()
    place = written(folder, "x", b"abc")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        try:
            descriptor = os.open(place, flags)
        except OSError:
            continue
        with pytest.raises(OSError, check=carries(errno=errno.EPERM)):
            os.write(descriptor, b"evil")
        with pytest.raises(OSError, check=carries(errno=errno.EPERM)):
            os.truncate(place, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 3, mmap.MAP_SHARED)
        os.close(descriptor)
    assert place.read_bytes() == b"abc"
    with place.open("rb") as file, mmap.mmap(file.fileno(), 3, access=mmap.ACCESS_COPY) as own:
        own[0:3] = b"own"  # a page of one's own, as a model that is trained has it
        assert place.read_bytes() == b"abc"
    folder.close()


def test_a_file_is_written_once() -> None:
    folder = PrivateFolder()
    written(folder, "x", b"abc")
    with pytest.raises(FileExistsError):
        written(folder, "x", b"evil")
    assert (folder.path / "x").read_bytes() == b"abc"
    folder.close()


def test_what_was_not_finished_has_no_name() -> None:
    folder = PrivateFolder()

    def half() -> None:
        with folder.writer("x") as file:
            file.write(b"ab")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        half()
    assert not (folder.path / "x").exists()
    folder.close()


def test_a_forked_child_reads_it_and_removes_nothing() -> None:
    folder = PrivateFolder()
    place = written(folder, "x", b"abc")
    child = os.fork()
    if child == 0:
        fine = place.read_bytes() == b"abc"
        folder.close()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert place.read_bytes() == b"abc"
    folder.close()


def test_it_is_gone_with_the_last_reference() -> None:
    folder = PrivateFolder()
    path = folder.path
    written(folder, "x", b"abc")
    gc.collect()  # what other tests left is not counted
    before = len(list(Path("/proc/self/fd").iterdir()))
    del folder
    gc.collect()
    assert not path.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 2  # of its file and of itself


def test_no_room_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, flags: int) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "memfd_create", full)
    folder = PrivateFolder()
    with pytest.raises(LimitExceeded):
        written(folder, "x", b"abc")
    assert not (folder.path / "x").exists()
    folder.close()


def test_an_ordinary_folder_serves_where_there_is_no_such_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    folder = PrivateFolder()
    assert written(folder, "a/x", b"abc").read_bytes() == b"abc"
    with pytest.raises(FileExistsError):
        written(folder, "a/x", b"evil")
    folder.close()
    assert not folder.path.exists()
