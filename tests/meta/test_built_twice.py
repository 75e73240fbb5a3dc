"""Two builds of one source: what parts their builders, and what pins an enclave's kernel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boot_files import enclave

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def load() -> Callable[[str], Any]:
    """A program of ``tools`` as a module."""

    def load(path: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"tool_{Path(path).stem}", TOOLS / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="module")
def twice(load: Callable[[str], Any]) -> Any:
    return load("images/twice.py")


@pytest.fixture(scope="module")
def kernel(load: Callable[[str], Any]) -> Any:
    return load("enclave/kernel.py")


def test_the_builders_share_neither_folder_umask_zone_nor_day(twice: Any, tmp_path: Path) -> None:
    first, second = twice.builders(tmp_path, Path(sys.executable), tmp_path / "lib.so")
    assert first.folder != second.folder
    assert first.umask != second.umask
    assert first.variables["TZ"] != second.variables["TZ"]
    assert first.variables["PYTHONHASHSEED"] != second.variables["PYTHONHASHSEED"]
    assert "FAKETIME" not in first.variables
    assert second.variables["FAKETIME"] == twice.LATER
    assert (second.user != first.user) == (os.geteuid() == 0)


def test_a_builder_says_what_its_programs_see(twice: Any, tmp_path: Path) -> None:
    builder = twice.Builder(
        folder=tmp_path, python=Path(sys.executable), user=None, umask=0o077,
        variables={"TZ": "EAST-14"},
    )  # fmt: skip
    said = builder.say()
    assert (said["user"], said["umask"], said["zone"]) == (os.geteuid(), "077", "+1400")


def test_equal_files_are_described_once_and_another_byte_is_named(
    twice: Any, tmp_path: Path
) -> None:
    made: list[dict[str, Path]] = []
    for name, tail in (("first", b"z"), ("second", b"y")):
        folder = tmp_path / name
        (folder / "broker/blobs").mkdir(parents=True)
        (folder / "broker/blobs/layer").write_bytes(tail)
        (folder / "same.eif").write_bytes(enclave(b"init", b"root"))
        (folder / "guest.raw").write_bytes(bytes(5) + tail)
        made.append({"same.eif": folder / "same.eif", "guest.raw": folder / "guest.raw"})
    rows, unlike = twice.compare((made[0], made[1]))
    assert [row["name"] for row in rows] == ["same.eif", "guest.raw"]
    assert unlike == ["guest.raw: byte 5"]
    layouts = tmp_path / "first/broker", tmp_path / "second/broker"
    assert twice.first_difference(*layouts) == "blobs/layer"
    (tmp_path / "first/broker/more").touch()
    assert twice.first_difference(*layouts).startswith("blobs/layer")


def test_a_kernel_is_of_one_version_and_its_module_of_one_digest(kernel: Any) -> None:
    pins = kernel.load_pins()
    packages = [pin for _, pin in pins.packages]
    assert len({pin.version for pin in packages}) == 1
    assert all(pins.release in pin.path for pin in packages[:4])
    module = b"\x7fELF"
    kernel.require_rebuilt(module, hashlib.sha256(module).hexdigest())
    with pytest.raises(SystemExit):
        kernel.require_rebuilt(module + b"\0", hashlib.sha256(module).hexdigest())


def test_a_source_that_is_not_released_is_replaced_and_goes_with_a_release(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    table = load("release_table.py")
    data = tmp_path / "releases.json"
    data.write_text("[]")
    said = {"day": "2026-11-29", "user": 0, "umask": "022", "zone": "+0000", "python": "3.11.7"}
    files = [{"name": "guest.raw", "digest": "sha256:00", "registers": {}}]
    record = {"commit": "ab" * 20, "builders": [said, said], "files": files}
    table.set_source(record, data)
    table.set_source(record | {"commit": "cd" * 20}, data)
    (kept,) = json.loads(data.read_text())
    assert kept["commit"] == "cd" * 20
    assert "cd" * 20 in table.page([kept])
    with pytest.raises(ValueError):  # of a tool
        table.set_source(record | {"builders": [said]}, data)
    table.add("1.0.0", files, data)
    assert [each.get("version") for each in json.loads(data.read_text())] == ["1.0.0"]
