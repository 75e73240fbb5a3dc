"""Which modules the records of packages name."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from sealtrain.recipe.importable import Importable

FAST = f"alpha/fast{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def importable(tmp_path: Path) -> Importable:
    places = {
        name: PathDistribution(tmp_path / f"{name}-1.dist-info") for name in ("alpha", "beta")
    }
    paths = {
        "alpha": (
            "alpha/__init__.py", "alpha/fast.py", FAST, "alpha/data.json", "alpha/old.pyc",
            "shared/a/one.py", "alpha-1.dist-info/METADATA", "alpha.libs/x.so",
        ),
        "beta": ("beta.py", "shared/b.py", "beta.abi3.so", "_plain.so"),
    }  # fmt: skip
    return Importable(places, paths)


def test_files_of_modules_are_found_in_the_order_of_python(
    importable: Importable, tmp_path: Path
) -> None:
    root = str(tmp_path)
    assert importable.roots == (root,)
    assert importable.file_of(root, "alpha") == f"{root}/alpha/__init__.py"
    assert importable.file_of(f"{root}/alpha", "fast") == f"{root}/{FAST}"
    assert importable.file_of(root, "beta") == f"{root}/beta.abi3.so"
    assert importable.file_of(root, "_plain") == f"{root}/_plain.so"
    for folder, name in (("alpha", "old"), ("alpha", "data"), ("", "shared"), ("shared", "a")):
        assert importable.file_of(f"{root}/{folder}".rstrip("/"), name) is None
    assert importable.file_of("/elsewhere", "alpha") is None


def test_folders_without_code_of_their_own_are_known(
    importable: Importable, tmp_path: Path
) -> None:
    assert importable.is_folder(f"{tmp_path}/shared")
    assert importable.is_folder(f"{tmp_path}/shared/a")
    assert not importable.is_folder(f"{tmp_path}/shared/c")
    assert not importable.is_folder(str(tmp_path))


def test_names_that_an_import_begins_with(importable: Importable) -> None:
    assert importable.top_level == {"alpha", "beta", "shared", "_plain"}
    assert Importable().top_level == frozenset()


def test_a_file_that_no_record_lists_is_none_of_a_module(
    importable: Importable, tmp_path: Path
) -> None:
    assert importable.lists(f"{tmp_path}/shared/b.py")
    for name in ("alpha/evil.py", "alpha/old.pyc", "alpha/data.json", "alpha/__init__.pyc"):
        assert not importable.lists(f"{tmp_path}/{name}")
