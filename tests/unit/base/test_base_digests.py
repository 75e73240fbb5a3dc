"""Digests of bytes, files and folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.base.digests import file_sha256, sha256_hex, tree_sha256
from sealtrain.errors import DataInvalid


def grow(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_bytes(b"alpha")
    (folder / "inner" / "b.py").write_bytes(b"beta")
    (folder / "notes.txt").write_bytes(b"notes")
    return folder


def test_the_empty_string_has_its_published_digest() -> None:
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 300_000)
    assert file_sha256(path) == hashlib.sha256(b"x" * 300_000).hexdigest()


def test_a_tree_is_the_digest_of_its_canonical_path_map(tmp_path: Path) -> None:
    folder = grow(tmp_path / "tree")
    expected = (
        f'{{"a.py":"{sha256_hex(b"alpha")}",'
        f'"inner/b.py":"{sha256_hex(b"beta")}","notes.txt":"{sha256_hex(b"notes")}"}}'
    )
    assert tree_sha256(folder) == sha256_hex(expected.encode())


def test_a_tree_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    assert tree_sha256(grow(tmp_path / "one")) == tree_sha256(grow(tmp_path / "two"))


def test_hidden_files_and_bytecode_are_left_out(tmp_path: Path) -> None:
    folder = grow(tmp_path / "tree")
    before = tree_sha256(folder)
    (folder / ".hidden").write_text("x")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("x")
    assert tree_sha256(folder) == before


def test_suffixes_choose_the_files(tmp_path: Path) -> None:
    folder = grow(tmp_path / "tree")
    only_python = tree_sha256(folder, suffixes=(".py",))
    (folder / "notes.txt").write_text("changed")
    assert tree_sha256(folder, suffixes=(".py",)) == only_python
    (folder / "a.py").write_text("changed")
    assert tree_sha256(folder, suffixes=(".py",)) != only_python


def test_renaming_a_file_changes_the_tree(tmp_path: Path) -> None:
    folder = grow(tmp_path / "tree")
    before = tree_sha256(folder)
    (folder / "a.py").rename(folder / "c.py")
    assert tree_sha256(folder) != before


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    folder = grow(tmp_path / "tree")
    (folder / "link.py").symlink_to(folder / "a.py")
    with pytest.raises(DataInvalid, match=r"link\.py"):
        tree_sha256(folder)


def test_an_absent_folder_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match=r"absent$"):
        tree_sha256(tmp_path / "absent")
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        tree_sha256(tmp_path)
