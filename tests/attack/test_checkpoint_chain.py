"""An operator who holds the run's folder swaps checkpoints: no resumed run goes on from them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_world import (
    Ran,
    checkpoint_store,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.errors import Refused, StorageFailed
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import ChunkDamaged, HeaderDamaged, RootMismatch, SealRefused
from sealtrain.sealing.store import SealedStore
from sealtrain.training.checkpoints.checkpoint import CheckpointRef, newest, write

pytestmark = [pytest.mark.long, pytest.mark.claim("C34")]
RUN_ID = "5e" * 16
KEPT = {"max_steps": 4, "save_steps": 1, "save_total_limit": 9, "logging_steps": 1}
BEST = KEPT | {
    "eval_steps": 1,
    "metric_for_best_model": "eval_loss",
    "load_best_model_at_end": True,
    "greater_is_better": True,  # of a model that learns, the first is then the best
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def first(
    sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[CheckpointRef]]:
    """A run that was stopped after step 3, its folder and checkpoints."""
    return stopped(sealed, tmp_path_factory.mktemp("first"))


def stopped(sealed: dict[str, Any], folder: Path, **trainer: Any) -> tuple[Path, list[Any]]:
    recipe = sft(trainer=KEPT | trainer)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(folder), stop_at=3)
    return folder, ran.checkpoints


def resumed(sealed: dict[str, Any], folder: Path, anchor: CheckpointRef) -> Ran:
    recipe = sft(trainer=KEPT)
    store = checkpoint_store(folder)
    ref = newest(store, (anchor.counter, anchor.digest))
    return run(recipe, sources_of(recipe, sealed), store, resume=ref)


def put(folder: Path, ref: CheckpointRef, other: Path, other_ref: CheckpointRef) -> None:
    """Put another checkpoint's file in the place of ``ref``."""
    source = checkpoint_store(other).path(other_ref.name)
    shutil.copyfile(source, checkpoint_store(folder).path(ref.name))


@pytest.fixture
def copied(first: tuple[Path, list[CheckpointRef]], tmp_path: Path) -> tuple[Path, list[Any]]:
    shutil.copytree(first[0], tmp_path / "run")
    return tmp_path / "run", first[1]


def test_unharmed_it_goes_on(copied: tuple[Path, list[Any]], sealed: dict[str, Any]) -> None:
    folder, refs = copied
    ran = resumed(sealed, folder, refs[2])
    assert ran.checkpoints[0].previous == refs[2].digest


def older(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    checkpoint_store(folder).remove(refs[2].name)


def older_as_newest(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    put(folder, refs[2], folder, refs[1])


def of_another_branch(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    put(folder, refs[2], other, others[2])


def whole_other_branch(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    for ref, replaced in zip(refs, others, strict=True):
        put(folder, ref, other, replaced)


def later_of_another_branch(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    later = replace(others[2], counter=4, step=4)
    put(folder, later, other, others[2])


def a_bit(folder: Path, refs: list[Any], other: Path, others: list[Any]) -> None:
    path = checkpoint_store(folder).path(refs[2].name)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    "attack",
    [older, older_as_newest, of_another_branch, whole_other_branch, later_of_another_branch, a_bit],
)
def test_a_swapped_checkpoint_is_refused(
    attack: Callable[..., None],
    copied: tuple[Path, list[Any]],
    sealed: dict[str, Any],
    tmp_path: Path,
) -> None:
    folder, refs = copied
    other, others = stopped(sealed, tmp_path / "other", seed=8)
    attack(folder, refs, other, others)
    with pytest.raises(Refused) as refusal:
        resumed(sealed, folder, refs[2])
    assert isinstance(refusal.value, SealRefused) or refusal.value.code == "checkpoint-refused"


def test_a_swapped_best_checkpoint_does_not_become_the_result(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer=BEST)
    branches = {}
    for name, seed in (("run", 7), ("other", 8)):
        branch = sft(trainer=BEST | {"seed": seed})
        store = checkpoint_store(tmp_path / name)
        branches[name] = run(branch, sources_of(branch, sealed), store, stop_at=3).checkpoints
    best = branches["run"][0]
    put(tmp_path / "run", best, tmp_path / "other", branches["other"][0])
    store = checkpoint_store(tmp_path / "run")
    anchor = branches["run"][-1]
    with pytest.raises((RootMismatch, ChunkDamaged, HeaderDamaged)):
        run(
            recipe,
            sources_of(recipe, sealed),
            store,
            resume=newest(store, (anchor.counter, anchor.digest), complete={anchor.counter}),
        )


def test_a_disk_that_fills_up_stops_training_by_name(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checkpoint_store(tmp_path)
    recipe = sft(trainer=KEPT)
    write = store.__class__.write

    def full(self: Any, name: str, *binding: Any, **more: Any) -> Any:
        if name.startswith("checkpoint-00000003"):
            raise StorageFailed("the disk does not take it")
        return write(self, name, *binding, **more)

    monkeypatch.setattr(store.__class__, "write", full)
    with pytest.raises(StorageFailed):
        run(recipe, sources_of(recipe, sealed), store)
    monkeypatch.undo()
    kept = newest(store, None)
    assert kept is not None
    assert kept.step == 2
    whole = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "whole"))
    again = run(recipe, sources_of(recipe, sealed), store, resume=kept)
    assert again.weights == whole.weights


def symbolic(spare: Path, other: Path) -> None:
    spare.symlink_to(other)


def hard(spare: Path, other: Path) -> None:
    spare.hardlink_to(other)


def by_a_link(spare: Path, other: Path) -> None:
    link = spare.parent / "link"
    link.symlink_to(other)
    spare.symlink_to(link)


def pipe(spare: Path, _other: Path) -> None:
    os.mkfifo(spare)


def device(spare: Path, _other: Path) -> None:
    spare.symlink_to("/dev/full")


@pytest.mark.claim("C553")
@pytest.mark.parametrize("crafted", [symbolic, hard, by_a_link, pipe, device])
def test_a_crafted_file_leads_a_checkpoint_to_no_other_file(
    crafted: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """In place of the space that a retired checkpoint left, which the next one writes over."""
    store, other = checkpoint_store(tmp_path / "store"), tmp_path / "other"
    other.write_bytes(b"of another service")
    with store.write("first", {}) as file:
        file.write(b"x" * 500)
    store.retire("first")
    (spare,) = (tmp_path / "store").iterdir()
    spare.unlink()
    crafted(spare, other)
    with store.write("second", {}) as file:
        file.write(b"y" * 300)
    assert other.read_bytes() == b"of another service"
    with store.read("second", {}) as file:
        assert file.read() == b"y" * 300
    assert store.names() == ("second",)
    assert store.path("second").stat().st_nlink == 1
    assert not store.path("second").is_symlink()


@pytest.mark.claim("C553")
@pytest.mark.parametrize("anchored", [0, 1])
def test_a_crafted_checkpoint_is_not_gone_on_from(anchored: int, tmp_path: Path) -> None:
    """Whole by its own hashes, of a later counter, and leading back to the anchored one: no key."""
    ours, theirs = (
        checkpoint_store(tmp_path / "ours"),
        SealedStore(tmp_path / "theirs", DataKey(bytes(32)), label="checkpoint"),
    )
    first = CheckpointRef(counter=1, step=1)
    first = write(ours, RUN_ID, first, (b"state",))
    later = CheckpointRef(counter=2, step=2, previous=first.digest)
    made = write(theirs, RUN_ID, later, (b"crafted",))
    shutil.copyfile(theirs.path(made.name), ours.path(made.name))
    found = newest(ours, (1, first.digest) if anchored else None)
    assert found is not None
    with (
        pytest.raises(SealRefused),
        ours.read(found.name, found.binding(RUN_ID), root=found.digest) as file,
    ):
        file.read()
