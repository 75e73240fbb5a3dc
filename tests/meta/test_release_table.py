"""The table of releases is written from what was added, once for each release."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from boot_files import enclave

from sealtrain.image.machine.enclavefile import measure_enclave

TOOL = Path(__file__).resolve().parents[2] / "tools" / "release_table.py"


@pytest.fixture(scope="module")
def table() -> Any:
    spec = importlib.util.spec_from_file_location("release_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "releases.json"
    path.write_text("[]")
    return path


def test_a_release_shows_digests_and_registers(table: Any, data: Path, tmp_path: Path) -> None:
    disk, eif = tmp_path / "guest.disk", tmp_path / "guest.eif"
    disk.write_bytes(b"a disk")
    eif.write_bytes(enclave(b"init", b"root"))
    named = (("file", "guest.disk", disk), ("eif", "guest.eif", eif))
    table.add("1.0.0", [table.describe(*each) for each in named], data)
    text = table.page(json.loads(data.read_text()))
    assert table.file_sha256(disk) in text
    assert table.file_sha256(eif) in text
    assert measure_enclave(eif.read_bytes())[0] in text


@pytest.mark.parametrize(
    ("version", "names"),
    [("1.0", ["a"]), ("1.0.0", []), ("1.0.0", ["a", "a"]), ("1.0.0", ["A b"]), ("0.9.0", ["a"])],
)
def test_a_release_is_added_once_and_whole(
    table: Any, data: Path, version: str, names: list[str]
) -> None:
    item = {"digest": "sha256:00", "registers": {}}
    table.add("0.9.0", [{"name": "first", **item}], data)
    before = data.read_bytes()
    with pytest.raises(ValueError):  # of a tool
        table.add(version, [{"name": name, **item} for name in names], data)
    assert data.read_bytes() == before
