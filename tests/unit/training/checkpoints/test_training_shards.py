"""A checkpoint in shards: any number of ranks has back what ranks made, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks
from training_world import RUN_ID, checkpoint_store

from sealtrain.errors import StorageFailed
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shards import ShardIndex, retire_orphans

if not COLLECTING:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from sealtrain.training.checkpoints.shardsaver import ShardSaver

pytestmark = pytest.mark.long


def whole() -> dict[str, Any]:
    """A state of a whole model: uneven, tiny, half-wide and empty tensors."""
    return {
        "a": torch.arange(35, dtype=torch.float32).reshape(7, 5),
        "b": torch.arange(12, dtype=torch.bfloat16).reshape(3, 2, 2),
        "one": torch.arange(1, dtype=torch.float64),
        "none": torch.empty(0, 3),
    }


def shared(made: dict[str, Any], world: int) -> dict[str, Any]:
    """The same, as ranks share it out, beside what each has whole."""
    mesh = init_device_mesh("cpu", (world,))
    model = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in made.items()}
    return {
        "model": model | {"tied": model["a"]},
        "optimizer": {
            "state": {"a": {"step": torch.tensor(3.0), "exp_avg": model["a"] * 2}},
            "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": ["a"]}],
        },
    }


def make(
    folder: Path,
    world: int,
    *,
    store: Any = None,
    run_id: str = RUN_ID,
    at: tuple[int, int, str] = (1, 9, ""),
    made: dict[str, Any] | None = None,
    make_room: Callable[[], object] = lambda: None,
) -> CheckpointRef:
    """Seal a checkpoint in so many ranks."""
    store = store or checkpoint_store(folder)
    counter, step, previous = at
    wanted = CheckpointRef(counter=counter, step=step, previous=previous)

    def work(rank: int) -> Any:
        saver = ShardSaver(store, run_id)
        saver.save(wanted if rank == 0 else None, shared(made or whole(), world))
        index = saver.settle(wait=True, make_room=make_room)
        saver.close()
        assert index is not None
        return index.to_state()

    kept = in_ranks(world, work)[0]
    return checkpoint.save(store, run_id, counter, step, {"shards": kept}, previous=previous)


def load(folder: Path, world: int, ref: CheckpointRef) -> list[dict[str, Any]]:
    """What so many ranks have of it, whole again."""
    store = checkpoint_store(folder)

    def work(_rank: int) -> dict[str, Any]:
        blank = {name: torch.full_like(tensor, 77) for name, tensor in whole().items()}
        state, saver = shared(blank, world), ShardSaver(store, RUN_ID)
        kept = checkpoint.load(store, RUN_ID, ref)["shards"]
        found = saver.load(ref, kept, state)
        saver.close()
        moments = found["optimizer"]["state"]["a"]
        return {
            "groups": found["optimizer"]["param_groups"],
            "step": moments["step"],
            "moment": moments["exp_avg"].full_tensor(),
            **{name: state["model"][name].full_tensor() for name in (*whole(), "tied")},
        }

    return in_ranks(world, work)


@pytest.mark.parametrize(("made_in", "loaded_in"), [(1, 1), (2, 2), (2, 1), (1, 2), (3, 2)])
def test_any_number_of_ranks_has_it_back(made_in: int, loaded_in: int, tmp_path: Path) -> None:
    ref = make(tmp_path, made_in)
    wanted = whole()
    for found in load(tmp_path, loaded_in, ref):
        assert found["groups"] == [{"lr": 0.5, "betas": (0.9, 0.99), "params": ["a"]}]
        assert found["step"] == 3.0
        assert torch.equal(found["moment"], wanted["a"] * 2)
        assert torch.equal(found["tied"], wanted["a"])
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name


def shard_at(folder: Path, number: int, ref: CheckpointRef, count: int = 2) -> Path:
    name = f"shard-{ref.counter:08d}-{ref.step:010d}-of-{count:04d}.sealed"
    return folder / f"rank-{number:04d}" / name


def swap(folder: Path, ref: CheckpointRef) -> None:
    first, second = (shard_at(folder, number, ref) for number in (0, 1))
    first.rename(folder / "kept")
    second.rename(first)
    (folder / "kept").rename(second)


def put_older(folder: Path, ref: CheckpointRef) -> None:
    """In place of a shard the same rank's shard of the checkpoint before."""
    before = CheckpointRef(counter=ref.counter - 1, step=ref.step - 1)
    shutil.copy(shard_at(folder, 1, before), shard_at(folder, 1, ref))


def put_of_another_run(folder: Path, ref: CheckpointRef) -> None:
    """The shard of the same counter and step of another run, of which the store has the key too."""
    other = folder.parent / "other"
    first = make(other, 2, run_id="cd" * 16, at=(1, 8, ""))
    make(other, 2, run_id="cd" * 16, at=(2, 9, first.digest))
    shutil.copy(shard_at(other, 1, ref), shard_at(folder, 1, ref))


def put_of_a_branch(folder: Path, ref: CheckpointRef) -> None:
    """The same run's shard of another history: same counter and step, other weights."""
    other = folder.parent / "branch"
    first = make(other, 2, at=(1, 8, ""))
    changed = {name: tensor + 1 for name, tensor in whole().items()}
    make(other, 2, at=(2, 9, first.digest), made=changed)
    shutil.copy(shard_at(other, 1, ref), shard_at(folder, 1, ref))


def flip(folder: Path, ref: CheckpointRef) -> None:
    path = shard_at(folder, 0, ref)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1  # of the ciphertext; the trailer has 80 bytes
    path.write_bytes(data)


def cut(folder: Path, ref: CheckpointRef) -> None:
    path = shard_at(folder, 1, ref)
    path.write_bytes(path.read_bytes()[:-1])


def take_away(folder: Path, ref: CheckpointRef) -> None:
    shard_at(folder, 1, ref).unlink()


def put_a_link(folder: Path, ref: CheckpointRef) -> None:
    path = shard_at(folder, 1, ref)
    path.unlink()
    path.symlink_to(shard_at(folder, 0, ref))


ATTACKS = (swap, put_older, put_of_another_run, put_of_a_branch, flip, cut, take_away, put_a_link)


@pytest.mark.claim("C732")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_shard_of_anything_else_is_refused(
    attack: Callable[[Path, CheckpointRef], None], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = make(folder, 2, at=(1, 8, ""))
    ref = make(folder, 2, at=(2, 9, first.digest))
    attack(folder, ref)
    for world in (2, 1):
        with pytest.raises((SealRefused, CheckpointRefused)):
            load(folder, world, ref)
    load(folder, 1, first)


def test_an_index_of_another_model_is_refused(tmp_path: Path) -> None:
    ref = make(tmp_path, 1, made={**whole(), "a": torch.zeros(7, 4)})
    with pytest.raises(CheckpointRefused):
        load(tmp_path, 1, ref)


def without_a_piece(kept: dict[str, Any]) -> None:
    del kept["tensors"]["model.a"][2][1]


def with_a_piece_twice(kept: dict[str, Any]) -> None:
    pieces = kept["tensors"]["model.a"][2]
    pieces[1][0] = pieces[0][0]


def beyond_its_tensor(kept: dict[str, Any]) -> None:
    kept["tensors"]["model.a"][2][1][0][0] += 1


def in_another_place(kept: dict[str, Any]) -> None:
    kept["tensors"]["model.a"][2][0][3] += 4


def in_no_shard(kept: dict[str, Any]) -> None:
    kept["tensors"]["model.a"][2][0][2] = 2


def of_another_length(kept: dict[str, Any]) -> None:
    kept["files"][0][1] += 4


def without_a_shard(kept: dict[str, Any]) -> None:
    del kept["files"][1]


def of_another_type(kept: dict[str, Any]) -> None:
    kept["tensors"]["model.a"][0] = "F64"


def of_no_type(kept: dict[str, Any]) -> None:
    kept["tensors"]["model.a"][0] = "OBJECT"


def with_no_digest(kept: dict[str, Any]) -> None:
    kept["files"][0][0] = "../" * 20


WRONG = (
    without_a_piece,
    with_a_piece_twice,
    beyond_its_tensor,
    in_another_place,
    in_no_shard,
    of_another_length,
    without_a_shard,
    of_another_type,
    of_no_type,
    with_no_digest,
)


@pytest.fixture(scope="module")
def kept_index(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("index")
    return checkpoint.load(checkpoint_store(folder), RUN_ID, make(folder, 2))["shards"]


@pytest.mark.claim("C732")
@pytest.mark.parametrize("change", WRONG)
def test_an_index_that_leaves_a_hole_is_refused(
    change: Callable[[dict[str, Any]], None], kept_index: Any
) -> None:
    kept = {
        **kept_index,
        "files": [list(shard) for shard in kept_index["files"]],
        "tensors": {
            name: [
                dtype,
                list(shape),
                [[list(at), list(size), *rest] for at, size, *rest in pieces],
            ]
            for name, (dtype, shape, pieces) in kept_index["tensors"].items()
        },
    }
    ShardIndex.of_state(kept)
    change(kept)
    with pytest.raises(CheckpointRefused):
        ShardIndex.of_state(kept)


class Failing:
    """A store whose disk does not take shards with a number, so many times."""

    def __init__(self, folder: Path, number: int, times: int) -> None:
        self.store = checkpoint_store(folder)
        self.number, self.left = number, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @contextmanager
    def write(self, name: str, binding: Mapping[str, str | int]) -> Iterator[Any]:
        if binding.get("shard") == self.number and self.left:
            self.left -= 1
            raise StorageFailed("full", check="storage", got=os.strerror(errno.ENOSPC))
        with self.store.write(name, binding) as file:
            yield file


@pytest.mark.claim("C733")
def test_a_shard_that_the_disk_does_not_take_is_tried_after_room_was_made(tmp_path: Path) -> None:
    rooms: list[int] = []
    store = Failing(tmp_path, 1, 1)
    ref = make(tmp_path, 2, store=store, make_room=lambda: rooms.append(1))
    assert rooms == [1]
    load(tmp_path, 2, ref)


@pytest.mark.claim("C733")
def test_a_checkpoint_without_one_of_its_shards_is_none(tmp_path: Path) -> None:
    first = make(tmp_path, 2, at=(1, 8, ""))
    with pytest.raises(StorageFailed):
        make(tmp_path, 2, store=Failing(tmp_path, 1, 9), at=(2, 9, first.digest))
    assert shard_at(tmp_path, 0, CheckpointRef(counter=2, step=9)).exists()
    assert checkpoint.newest(checkpoint_store(tmp_path), None) == first
    load(tmp_path, 2, first)


@pytest.mark.claim("C733")
@pytest.mark.parametrize("damage", [flip, cut, take_away])
def test_a_checkpoint_above_the_anchor_with_a_torn_shard_is_passed_over(
    damage: Callable[[Path, CheckpointRef], None], tmp_path: Path
) -> None:
    first = make(tmp_path, 2, at=(1, 8, ""))
    second = make(tmp_path, 2, at=(2, 9, first.digest))
    store = checkpoint_store(tmp_path)
    anchor = (first.counter, first.digest)
    assert checkpoint.newest(store, anchor) == second
    damage(tmp_path, second)
    assert checkpoint.newest(store, anchor) == first
    # The brokers know of it: what is older is refused, and so is it without its shards.
    assert checkpoint.newest(store, (second.counter, second.digest)) == second
    with pytest.raises((SealRefused, CheckpointRefused)):
        load(tmp_path, 2, second)


@pytest.mark.claim("C733")
def test_a_checkpoint_goes_before_its_shards_and_takes_orphans_along(tmp_path: Path) -> None:
    store = checkpoint_store(tmp_path)
    first = make(tmp_path, 2, at=(1, 8, ""))
    second = make(tmp_path, 2, at=(2, 9, first.digest))
    checkpoint.prune(store, 1)
    assert shard_at(tmp_path, 0, first).exists()
    shutil.copy(
        shard_at(tmp_path, 0, second),
        shard_at(tmp_path, 0, second, 3).with_name("shard-00000003-0000000010-of-0002.sealed"),
    )
    retire_orphans(store, second.counter)
    store.sweep()
    assert not shard_at(tmp_path, 0, first).exists()
    assert shard_at(tmp_path, 0, CheckpointRef(counter=3, step=10)).exists()  # being written
    load(tmp_path, 2, second)
