"""Who leads a travelling run: one process at a time, and the next when it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain.training.errors import PeerUnreachable
from sealtrain_together.travelling.guest.standby_folder import StandbyStatus, await_run, leading

LEADS = """
import sys, time
from pathlib import Path
from sealtrain_together.travelling.guest.standby_folder import leading
with leading(Path(sys.argv[1]), wait=0, waiting=lambda: None):
    print("leads", flush=True)
    time.sleep(60)
"""


def never() -> None:
    pytest.fail("nobody was to wait")


def test_two_do_not_lead_and_a_killed_one_gives_way(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", LEADS, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "leads\n"
        with pytest.raises(AlreadyExists), leading(tmp_path, wait=0, waiting=never):
            pytest.fail("two lead")
        waited: list[bool] = []
        with (
            pytest.raises(PeerUnreachable),
            leading(tmp_path, wait=0.3, waiting=lambda: waited.append(True)),
        ):
            pytest.fail("two lead")
        assert waited == [True]
        os.kill(other.pid, signal.SIGKILL)
        began = time.monotonic()
        with leading(tmp_path, wait=20, waiting=lambda: None):
            assert time.monotonic() - began < 20
    finally:
        other.kill()
        other.communicate()


def test_the_folder_says_which_run_it_is_of(tmp_path: Path) -> None:
    assert StandbyStatus.read(tmp_path) is None
    StandbyStatus(run_id="ab" * 16).write(tmp_path)
    assert StandbyStatus.read(tmp_path) == StandbyStatus(run_id="ab" * 16, finished=False)
    (tmp_path / "run.json").write_text('{"version":1,"run_id":"..","finished":false}')
    with pytest.raises(LockInvalid):
        StandbyStatus.read(tmp_path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError), leading(tmp_path / "file", wait=0, waiting=never):
        pytest.fail("it was made")


def test_a_standby_waits_for_the_run_to_begin_and_leads_nothing_meanwhile(tmp_path: Path) -> None:
    said: list[str] = []

    def begin() -> None:
        said.append("waits")
        with leading(tmp_path, wait=0.0, waiting=lambda: None):
            StandbyStatus(run_id="5a" * 16).write(tmp_path)

    await_run(tmp_path, wait=20.0, waiting=begin)
    assert said == ["waits"]
    await_run(tmp_path, wait=20.0, waiting=begin)
    assert said == ["waits"]


def test_a_standby_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    said: list[str] = []
    await_run(tmp_path, wait=0.0, waiting=lambda: said.append("waits"))
    assert said == ["waits"]
    assert StandbyStatus.read(tmp_path) is None
