"""Another rank of a run can do what training needs and nothing else, and none outlives the run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from remains import ended
from variants import variants

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C36")]
CANARY = "rank-canary-91c3"


def attacked(folder: Path, job: str, port: int = 0) -> tuple[dict[str, Any], str]:
    """What the run says of it, and everything its processes printed."""
    out = folder / "out"
    out.mkdir()
    (folder / "tmp").mkdir()
    changes = json.dumps({"backend": {"name": "trl", "ranks": 2}})
    where = {"LISTENER": str(port), "TMPDIR": str(folder / "tmp")}
    done = ended("ranks_victim", out, changes, job, timeout=200, **where)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("job", "code"),
    # What "reaches" raises in the end is what a rank may meet: it says that every way was shut.
    variants(
        [("reaches", "record-invalid"), ("dies", "rank-lost")],
        each_time=[("reaches", "record-invalid")],
    ),
)
def test_a_rank_that_misbehaves_ends_the_run_by_name(job: str, code: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said, printed = attacked(tmp_path, job, server.getsockname()[1])
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    if job == "reaches" and said["landlock"] < 4:
        pytest.skip("this kernel's Landlock does not refuse connections")
    assert said["error"] == code
    assert said["left"] == []
    assert CANARY not in printed
    folders = (tmp_path / "out", tmp_path / "tmp")
    assert [path for folder in folders for path in folder.rglob("*") if path.is_file()] == []
