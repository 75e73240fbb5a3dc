"""What an owner or a recipient opens is theirs alone on the disk, from its first byte on."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sealing_world import json_lines, sealed_folder

from sealtrain.base.files import atomic_folder, private_file
from sealtrain.base.secret import Secret
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.export import export

pytestmark = pytest.mark.claim("C104")


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """A mask that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): oct(stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("to", ["jsonl", "csv", "parquet", "arrow"])
def test_exported_records_are_private(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines([{"text": f"record {n}"} for n in range(50)]))
    out = tmp_path / "out"
    out.mkdir()
    meanwhile: list[dict[str, str]] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (meanwhile.append(modes(out)), fsync(file))[1])
    with sealed_folder(source, tmp_path / "a.sealed").open() as dataset:
        meanwhile.clear()
        export(dataset, out / "open", to=to)
    assert modes(out) == {"open": "0o600"}
    assert meanwhile
    assert {mode for found in meanwhile for mode in found.values()} == {"0o600"}


def test_exported_files_are_private_with_their_folders(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    for name in ("a", "deep/b", "deep/er/c"):
        (tree / name).write_bytes(name.encode())
    out = tmp_path / "out"
    out.mkdir()
    with sealed_folder(tree, tmp_path / "a.sealed").open() as dataset:
        export(dataset, out / "open", to="raw")
    assert modes(out) == {
        "open": "0o700", "open/a": "0o600", "open/deep": "0o700", "open/deep/b": "0o600",
        "open/deep/er": "0o700", "open/deep/er/c": "0o600",
    }  # fmt: skip
    assert (out / "open/deep/er/c").read_bytes() == b"deep/er/c"


def test_one_file_alone_is_private(tmp_path: Path) -> None:
    (tmp_path / "scan.bin").write_bytes(b"x" * 100)
    with sealed_folder(tmp_path / "scan.bin", tmp_path / "a.sealed").open() as dataset:
        export(dataset, tmp_path / "open.bin", to="raw")
    assert modes(tmp_path)["open.bin"] == "0o600"


def test_a_folder_is_private_before_anything_is_in_it(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with private_file(folder / "a" / "b") as file:
            file.write(b"secret")
        assert modes(folder) == {"a": "0o700", "a/b": "0o600"}
        with pytest.raises(FileExistsError):
            private_file(folder / "a" / "b")


def test_what_is_sealed_may_be_read_by_whoever_carries_it(tmp_path: Path) -> None:
    (tmp_path / "scan.bin").write_bytes(b"x" * 100)
    sealed_folder(tmp_path / "scan.bin", tmp_path / "a.sealed")
    assert modes(tmp_path)["a.sealed"] == "0o755"


@pytest.mark.parametrize("kind", [Secret, DataKey])
@pytest.mark.parametrize("value", [32, "x" * 32, [0] * 32, None, True])
def test_a_secret_is_made_of_bytes_alone(kind: type[Secret], value: object) -> None:
    with pytest.raises(TypeError):
        kind(value)  # type: ignore[arg-type]  # that is the attack


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_secret_keeps_a_copy_of_the_bytes_it_is_given(kind: type) -> None:
    given = bytearray(range(32))
    secret = Secret(kind(given))
    given[0] = 99
    assert secret.reveal() == bytes(range(32))
