"""Folders that a killed or confined process could not remove."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sealtrain.base.privatefolder import PrivateFolder, hold_folder, remove_left_behind

KILLED = """
import os, signal
from sealtrain.base.privatefolder import PrivateFolder
folder = PrivateFolder()
with folder.writer("inner/x") as file:
    file.write(b"abc")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_nobody_holds_is_removed_and_nothing_else(tmp_path: Path) -> None:
    living, held = hold_folder(tmp_path, "mine-")
    ended, let_go = hold_folder(tmp_path, "mine-")
    (ended / "inner").mkdir()
    (ended / "inner" / "x").symlink_to("/nowhere")
    os.close(let_go)
    other, free = hold_folder(tmp_path, "others-")
    os.close(free)
    (tmp_path / "mine-link").symlink_to(other)
    (tmp_path / "mine-file").write_bytes(b"")
    remove_left_behind(tmp_path, "mine-")
    assert {path.name for path in tmp_path.iterdir()} == {
        living.name, other.name, "mine-link", "mine-file",
    }  # fmt: skip
    os.close(held)


def test_a_forked_child_holds_what_it_inherited(tmp_path: Path) -> None:
    folder, held = hold_folder(tmp_path, "mine-")
    wakes, wake = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wake)
        os.read(wakes, 1)
        os._exit(0)
    os.close(held)
    remove_left_behind(tmp_path, "mine-")
    assert folder.exists()
    os.close(wake)
    os.close(wakes)
    os.waitpid(child, 0)
    remove_left_behind(tmp_path, "mine-")
    assert not folder.exists()


def test_links_of_a_killed_process_go_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert (left / "inner" / "x").is_symlink()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = PrivateFolder()
    second = PrivateFolder()
    assert set(tmp_path.iterdir()) == {first.path, second.path}
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []
