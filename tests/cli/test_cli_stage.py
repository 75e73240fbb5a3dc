"""The stage of a rehearsal is struck however the rehearsal ends."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.cli import programs
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain_rehearsal.rehearsal import Rehearsal

SERVER = "import os, sys, time; print('serving', os.getpid(), file=sys.stderr); time.sleep(60)"


def ended_in_the_middle(folder: Path, servers: list[int]) -> None:
    with Rehearsal(folder / "out", lambda _said: None) as stage:
        servers.append(int(stage.serve("serving", "server")))
        os.kill(os.getpid(), signal.SIGTERM)


def test_who_terminates_a_rehearsal_ends_its_servers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "program", lambda _words: [sys.executable, "-u", "-c", SERVER])
    before = signal.getsignal(signal.SIGTERM)
    servers: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        ended_in_the_middle(tmp_path, servers)
    assert not Path(f"/proc/{servers[0]}").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_folder_whose_name_is_no_text_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=carries(check="--out")):
        Rehearsal(tmp_path / "out\udcff", lambda _said: None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_where_an_earlier_rehearsal_made_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Rehearsal(out, lambda _said: None):
        (out / "engineer").mkdir()
    with pytest.raises(AlreadyExists):
        Rehearsal(out, lambda _said: None)
    assert (out / "engineer").is_dir()
    with suppress(KeyError), Rehearsal(out, lambda _said: None, force=True):
        assert not (out / "engineer").exists()
        raise KeyError
    assert not out.exists()


@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_that_no_rehearsal_made_stays(tmp_path: Path, linked: bool) -> None:
    kept = tmp_path / "kept"
    with Rehearsal(kept, lambda _said: None):
        (kept / "mine").write_text("mine")
    out = kept
    if linked:
        out = tmp_path / "link"
        out.symlink_to(kept)
    else:
        (kept / ".rehearsal").unlink()
    with pytest.raises(AlreadyExists):
        Rehearsal(out, lambda _said: None, force=True)
    assert (kept / "mine").read_text() == "mine"
