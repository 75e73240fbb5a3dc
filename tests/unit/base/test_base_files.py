"""Files and folders appear whole or not at all."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.base.files import (
    atomic_folder,
    atomic_write,
    atomic_writer,
    parsing_once,
    read_bounded,
    read_regular,
    send_to_disk,
    stamp_of,
)
from sealtrain.errors import AlreadyExists, DataInvalid, LimitExceeded, UsageError


class Interrupted(Exception):
    """Stands for whatever may go wrong in the middle."""


def write_half(path: Path, *, overwrite: bool = False) -> None:
    with atomic_writer(path, overwrite=overwrite) as file:
        file.write(b"half")
        raise Interrupted


def fill_half(path: Path, *, overwrite: bool = False) -> None:
    with atomic_folder(path, overwrite=overwrite) as folder:
        (folder / "new").write_bytes(b"new")
        raise Interrupted


def write_while_another_takes_the_name(path: Path) -> None:
    with atomic_writer(path) as file:
        file.write(b"ours")
        path.write_bytes(b"theirs")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_is_whole_and_alone(tmp_path: Path) -> None:
    atomic_write(tmp_path / "out", b"content")
    assert (tmp_path / "out").read_bytes() == b"content"
    assert names(tmp_path) == ["out"]


def test_the_mode_asked_for_is_the_mode_of_the_file(tmp_path: Path) -> None:
    atomic_write(tmp_path / "key", b"k", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_the_name_is_not_taken_before_the_block_ends(tmp_path: Path) -> None:
    with atomic_writer(tmp_path / "out") as file:
        file.write(b"half")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_bytes() == b"half"


def test_what_is_sent_to_the_disk_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atomic_writer(tmp_path / "out") as file:
        file.write(b"some" * 10_000)
        file.flush()
        send_to_disk(file.fileno(), 5000, 20_000)
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        send_to_disk(file.fileno(), 0, 40_000)
        file.write(b"more")
    assert (tmp_path / "out").read_bytes() == b"some" * 10_000 + b"more"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        write_half(tmp_path / "out")
    assert names(tmp_path) == []


def test_an_interrupted_overwrite_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(Interrupted):
        write_half(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_an_existing_file_is_never_replaced_silently(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(AlreadyExists):
        atomic_write(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists):
        write_while_another_takes_the_name(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert names(tmp_path) == ["out"]


def test_overwrite_replaces_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a longer old content")
    atomic_write(tmp_path / "out", b"new", overwrite=True)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert names(tmp_path) == ["out"]


def test_a_folder_takes_its_name_when_it_is_full(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "inside").write_bytes(b"1")
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out/inside").read_bytes() == b"1"


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fill_half(tmp_path / "out")
    assert names(tmp_path) == []


def test_an_existing_folder_is_never_replaced_silently(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(AlreadyExists), atomic_folder(tmp_path / "out"):
        pytest.fail("the block must not be entered")
    assert names(tmp_path) == ["out"]


def test_overwriting_a_folder_replaces_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_bytes(b"old")
    with atomic_folder(tmp_path / "out", overwrite=True) as folder:
        (folder / "new").write_bytes(b"new")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["new"]


def test_an_interrupted_overwrite_leaves_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_bytes(b"old")
    with pytest.raises(Interrupted):
        fill_half(tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["old"]
    assert names(tmp_path) == ["out"]


def test_a_small_file_is_read_whole_and_a_large_one_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    with pytest.raises(LimitExceeded):
        read_bounded(tmp_path / "file", 4)


def test_an_absent_file_and_a_folder_are_typed_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        read_bounded(tmp_path / "absent", 5)
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        read_bounded(tmp_path, 5)


def test_a_stamp_changes_with_the_file_and_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    later = time.time_ns() + 10**10

    def stamp() -> tuple[int, ...]:
        return stamp_of(path, clock=lambda: later)

    path.write_bytes(b"one")
    seen = {stamp()}
    assert stamp() in seen
    os.utime(path, ns=(1, 1))
    seen.add(stamp())
    path.write_bytes(b"three")
    os.utime(path, ns=(1, 1))
    seen.add(stamp())
    atomic_write(path, b"three", overwrite=True)
    os.utime(path, ns=(1, 1))
    seen.add(stamp())
    assert len(seen) == 4
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        stamp_of(tmp_path / "absent")


def test_a_file_is_parsed_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    parsed: list[bytes] = []

    def parse(data: bytes) -> bytes:
        parsed.append(data)
        if data == b"bad":
            raise ValueError("bad")
        return data

    def settled(data: bytes) -> None:
        path.write_bytes(data)
        while time.time_ns() - path.stat().st_ctime_ns < 1_100_000_000:
            time.sleep(0.05)

    read = parsing_once(parse, 4)
    settled(b"one")
    assert (read(path), read(path)) == (b"one", b"one")
    settled(b"two")
    assert (read(path), read(path)) == (b"two", b"two")
    assert parsed == [b"one", b"two"]
    path.write_bytes(b"bad")
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            read(path)
    path.write_bytes(b"longer")
    with pytest.raises(LimitExceeded):
        read(path)
    path.unlink()
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        read(path)


def test_a_file_that_has_just_changed_has_no_lasting_stamp(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    changed = path.stat().st_ctime_ns
    assert stamp_of(path, clock=lambda: changed + 1) != stamp_of(path, clock=lambda: changed + 2)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path, overwrite: bool) -> None:
    place = tmp_path / "missing" / "x"
    with pytest.raises(UsageError, match="missing"):
        atomic_write(place, b"x", overwrite=overwrite)
    with pytest.raises(UsageError, match="missing"), atomic_folder(place, overwrite=overwrite):
        pytest.fail("the block ran")
    assert not place.parent.exists()


def test_a_file_that_others_put_there_is_read_if_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 4) == read_regular(tmp_path / "link", 4) == b"data"
    with pytest.raises(LimitExceeded):
        read_regular(tmp_path / "file", 3)


def test_a_pipe_a_device_and_a_folder_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "absent"):
        with pytest.raises(DataInvalid):
            read_regular(path, 4)
