"""Unsloth and Axolotl in the guest: exact resume, no socket, no file but sealed ones.

They run where they are installed (tools/backends), each in a process of its own: loading them
changes other libraries.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from remains import Remains, remains_of
from training_world import CANARY

OURS = ("owner", "sealed", "checkpoints", "base")
PLAYED = {
    "unsloth": ["pairs", "pairs-full", "pairs-qlora", "text", "messages"],
    "axolotl": ["pairs", "pairs-full", "text", "messages"],
}
SHARED_MEMORY = "/dev/shm"  # noqa: S108
MEMORY = f"{SHARED_MEMORY}/sealtrain-"

pytestmark = pytest.mark.slow


def absent(backend: str) -> str:
    if importlib.util.find_spec(backend) is not None:
        return ""
    return f"{backend} is not installed here: tools/backends/install.sh {backend}"


@pytest.fixture(scope="module", params=PLAYED)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Remains:
    backend: str = request.param
    if absent(backend):
        pytest.skip(absent(backend))
    folder = tmp_path_factory.mktemp(backend)
    return remains_of("tuner_victim", folder, backend, *PLAYED[backend], timeout=280)


def played(left: Remains) -> dict[str, dict[str, Any]]:
    return {name: value for name, value in left.answer.items() if isinstance(value, dict)}


@pytest.mark.claim("C23")
def test_a_resumed_run_is_the_uninterrupted_one(left: Remains) -> None:
    for name, play in played(left).items():
        whole, rest = play["history"]
        assert 0 < len(rest) < len(whole), name
        assert whole[-len(rest) :] == rest, name
        for same in ("weights", "metrics", "rows"):
            assert play[same][0] == play[same][1], (name, same)


@pytest.mark.claim("C617")
def test_axolotl_leaves_out_what_the_other_backends_leave_out(left: Remains) -> None:
    for item in left.answer.get("judged", ()):
        assert item["own"] == item["trl"]
        assert {"whole", "empty"} <= set(item["own"])


@pytest.mark.claim("C639")
def test_unsloth_trains_the_rows_that_are_counted(left: Remains) -> None:
    for item in left.answer.get("batched", ()):
        assert item["own"] == item["judge"] != []
    assert (
        sum(item["left_out"] for item in left.answer.get("batched", ())) or "judged" in left.answer
    )


def test_it_learns(left: Remains) -> None:
    for name, play in played(left).items():
        losses = [values["loss"] for _, values in play["history"][0] if "loss" in values]
        assert losses[-1] < losses[0] - 0.1, name


@pytest.mark.claim("C4")
def test_only_the_store_and_the_owner_leave_files(left: Remains) -> None:
    assert left.places() == set(OURS)
    assert {path.suffix for path in left.files("checkpoints")} == {".sealed"}
    assert left.holding(CANARY) == {"owner"}


@pytest.mark.claim("C4")
def test_what_is_opened_for_writing_lies_in_memory(left: Remains) -> None:
    assert {path for path in left.opened_outside(OURS) if not path.startswith(MEMORY)} == set()
    assert not [name for name in left.answer["memory"] if Path(SHARED_MEMORY, name).exists()]


def test_no_socket_is_made_and_no_program_started(left: Remains) -> None:
    assert left.answer["called"] == []


@pytest.fixture(scope="module")
def with_trl(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    return remains_of("tuner_victim", tmp_path_factory.mktemp("trl"), "trl", "pairs", timeout=200)


def test_it_computes_what_trl_does(left: Remains, with_trl: Remains) -> None:
    """The same rows, adapter, optimizer and schedule; only rounding differs."""
    ours, theirs = (item.answer["pairs"]["history"][0] for item in (with_trl, left))
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
