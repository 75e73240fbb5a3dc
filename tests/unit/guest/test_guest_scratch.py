"""The folder in memory of a run: made for it, used by libraries, gone with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sealtrain.errors import UsageError
from sealtrain.guest.sandbox import scratch as module
from sealtrain.guest.sandbox.scratch import SHARED_MEMORY, scratch


def test_libraries_are_led_there_and_back() -> None:
    before = dict(os.environ), tempfile.gettempdir()
    with scratch(alone=False) as made:
        assert made.folder.parent == SHARED_MEMORY
        assert made.folder.stat().st_mode & 0o777 == 0o700
        assert made.writable == (made.folder,)
        assert not made.private
        with tempfile.NamedTemporaryFile() as file:
            assert Path(file.name).parent == made.folder
        kernels = {os.environ[name] for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH")}
        assert kernels == {str(made.folder / "kernels")}
        assert Path(os.environ["TMPDIR"]) == made.folder
        (made.folder / "kernels" / "left").write_bytes(b"x")
    assert (dict(os.environ), tempfile.gettempdir()) == before
    assert not made.folder.exists()


def test_a_folder_of_a_living_run_is_left_alone() -> None:
    with scratch(alone=False) as first, scratch(alone=False) as second:
        assert first.folder.is_dir()
        assert second.folder.is_dir()
        assert first.folder != second.folder


def test_what_ended_without_cleaning_up_is_removed() -> None:
    with scratch(alone=False) as made:
        name = made.folder.name
    left = SHARED_MEMORY / f"{name}0"
    (left / "inner").mkdir(parents=True)
    (left / "inner" / "file").write_bytes(b"x")
    with scratch(alone=False):
        assert not left.exists()


def test_a_link_in_shared_memory_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"x")
    with scratch(alone=False) as made:
        name = made.folder.name
    link = SHARED_MEMORY / f"{name}1"
    link.symlink_to(kept)
    try:
        with scratch(alone=False):
            pass
    finally:
        link.unlink()
    assert (kept / "file").read_bytes() == b"x"


def test_a_disk_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    with pytest.raises(UsageError) as refused, scratch(alone=False):
        pass
    assert refused.value.check == "shared memory"
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_remove_it() -> None:
    with scratch(alone=False) as made:
        child = os.fork()
        if child == 0:
            os._exit(0 if made.folder.is_dir() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert made.folder.is_dir()
