"""The real broker image: made twice it is one digest, it is accounted for, and it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from contained import broker, locked, manifest_of, sealed, trained
from toy_container import containers_start

from sealtrain.base.distributions import CORE
from sealtrain.manifest import form
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.installation import code_sha256, measure_code

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.claim("C126")]

NAME = "broker"


@pytest.fixture(scope="module")
def layout(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("images")
    made(repository, repository, out, out / "cache")
    return out / NAME


def made(repository: Path, source: Path, out: Path, cache: Path, name: str = NAME) -> str:
    words = ["--source", source, "--out", out, "--cache", cache]
    done = subprocess.run(
        [sys.executable, repository / "tools/images/build.py", name, *words],
        capture_output=True,
        text=True,
    )
    if done.returncode and "nobody has" in done.stderr:
        pytest.skip(f"no mirror of Debian within reach: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def unpacked(layout: Path, root: Path) -> Path:
    """The files of an image in a new folder."""
    root.mkdir(mode=0o755)
    blobs = layout / "blobs/sha256"
    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
    for layer in manifest["layers"]:
        with tarfile.open(blobs / layer["digest"][7:]) as tar:
            tar.extractall(root, filter="tar")
    return root


def inside(root: Path, *words: str) -> str:
    """What a program of an unpacked image says."""
    chroot = [shutil.which("chroot") or "/usr/sbin/chroot", "--userspec=65532:65532", root, *words]
    done = subprocess.run(chroot, capture_output=True, text=True, env={"LANG": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def sealtrain(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sealtrain", *words], capture_output=True, text=True
    )


@pytest.mark.needs("git")
def test_another_copy_of_the_source_gives_the_same_digest(
    repository: Path, layout: Path, tmp_path: Path
) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(repository / name, tmp_path / "source" / name)
    again = made(repository, tmp_path / "source", tmp_path, tmp_path / "cache")
    told = json.loads(sealtrain("image", "show", layout, "--json").stdout)
    assert (told["digest"], told["code"]) == (again, code_sha256(measure_code([CORE])))


def test_it_is_accounted_for_until_one_byte_differs(repository: Path, layout: Path) -> None:
    assert sealtrain("image", "verify", layout, "--source", repository).returncode == 0
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    at = blob.read_bytes().index(b"def ")
    with blob.open("r+b") as file:
        file.seek(at)
        file.write(b"Def")
    try:
        assert sealtrain("image", "verify", layout, "--source", repository).returncode == 3
    finally:
        with blob.open("r+b") as file:
            file.seek(at)
            file.write(b"def")


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_its_interpreter_and_its_libraries_run_without_a_shell(
    layout: Path, tmp_path: Path
) -> None:
    root = unpacked(layout, tmp_path / "root")
    assert not [name for name in ("sh", "bash", "dash") if (root / "usr/bin" / name).exists()]

    core = code_sha256(measure_code([CORE]))
    assert core in inside(root, "/usr/local/bin/sealtrain", "--version")
    assert "Usage" in inside(root, "/usr/local/bin/sealtrain", "broker", "serve", "--help")
    loads = "import sqlite3, ssl, ctypes, psycopg, cryptography, sealtrain.broker.http.app"
    inside(root, "/usr/bin/python3.11", "-s", "-c", loads)


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_the_image_of_a_federations_guests_merges_by_flowers_strategies(
    repository: Path, layout: Path, tmp_path: Path
) -> None:
    made(repository, repository, tmp_path, layout.parent / "cache", "guest-federated")
    root = unpacked(tmp_path / "guest-federated", tmp_path / "root")
    loads = "import flwr.serverapp.strategy as s, sealtrain_together.federated.engine; s.FedAdam"
    inside(root, "/usr/bin/python3.11", "-s", "-c", loads)


@pytest.mark.claim("C128")
@pytest.mark.needs("bubblewrap")
@pytest.mark.skipif(not containers_start(), reason="bubblewrap makes no namespaces here")
def test_a_broker_and_a_guest_run_in_their_containers(
    repository: Path, layout: Path, tmp_path: Path
) -> None:
    """Nothing but the two images and the simulated guests' sockets takes part in the run."""
    made(repository, repository, tmp_path, layout.parent / "cache", "guest-cpu")
    image = tmp_path / "guest-cpu"
    folder = tmp_path / "story"
    folder.mkdir()
    with broker(folder, layout) as part:
        document = locked(folder, image)
        sealed(folder, document)
        report = trained(folder, document, image)
        assert report["accepted"]
        assert report["simulated"]
        manifest = form.read(manifest_of(folder).read_bytes()).predicate
        assert manifest.deployment.compose_hash == compose_hash(document.read_bytes())
        assert manifest.deployment.platform == "simulator"
        assert sealtrain("image", "verify", image, "--source", repository,
                         "--lock", folder / "recipe.lock.json").returncode == 0  # fmt: skip
        assert part.end() == 0
