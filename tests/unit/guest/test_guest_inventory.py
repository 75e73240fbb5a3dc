"""What a run's folder tells about its checkpoints without a key."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from sealing_world import KEY

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.guest.inventory import FoundCheckpoint, checkpoints_in
from sealtrain.sealing.store import SealedStore
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.checkpoints.shards import write_shard

if not COLLECTING:
    import torch

RUN = "ab" * 16


def run_folder(out: Path, run_id: str = RUN) -> SealedStore:
    out.mkdir(exist_ok=True)
    places = dict.fromkeys(("lock", "guest", "base"), "/nowhere")
    document = {"version": 1, "run_id": run_id, "platform": "simulator", "data": [], **places,
                "brokers": [], "collateral": "file:/nowhere", "gpu_collateral": None}  # fmt: skip
    (out / "run.json").write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    return SealedStore(out / "checkpoints", KEY, label=run_id)


def seal(store: SealedStore, counters: range, previous: str = "") -> list[CheckpointRef]:
    refs = []
    for counter in counters:
        state = {"model": torch.full((500_000,), float(counter))}
        ref = checkpoint.save(store, RUN, counter, counter * 5, state, previous=previous)
        previous = ref.digest
        refs.append(ref)
    return refs


def anchored_at(out: Path, ref: CheckpointRef, **changed: Any) -> None:
    anchor = {"counter": ref.counter, "digest": ref.digest}
    receipt = {"run_id": RUN, "checkpoint": anchor} | changed
    payload = base64.b64encode(json.dumps(receipt).encode()).decode()
    (out / "anchor.json").write_text(json.dumps({"receipt": {"payload": payload}}))


def said(found: list[FoundCheckpoint]) -> list[tuple[Any, ...]]:
    return [(item.counter, item.complete, item.follows, item.anchored) for item in found]


def test_a_checkpoint_counts_with_all_its_shards(tmp_path: Path) -> None:
    store = run_folder(tmp_path / "out")
    (ref,) = seal(store, range(1, 2))
    (alone,) = checkpoints_in(tmp_path / "out")
    shards = [
        ShardRef(counter=ref.counter, step=ref.step, number=number, count=2) for number in (0, 1)
    ]
    for shard in shards:
        write_shard(store, RUN, shard, ref.previous, [memoryview(bytes(5000))])
    other = ShardRef(counter=ref.counter, step=ref.step, number=0, count=3)
    write_shard(store, RUN, other, ref.previous, [memoryview(b"of an attempt before")])
    (found,) = checkpoints_in(tmp_path / "out", whole=True)
    assert found.complete
    assert found.size > alone.size + 10_000
    path = store.path(shards[1].name)
    data = bytearray(path.read_bytes())
    data[-4000] ^= 1
    path.write_bytes(data)
    assert [each.complete for each in checkpoints_in(tmp_path / "out")] == [True]
    assert [each.complete for each in checkpoints_in(tmp_path / "out", whole=True)] == [False]
    path.unlink()
    assert [each.complete for each in checkpoints_in(tmp_path / "out")] == [False]


def test_a_healthy_run(tmp_path: Path) -> None:
    store = run_folder(tmp_path / "out")
    refs = seal(store, range(1, 5))
    store.remove(refs[0].name)
    anchored_at(tmp_path / "out", refs[2])
    found = checkpoints_in(tmp_path / "out", whole=True)
    assert said(found) == [
        (4, True, True, False),
        (3, True, True, True),
        (2, True, None, True),
    ]
    assert [document.digest for document in found] == [ref.digest for ref in reversed(refs[1:])]
    assert [item.step for item in found] == [20, 15, 10]
    assert found[0].size == store.path(refs[3].name).stat().st_size


def test_before_anything_was_anchored_nothing_is_claimed(tmp_path: Path) -> None:
    store = run_folder(tmp_path)
    assert checkpoints_in(tmp_path) == []
    (ref,) = seal(store, range(1, 2))
    assert said(checkpoints_in(tmp_path)) == [(1, True, True, None)]
    anchored_at(tmp_path, ref, run_id="cd" * 16)
    assert said(checkpoints_in(tmp_path)) == [(1, True, True, None)]


def test_another_branch_shows(tmp_path: Path) -> None:
    store = run_folder(tmp_path)
    refs = seal(store, range(1, 4))
    anchored_at(tmp_path, refs[2])
    seal(store, range(2, 3), previous=refs[0].digest)  # sealed again: other bytes
    assert said(checkpoints_in(tmp_path)) == [
        (3, True, False, True),
        (2, True, True, False),
        (1, True, True, None),
    ]


@pytest.mark.parametrize("damage", ["cut", "empty", "inside", "not sealed"])
def test_what_is_not_whole_shows(tmp_path: Path, damage: str) -> None:
    store = run_folder(tmp_path)
    refs = seal(store, range(1, 3))
    path = store.path(refs[1].name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(
        {"cut": data[:-100], "empty": b"", "inside": data, "not sealed": b"x" * 9000}[damage]
    )
    complete = {
        checkpoint.name: checkpoint.complete for checkpoint in checkpoints_in(tmp_path, whole=True)
    }
    assert complete == {f"{refs[0].name}.sealed": True, f"{refs[1].name}.sealed": False}


def test_a_blob_of_another_run_is_none_of_this(tmp_path: Path) -> None:
    run_folder(tmp_path, "cd" * 16)
    seal(SealedStore(tmp_path / "checkpoints", KEY, label=RUN), range(1, 2))
    (found,) = checkpoints_in(tmp_path)
    assert (found.counter, found.complete) == (None, False)


def test_a_folder_without_a_run_and_a_strange_receipt_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        checkpoints_in(tmp_path)
    run_folder(tmp_path)
    (tmp_path / "anchor.json").write_text("{}")
    with pytest.raises(DataInvalid, match=r"anchor\.json"):
        checkpoints_in(tmp_path)


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sealtrain", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    refs = seal(run_folder(tmp_path), range(1, 3))
    anchored_at(tmp_path, refs[1])
    done = command("checkpoints", tmp_path, "--json")
    assert done.returncode == 0
    listed = json.loads(done.stdout)["checkpoints"]
    assert [listing["digest"] for listing in listed] == [refs[1].digest, refs[0].digest]
    assert not any(line.endswith("| torch") for line in done.stderr.splitlines())
    shown = command("checkpoints", tmp_path).stdout.splitlines()
    assert shown[0].split() == [
        "counter", "step", "bytes", "written", "complete", "follows", "anchored",
    ]  # fmt: skip
    assert shown[1].split()[:2] == ["2", "10"]
    assert shown[1].split()[-3:] == ["yes", "yes", "yes"]
    assert command("checkpoints", tmp_path / "absent").returncode == 2


def test_what_is_no_checkpoint_is_listed_and_not_waited_for(tmp_path: Path) -> None:
    store = run_folder(tmp_path)
    seal(store, range(1, 2))
    folder = tmp_path / "checkpoints"
    os.mkfifo(folder / "checkpoint-00000002-0000000010.sealed")
    (folder / "checkpoint-00000003-0000000015.sealed").symlink_to("nowhere")
    assert sorted(said(checkpoints_in(tmp_path, whole=True)), key=str) == [
        (1, True, True, None),
        (None, False, None, None),
        (None, False, None, None),
    ]
