"""Tensors of a GPU over the wire: what the same ranks get from tensors of the CPU. Needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "support" / "wire_on_gpu.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs a GPU"),
]


def on_a_gpu(what: str) -> list[Any]:
    """What each rank found, in processes that are none of this one's forks."""
    words = [sys.executable, str(SCRIPT), what]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(done.stdout)
    return found


def test_collectives_of_a_gpu_equal_those_of_the_cpu() -> None:
    assert on_a_gpu("collectives") == [True, True]


def test_ddp_and_fsdp_on_a_gpu_learn_and_end_alike_on_all_ranks() -> None:
    for found in on_a_gpu("trained"):
        assert isinstance(found, list), found
        assert all(found)
