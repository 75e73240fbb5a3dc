"""What an interrupted sealing leaves: what it can go on with, or nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sealtrain.sealing.sealjournal import resumable_folder


def stopped_by_a_full_disk(path: Path, *names: str) -> None:
    with resumable_folder(path) as folder:
        for name in names:
            (folder / name).write_bytes(b"sealed")
        raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize("written", [(), ("journal.sealed",), ("journal.sealed", "part.sealed")])
def test_a_full_disk_before_the_first_whole_shard_leaves_nothing(
    tmp_path: Path, written: tuple[str, ...]
) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        stopped_by_a_full_disk(tmp_path / "notes.sealed", *written)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_after_a_whole_shard_leaves_it_for_the_next_time(tmp_path: Path) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        stopped_by_a_full_disk(tmp_path / "notes.sealed", "journal.sealed", "journal-00000.sealed")
    assert [path.name for path in tmp_path.iterdir()] == [".notes.sealed.sealing"]
