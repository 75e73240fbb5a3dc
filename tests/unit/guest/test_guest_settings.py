"""An interrupted run remembers whom it asks, and may be told of others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import UsageError
from sealtrain.guest.settings import (
    RunSettings,
    load_run,
    move_run,
    name_brokers,
    require_files,
    save_run,
)
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LOCK_NAME


def saved(folder: Path, **changed: Any) -> RunSettings:
    fields: dict[str, Any] = {
        "lock": folder / "recipe.lock.json",
        "platform": "simulator",
        "guest": "guest.sock",
        "collateral": None,
        "brokers": (folder / "north.yaml",),
        "data": (folder / "sealed",),
        "base": folder,
        "out": folder,
    }
    settings = RunSettings(**fields | changed)
    save_run(settings, "5a" * 16)
    return settings


def test_settings_mean_the_same_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    given = {
        "lock": Path("engineer/recipe.lock.json"),
        "guest": "guest.sock",
        "collateral": "file:simulated/collateral.json",
        "gpu_collateral": "file://simulated/gpu.json",
        "brokers": (Path("north.yaml"),),
        "data": (Path("sealed"), "https://store.invalid/sealed"),
        "base": Path(),
        "out": Path("run"),
    }
    settings = saved(tmp_path, **given)
    monkeypatch.chdir("/")
    assert settings.lock == tmp_path / "engineer/recipe.lock.json"
    assert settings.guest == f"{tmp_path}/guest.sock"
    assert settings.collateral == f"file:{tmp_path}/simulated/collateral.json"
    assert settings.gpu_collateral == f"file:{tmp_path}/simulated/gpu.json"
    assert settings.brokers == (tmp_path / "north.yaml",)
    assert settings.data == (tmp_path / "sealed", "https://store.invalid/sealed")
    assert (settings.base, settings.out) == (tmp_path, tmp_path / "run")
    assert load_run(tmp_path / "run") == (settings, "5a" * 16)


@pytest.mark.parametrize(
    ("guest", "lasting"),
    [
        ("nitro:/dev/nsm?compose=app.json", "nitro:/dev/nsm?compose={here}/app.json"),
        (
            "snp:/reports?compose=a%20b.json&certificates=certs",
            "snp:/reports?compose={here}/a+b.json&certificates={here}/certs",
        ),
        ("tdx:/reports?compose=/etc/app.json", "tdx:/reports?compose=/etc/app.json"),
        ("tdx:/reports?other=x", "tdx:/reports?other=x"),
        ("tdx:/reports", "tdx:/reports"),
    ],
)
def test_the_address_of_a_guest_lasts(
    guest: str, lasting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = saved(tmp_path, guest=guest)
    assert settings.guest == lasting.format(here=tmp_path)
    assert saved(tmp_path, guest=settings.guest).guest == settings.guest


@pytest.mark.parametrize("source", ["https://pccs.invalid/", "file:", None, "other:x"])
def test_other_sources_of_collateral_stay_as_they_are(source: str | None, tmp_path: Path) -> None:
    assert saved(tmp_path, collateral=source).collateral == source


def test_a_run_may_be_continued_with_other_brokers(tmp_path: Path) -> None:
    settings = saved(tmp_path, brokers=(tmp_path / "north.yaml", tmp_path / "south.yaml"))
    assert load_run(tmp_path)[0].brokers == settings.brokers
    name_brokers(tmp_path, [tmp_path / "west.yaml"])
    changed, run_id = load_run(tmp_path)
    assert (changed.brokers, run_id) == ((tmp_path / "west.yaml",), "5a" * 16)
    assert changed.data == settings.data


def test_a_folder_without_a_run_is_told_of_no_broker(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        name_brokers(tmp_path, [tmp_path / "west.yaml"])


def test_a_run_may_be_continued_with_another_accelerator_or_dealer(tmp_path: Path) -> None:
    settings = saved(tmp_path, accelerator="gpu-1:7000")
    save_run(replace(settings, accelerator="gpu-2:7000", dealer="tee-1:7001"), "5a" * 16)
    changed, _ = load_run(tmp_path)
    assert (changed.accelerator, changed.dealer) == ("gpu-2:7000", "tee-1:7001")
    assert changed.brokers == settings.brokers


def test_a_run_file_of_before_names_neither(tmp_path: Path) -> None:
    saved(tmp_path)
    document = json.loads((tmp_path / "run.json").read_text())
    del document["accelerator"], document["dealer"]
    (tmp_path / "run.json").write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    old, _ = load_run(tmp_path)
    assert (old.accelerator, old.dealer) == (None, None)


def project(folder: Path, socket: str = "up/guest.sock") -> RunSettings:
    """The settings of a run in a project, as a person begins it there."""
    out = folder / "runs/first"
    out.mkdir(parents=True)
    return saved(
        folder,
        lock=folder / "locked/recipe.lock.json",
        guest=str(folder / socket),
        collateral=f"file:{folder}/up/collateral.json",
        gpu_collateral="https://pccs.invalid/",
        brokers=(folder / "up/broker.yaml",),
        data=(folder / "sealed", "https://store.invalid/sealed"),
        base=folder,
        out=out,
        previous=folder / "runs/zeroth",
    )


@pytest.mark.claim("C624")
def test_a_project_that_is_moved_as_a_whole_is_resumed_where_it_lies(tmp_path: Path) -> None:
    project(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    found, _ = load_run(tmp_path / "new/runs/first")
    assert str(tmp_path / "old") not in repr(found)
    assert found.lock == tmp_path / "new/locked/recipe.lock.json"
    assert found.guest == f"{tmp_path}/new/up/guest.sock"
    assert found.collateral == f"file:{tmp_path}/new/up/collateral.json"
    assert found.gpu_collateral == "https://pccs.invalid/"
    assert found.data == (tmp_path / "new/sealed", "https://store.invalid/sealed")
    assert found.previous == tmp_path / "new/runs/zeroth"


@pytest.mark.claim("C624")
def test_a_run_that_was_moved_alone_finds_its_files_from_where_it_lay(tmp_path: Path) -> None:
    former = project(tmp_path / "old")
    former.lock.parent.mkdir()
    former.lock.write_bytes(b"{}")
    moved = tmp_path / "big/disk/run"
    moved.parent.mkdir(parents=True)
    former.out.rename(moved)
    former.out.parent.rmdir()
    assert load_run(moved)[0].lock != former.lock
    move_run(moved, former.out)
    found, run_id = load_run(moved)
    assert run_id == "5a" * 16
    assert found == replace(former, out=moved)
    assert load_run(moved)[0] == found


@pytest.mark.claim("C624")
def test_a_run_that_is_moved_twice_by_the_same_words_keeps_its_files(tmp_path: Path) -> None:
    """Paths that were written from the new folder are not sought from the former one again."""
    former = project(tmp_path / "old")
    former.lock.parent.mkdir(parents=True)
    former.lock.write_bytes(b"{}")
    moved = tmp_path / "big/disk/of/run"
    moved.parent.mkdir(parents=True)
    former.out.rename(moved)
    for _ in range(3):
        move_run(moved, former.out)
        assert load_run(moved)[0] == replace(former, out=moved)


@pytest.mark.claim("C624")
@pytest.mark.parametrize("word", ["old", "old/runs", "absent/runs/first", "run", "/", "old/runs/"])
def test_a_wrong_word_for_where_a_run_lay_changes_nothing(tmp_path: Path, word: str) -> None:
    former = project(tmp_path / "old")
    former.lock.parent.mkdir(parents=True)
    former.lock.write_bytes(b"{}")
    moved = tmp_path / "elsewhere/run"
    moved.parent.mkdir(parents=True)
    former.out.rename(moved)
    before = (moved / "run.json").read_bytes()
    with pytest.raises(UsageError, check=carries(check="--from")):
        move_run(moved, tmp_path / word)
    assert (moved / "run.json").read_bytes() == before
    move_run(moved, former.out)
    assert load_run(moved)[0].lock == former.lock


def test_a_run_is_found_through_a_link_to_its_folder(tmp_path: Path) -> None:
    former = project(tmp_path / "old")
    (tmp_path / "link").symlink_to(former.out)
    found = load_run(tmp_path / "link")[0]
    assert (found.lock, found.data) == (former.lock, former.data)
    (tmp_path / "old").rename(tmp_path / "real")
    (tmp_path / "old").symlink_to(tmp_path / "real")
    assert load_run(tmp_path / "old/runs/first")[0].lock == tmp_path / "real/locked" / LOCK_NAME


@pytest.mark.parametrize("absent", ["lock", "broker file", "data", "folder of paths"])
def test_what_a_moved_run_does_not_find_is_named_before_it_goes_on(
    tmp_path: Path, absent: str
) -> None:
    settings = project(tmp_path / "all")
    places = {
        "lock": settings.lock,
        "broker file": settings.brokers[0],
        "data": Path(settings.data[0]),
        "outputs before": settings.previous,
    }
    for name, place in places.items():
        if name != absent and place is not None:
            place.mkdir(parents=True, exist_ok=True)
    if absent == "folder of paths":
        settings = replace(settings, base=tmp_path / "gone")
    with pytest.raises(UsageError, check=carries(check=absent)):
        require_files(settings)


def test_a_path_that_shares_no_folder_with_the_run_stays_whole(tmp_path: Path) -> None:
    assert load_run(project(tmp_path / "a", "/nowhere/guest.sock").out)[0].guest == (
        "/nowhere/guest.sock"
    )


@pytest.mark.parametrize("data", [b"\xff\xfe", b'{"version":1', b"", b"x" * (2 << 20)])
def test_a_damaged_file_of_a_run_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(LockInvalid) as caught:
        load_run(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)
