"""SuperLink and SuperNodes on hosts of their own, as the guide starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import need_namespaces

PLAYER = Path(__file__).parents[1] / "support" / "flower_hosts_player.py"
ALONE = ["unshare", "--map-root-user", "--net"]


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.needs("iproute2", "util-linux")
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.claim("C265")
def test_the_guides_words_start_flower_on_three_hosts(tmp_path: Path) -> None:
    """Over TLS between namespaces: nothing on a line says what Flower carries."""
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    need_namespaces()
    done = subprocess.run(
        [*ALONE, sys.executable, str(PLAYER), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["merged"] == [["clinic-a", "clinic-b"]] * 2
    assert told["state"] == [3.0] * 4
    assert min(told["bytes"]) > 10_000
    assert all(told["tls"])
    assert not any(told["readable"])
