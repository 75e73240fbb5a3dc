"""A disk that takes nothing: each command says so, exits 4 and leaves nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import need

from sealtrain.consortium.members import Consortium
from sealtrain.keys.identity import Identity

pytestmark = pytest.mark.long

KB = 1 << 10

COMMANDS = {
    "keygen": "keygen clinic-x --out {out}",
    "keygen into a new folder": "keygen clinic-x --out {out}/new/folder",
    "consortium create": "consortium create lab --owner a.public.json --owner b.public.json "
    "--approve 2 --out {out}/consortium.json",
    "simulator serve": "simulator serve --simulator root --write-policy {out}/policy.yaml",
    "deploy ticket": "deploy ticket --role broker --listen 127.0.0.1:0 --out {out}/ticket.json",
    "broker deployment": "broker deployment --consortium lab.json --policy policy.yaml "
    "--out {out}/broker-compose.json",
}


def sealtrain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sealtrain", *words, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("made")
    owners = [Identity.generate(name) for name in ("a", "b")]
    for owner in owners:
        (folder / f"{owner.name}.public.json").write_bytes(owner.public.to_bytes())
    lab = Consortium.found(
        name="lab", owners=[owner.public for owner in owners], approve=2, own_data_consent=False
    )
    (folder / "lab.json").write_bytes(lab.to_bytes())
    done = sealtrain(
        folder, "simulator", "serve", "--simulator", "root", "--write-policy", "policy.yaml"
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=["full", pytest.param("read-only", marks=pytest.mark.nightly)])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that takes no byte more."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = need("mount")["mount"]
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    how = f"size={64 * KB}" + (",ro" if request.param == "read-only" else "")
    if subprocess.run([mount, "-t", "tmpfs", "-o", how, "tmpfs", place], check=False).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        if request.param == "full":
            with pytest.raises(OSError, match="space"):
                (place / "fill").write_bytes(bytes(65 * KB))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_says_so_and_leaves_nothing(name: str, made: Path, unwritable: Path) -> None:
    done = sealtrain(made, *COMMANDS[name].format(out=unwritable).split())
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "storage-failed")
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in unwritable.iterdir() if path.name != "fill"] == []


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_folder_to_begin_in_is_made_whole_or_not_at_all(
    made: Path, unwritable: Path, pages: int
) -> None:
    fill = unwritable / "fill"
    if not fill.exists():
        pytest.skip("nothing is written there at all")
    with fill.open("r+b") as file:
        file.truncate(fill.stat().st_size - pages * 4 * KB)
    words = ("init", unwritable / "begin", "--owner-name", "a", "--broker", "up.yaml")
    done = sealtrain(made, *map(str, words))
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "storage-failed")
    assert not (unwritable / "begin").exists()


def test_a_file_where_a_folder_should_be(made: Path) -> None:
    done = sealtrain(made, "keygen", "clinic-x", "--out", "lab.json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "storage-failed")
    assert "bug" not in done.stderr
