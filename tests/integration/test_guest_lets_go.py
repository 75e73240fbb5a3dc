"""A guest that cannot open all of its data keeps nothing: no lease, no key in use, no open file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joint_site import JointSite, joint_site
from world import OWNERS

from sealtrain.errors import LeaseStale
from sealtrain.guest import key_holder
from sealtrain.guest.guest import Surroundings
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.sealing.errors import SealRefused
from sealtrain.sealing.opened_dataset import SealedDataset

pytestmark = pytest.mark.claim("C104")


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JointSite]:
    with joint_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def open_files(below: Path) -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and str(below) in str(link.readlink()):
            found.add(str(link.readlink()))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files by /proc")
def test_a_second_dataset_that_does_not_open_ends_the_lease_on_the_first(
    at: JointSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, open_dataset = key_holder.find_datasets, SealedDataset.open
    opened: list[SealedDataset] = []
    keys: list[Any] = []

    def with_a_damaged_copy(*arguments: Any, **options: Any) -> Any:
        first, second = find(*arguments, **options)
        copy = tmp_path / "copy.sealed"
        shutil.copytree(second.folder, copy)
        (copy / "index.sealed").write_bytes((copy / "index.sealed").read_bytes()[:-1])
        return first, replace(second, folder=copy)

    def noted(folder: Path, key: Any, *, root: str) -> SealedDataset:
        keys.append(key)
        dataset = open_dataset(folder, key, root=root)
        dataset.batch(0)
        opened.append(dataset)
        return dataset

    monkeypatch.setattr(key_holder, "find_datasets", with_a_damaged_copy)
    monkeypatch.setattr(SealedDataset, "open", noted)
    with pytest.raises(SealRefused):
        DataGuest(
            at.settings("lets-go"),
            Asking(run_id=os.urandom(16).hex(), resuming=False, owner=OWNERS[0]),
            Surroundings(),
            shared_out=True,
        ).prepare()
    (dataset,) = opened
    assert len(keys) == 2
    with pytest.raises(LeaseStale):
        dataset.batch(0)
    with pytest.raises(LeaseStale):
        keys[0].reveal()
    assert open_files(at.folder / "sealed") == set()
