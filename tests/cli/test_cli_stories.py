"""What a demo of training together leaves where it ends early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from programs import need
from variants import variants

pytestmark = pytest.mark.long

DEMOS = ("federate", "split", "travel")
FLOWER = {"federate": pytest.mark.flower}
_WITHIN_S = 120
_GONE_S = 10


def demo(name: str, out: Path, **given: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sealtrain", name, "demo", "--json", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
        **given,  # type: ignore[call-overload]
    )


def heed_ctrl_c() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, with all that this starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def below(process: int) -> list[psutil.Process]:
    return list(psutil.Process(process).children(recursive=True))


@pytest.mark.claim("C278")
@pytest.mark.parametrize("name", variants(DEMOS, each_time=["federate"], marks=FLOWER))
def test_ctrl_c_ends_every_part_and_says_what_stays(name: str, tmp_path: Path) -> None:
    if name == "federate":
        pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    out = tmp_path / "out"
    played = demo(name, out)
    assert played.stderr is not None
    try:
        for line in played.stderr:
            if "locking" in line:  # broker and simulator run
                break
        started = below(played.pid)
        assert any("broker" in " ".join(process.cmdline()) for process in started)
        os.killpg(played.pid, signal.SIGINT)  # as a terminal does
        _, said = played.communicate(timeout=_WITHIN_S)
    finally:
        played.kill()
        played.wait()
    _, left = psutil.wait_procs(started, timeout=_GONE_S)
    for process in left:
        process.kill()
    assert left == []
    assert played.returncode == 130
    assert str(out) in said
    assert "Traceback" not in said
    again = demo(name, out)
    printed, _ = again.communicate(timeout=_WITHIN_S)
    assert (again.returncode, json.loads(printed)["error"]["code"]) == (2, "already-exists")


@pytest.fixture(params=[0, 200], ids=["full", "200 KB left"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system that is full at once, or before the broker runs."""
    place, mount = tmp_path / "disk", need("mount")["mount"]
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        (place / "fill").write_bytes(bytes((1 << 20) - (request.param << 10)))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.claim("C278")
@pytest.mark.parametrize("name", variants(DEMOS, each_time=[], marks=FLOWER))
def test_a_disk_that_is_full_is_said_and_nothing_runs_on(name: str, small: Path) -> None:
    if name == "federate":
        pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    out = small / "out"
    played = demo(name, out)
    began = time.monotonic()
    started: dict[int, psutil.Process] = {}
    while played.poll() is None and time.monotonic() - began < _WITHIN_S:
        started |= {process.pid: process for process in below(played.pid)}
        time.sleep(0.05)
    printed, said = played.communicate(timeout=_WITHIN_S)
    assert played.returncode == 4
    assert json.loads(printed)["error"]["code"] in ("storage-failed", "unreachable")
    assert "Traceback" not in said
    assert "bug" not in said
    assert str(out) in said
    _, left = psutil.wait_procs(list(started.values()), timeout=_GONE_S)
    assert left == []
