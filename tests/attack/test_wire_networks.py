"""The wire over real TCP on networks that lose, delay, double and reorder packets, or go dead."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from programs import need_namespaces

pytestmark = [
    pytest.mark.claim("C157"),
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(150),
    pytest.mark.needs("iproute2", "util-linux"),
]

PLAYER = Path(__file__).parents[1] / "support" / "lossy_player.py"
ALONE = ["unshare", "--map-root-user", "--net"]
RIGHT = [float(2 * number + 1) for number in range(6) for _ in range(2)]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    need_namespaces()


def needs_netem() -> None:
    words = ["sh", "-c", "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"]
    if subprocess.run([*ALONE, *words], check=False, capture_output=True).returncode:
        pytest.skip("this kernel has no netem (module sch_netem)")


def played(*words: str) -> Any:
    done = subprocess.run(
        [*ALONE, sys.executable, str(PLAYER), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_packets_that_are_lost_late_doubled_and_reordered_change_no_sum() -> None:
    said = played("bridge")
    carried, lost, late = said["counted"]
    assert said["found"] == [RIGHT, RIGHT]
    assert carried > 500
    assert lost > 5
    assert late > 25


def test_the_kernels_own_bad_network_changes_no_sum() -> None:
    needs_netem()
    assert played("netem")["found"] == [RIGHT, RIGHT]


@pytest.mark.nightly
def test_a_network_that_goes_dead_ends_both_ranks_in_their_time() -> None:
    begin = time.monotonic()
    said = played("bridge", "dies")
    assert set(said["found"]) <= {"peer-unreachable", "channel-cut"}
    assert time.monotonic() - begin < 60
