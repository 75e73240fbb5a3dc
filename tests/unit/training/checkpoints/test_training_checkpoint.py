from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import RUN_ID, checkpoint_store

from sealtrain.sealing.errors import (
    CheckpointRefused,
    NotSealed,
    RootMismatch,
    SealRefused,
    WrongContext,
)
from sealtrain.sealing.store import SealedStore
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef

if not COLLECTING:
    import torch

    WEIGHTS = {
        "weight": torch.arange(6.0).reshape(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    OPTIMIZER = {
        "state": {0: {"step": torch.tensor(3.0)}},
        "param_groups": [{"betas": (0.9, 0.99)}],
    }
    STATE: dict[str, Any] = {"model": WEIGHTS, "optimizer": OPTIMIZER, "rows": 12}


def chain(store: SealedStore, count: int) -> list[CheckpointRef]:
    refs: list[CheckpointRef] = []
    for counter in range(1, count + 1):
        previous = refs[-1].digest if refs else ""
        refs.append(checkpoint.save(store, RUN_ID, counter, counter * 5, STATE, previous=previous))
    return refs


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 1, 10, STATE)
    back = checkpoint.load(store, RUN_ID, ref)
    assert torch.equal(back["model"]["weight"], WEIGHTS["weight"])
    assert back["model"]["half"].dtype == torch.bfloat16
    assert back["optimizer"] == OPTIMIZER
    assert ref.digest == store.verify(ref.name)


def test_weights_lie_on_disk_only_sealed(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    marker = torch.frombuffer(bytearray(b"marker-in-a-tensor" * 64), dtype=torch.uint8)
    checkpoint.save(store, RUN_ID, 1, 10, {"model": {"named-tensor": marker}})
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert b"marker-in" not in file.read_bytes()
    assert b"named-tensor" not in file.read_bytes()


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 1, 10, STATE)
    path = store.path(ref.name)
    good = path.read_bytes()
    for position in range(0, len(good), max(1, len(good) // 40)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises((SealRefused, NotSealed)):
            checkpoint.load(store, RUN_ID, ref)


def test_a_checkpoint_cannot_pose_as_another_step_counter_or_run(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 2, 10, STATE)
    for posing in (
        CheckpointRef(counter=3, step=10, digest=ref.digest),
        CheckpointRef(counter=2, step=20, digest=ref.digest),
    ):
        store.path(posing.name).write_bytes(store.path(ref.name).read_bytes())
        with pytest.raises(WrongContext):
            checkpoint.load(store, RUN_ID, posing)
    with pytest.raises(WrongContext):
        checkpoint.load(store, "cd" * 16, ref)


def test_the_newest_is_found_and_older_ones_are_removed(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    refs = chain(store, 3)
    checkpoint.prune(store, 2)
    assert store.names() == (refs[1].name, refs[2].name)
    assert checkpoint.newest(store, None) == refs[2]
    assert checkpoint.newest(store, (3, refs[2].digest)) == refs[2]
    assert checkpoint.newest(store, (2, refs[1].digest)) == refs[2]
    checkpoint.prune(store, 1, besides=[refs[1]])
    assert store.names() == (refs[1].name, refs[2].name)


@pytest.mark.claim("C34")
def test_a_swapped_predecessor_breaks_the_chain(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    first, second, third = chain(store, 3)
    other = checkpoint.save(store, RUN_ID, 2, 10, STATE | {"rows": 99}, previous=first.digest)
    assert other.digest != second.digest
    for anchor in (None, (2, other.digest), (1, first.digest)):
        with pytest.raises(CheckpointRefused, check=carries(check="checkpoint chain")):
            checkpoint.newest(store, anchor)
    posing = replace(third, previous=other.digest)
    with pytest.raises(WrongContext):
        checkpoint.load(store, RUN_ID, posing)


@pytest.mark.claim("C34")
def test_a_whole_older_branch_does_not_pass_for_the_anchored_one(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    first, second = chain(store, 2)
    anchor = (second.counter, second.digest)
    again = checkpoint.save(store, RUN_ID, 2, 10, STATE, previous=first.digest)
    assert again.digest != second.digest  # a salt of its own
    with pytest.raises(CheckpointRefused, check=carries(check="checkpoint anchor")):
        checkpoint.newest(store, anchor)
    with pytest.raises(RootMismatch):
        checkpoint.load(store, RUN_ID, second)


@pytest.mark.claim("C34")
@pytest.mark.parametrize("left", ["cut", "empty", "hole", "end"])
def test_what_a_crash_left_incomplete_is_passed_over(tmp_path: Path, left: str) -> None:
    store = checkpoint_store(tmp_path)
    big = {"model": {"weight": torch.arange(1_000_000.0)}}
    first = checkpoint.save(store, RUN_ID, 1, 5, big)
    torn = checkpoint.save(store, RUN_ID, 2, 10, big, previous=first.digest)
    path = store.path(torn.name)
    data = bytearray(path.read_bytes())
    if left == "hole":  # pages that never reached the disk
        data[2_000_000:2_004_096] = bytes(4096)
    path.write_bytes(data[: {"cut": len(data) // 2, "empty": 0, "end": -1}.get(left)])
    assert checkpoint.newest(store, (1, first.digest)) == first
    # Once it was anchored, nothing older will do.
    with pytest.raises((CheckpointRefused, SealRefused, NotSealed)):
        checkpoint.load(store, RUN_ID, anchored(store, torn))


def anchored(store: SealedStore, ref: CheckpointRef) -> CheckpointRef:
    found = checkpoint.newest(store, (ref.counter, ref.digest))
    assert found is not None
    return found


def test_a_checkpoint_without_its_other_records_is_passed_over(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    first, _second = chain(store, 2)
    assert checkpoint.newest(store, (1, first.digest), complete={1}) == first


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 1, 10, STATE)
    assert set(checkpoint.load(store, RUN_ID, ref, wanted=["model"])) == {"model"}


def test_nothing_yet_means_begin_again_unless_something_was_anchored(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    assert checkpoint.newest(store, None) is None
    with pytest.raises(CheckpointRefused):
        checkpoint.newest(store, (1, "00" * 32))


def test_an_older_or_another_checkpoint_than_the_anchored_one_is_refused(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 2, 10, STATE)
    for anchor in ((3, ref.digest), (2, "00" * 32)):
        with pytest.raises(CheckpointRefused, check=carries(check="checkpoint anchor")):
            checkpoint.newest(store, anchor)


def test_a_blob_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    ref = CheckpointRef(counter=1, step=5)
    with store.write(ref.name, ref.binding(RUN_ID)) as file:
        torch.save({"model": Path("x")}, file)
    ref = replace(ref, digest=store.root(ref.name))
    with pytest.raises(CheckpointRefused, check=carries(check="checkpoint")):
        checkpoint.load(store, RUN_ID, ref)


def test_random_states_return_exactly(tmp_path: Path) -> None:
    random.gauss(0, 1)
    np.random.standard_normal()
    store = checkpoint_store(tmp_path)
    ref = checkpoint.save(store, RUN_ID, 1, 1, {"random": checkpoint.random_states()})
    drawn = (random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    checkpoint.restore_random_states(checkpoint.load(store, RUN_ID, ref)["random"])
    again = (random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    assert again == drawn
